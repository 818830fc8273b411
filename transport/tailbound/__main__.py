"""python -m tailbound"""

import sys

from .cli import main

sys.exit(main())
