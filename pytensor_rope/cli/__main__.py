"""Run the command line with ``python -m pytensor_rope.cli``."""

import sys

from pytensor_rope.cli import main

sys.exit(main())
