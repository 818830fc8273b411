"""Every script of `make bench-sim` runs: a few rounds of everything it does."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
FOUND = sorted([*BENCH.glob("sim_*.py"), *BENCH.glob("train_*_sim.py")])
SCRIPTS = [path for path in FOUND if "__main__" in path.read_text()]  # what the others import is no script


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script__runs_quickly(script, tmp_path):
    ran = subprocess.run(
        [sys.executable, str(script), "--quick"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) > 4
