"""The command line. One file for each command: parse, call, print.

Nothing here imports torch, NumPy or another heavy package before a command runs, so that ``--help`` answers at once.
"""

from bothways.cli.app import main

__all__ = ["main"]
