"""``bothways demo``: a model fine-tuned, calibrated, explained and searched in a few minutes."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

EXAMPLE = """\
Example:
  bothways demo --output bothways-demo"""


def demo(
    *,
    output: Path = Path("bothways-demo"),
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 1,
) -> None:
    """Fine-tune a small model on news headlines, on this machine, and write a report of how well it does.

    Args:
        output: Folder for the report and all that it was made of.
        seed: Of the training.
    """
    from bothways.demo import run

    run(output, seed=seed, show=print)
