"""The main job in one command: fine-tune, calibrate, evaluate, search and explain, and write a report.

Everything comes with the package, the news texts and (by the extra ``demo``) the model: nothing is downloaded.
"""

from collections.abc import Callable
from pathlib import Path

__all__ = ["run"]


def run(output: Path, *, seed: int = 1, show: Callable[[str], None] = print) -> Path:
    """Run the demo and return the path of its report.

    Args:
        output: The folder to make: ``report.html``, ``demo.json`` with the figures, ``model``, ``index`` and ``data``.
            An earlier demo there is replaced when the new one is complete.
        seed: Of the training.
        show: Takes each line of the course of events.

    Raises:
        MissingDependency: The extra ``demo`` is not installed.
        OutputExists: There is something else than an earlier demo at ``output``.
        InvalidInput: ``output`` is a folder whose place no other can take, such as the current one.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    from bothways.demo.folder import check_packages, check_replaceable
    from bothways.demo.settings import DemoSettings

    # Before torch is imported, which takes seconds: a wrong folder or a missing package is said at once.
    check_packages()
    check_replaceable(Path(output))
    show(
        f"The demo trains a few small models, which takes about two minutes, and writes {output}. Nothing leaves here."
    )
    from bothways.demo.pipeline import produce

    return produce(Path(output), DemoSettings(seed=seed), show)
