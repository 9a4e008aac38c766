"""What ``python -m benchmarks small_data`` can be asked for, besides the options of every benchmark."""

import argparse
from dataclasses import dataclass
from typing import Self

from benchmarks.small_data.sets import SETS, SIZES

MODELS = ("minilm", "random")


@dataclass(frozen=True)
class Part:
    """The part of the benchmark to run.

    Attributes:
        sets: Names of sets.
        sizes: Numbers of training rows; ``8`` is of each class, ``all`` the whole file.
        models: ``minilm``, and ``random`` for a BERT of its shape with random weights.
        test_rows: At most so many test rows; 0 for all.
        setfit_updates: SetFit is left out where it would need more.
    """

    sets: tuple[str, ...] = SETS
    sizes: tuple[str, ...] = SIZES
    models: tuple[str, ...] = MODELS
    test_rows: int = 1_000
    setfit_updates: int = 3_000

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Take the options from the command line's."""
        return cls(
            tuple(arguments.sets),
            tuple(arguments.sizes),
            tuple(arguments.models),
            arguments.test_rows,
            arguments.setfit_updates,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command line's."""
    group, default = parser.add_argument_group("small_data"), Part()
    group.add_argument("--sets", nargs="+", default=default.sets, choices=SETS)
    group.add_argument(
        "--sizes",
        nargs="+",
        default=default.sizes,
        type=_size,
        help=f"rows; 8 is of each class (default {' '.join(SIZES)})",
    )
    group.add_argument("--models", nargs="+", default=default.models, choices=MODELS)
    group.add_argument(
        "--test-rows", type=int, default=default.test_rows, help="at most so many, 0 for all (default 1000)"
    )
    group.add_argument(
        "--setfit-updates",
        type=int,
        default=default.setfit_updates,
        help="leave SetFit out where it needs more updates (default 3000)",
    )


def _size(text: str) -> str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of rows or 'all', got {text!r}")
    return text
