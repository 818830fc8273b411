"""The bench scripts import one another by name."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
