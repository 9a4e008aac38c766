"""``python -m bothways`` is the command ``bothways``."""

import sys

from bothways.cli import main

sys.exit(main())
