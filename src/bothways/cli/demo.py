"""``bothways demo``: a model fine-tuned, calibrated, explained and searched in a few minutes."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.options import PositiveInt
from bothways.threads import choose_threads

EXAMPLE = """\
Example:
  bothways demo --output bothways-demo"""


def demo(
    *,
    output: Path = Path("bothways-demo"),
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 1,
    threads: PositiveInt | None = None,
) -> None:
    """Train, evaluate and search on news, and write a report.

    Takes a few minutes on two cores and needs no network.

    Args:
        output: Folder for the report and all that it was made of.
        seed: Of the training.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    choose_threads(threads)
    from bothways.demo import run

    run(output, seed=seed, show=print)
