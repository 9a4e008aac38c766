"""The notebook's cells run from top to bottom, and a trained model's attributions pass their own check."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "looking-inside.ipynb"


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(minilm_folder, capsys):
    pytest.importorskip("vl_convert")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert "pronoun to its noun" in capsys.readouterr().out
