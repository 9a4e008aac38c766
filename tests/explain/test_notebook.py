"""The cells of the notebooks run from top to bottom, and print what the notebooks show."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def cells_of(name):
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [("classify.ipynb", "sports"), ("looking-inside.ipynb", "pronoun to its noun")]
)
def test_the_cells_of_a_notebook_run(minilm_folder, capsys, name, words):
    pytest.importorskip("vl_convert")
    names: dict[str, object] = {}
    for cell in cells_of(name):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert words in capsys.readouterr().out


def test_cells_that_show_something_have_their_outputs():
    for cell in cells_of("classify.ipynb"):
        if cell["cell_type"] == "code" and "print(" in "".join(cell["source"]):
            assert cell["outputs"], cell["id"]
