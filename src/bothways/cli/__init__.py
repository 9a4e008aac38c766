"""The command line: each command parses its options, calls the library and prints.

Nothing here imports torch, NumPy or another heavy package before a command runs, so that ``--help`` answers at once.
"""

from bothways.cli.program import main

__all__ = ["main"]
