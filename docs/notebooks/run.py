"""Run a notebook's cells from top to bottom and keep what they print: python docs/notebooks/run.py NOTEBOOK ...

Jupyter does the same and more; this needs nothing but bothways, so that outputs can be made wherever the tests run.
"""

import ast
import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any


def run(notebook: Path) -> None:
    """Run all cells in one namespace, and write their outputs into the file."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate((each for each in content["cells"] if each["cell_type"] == "code"), start=1):
        cell["outputs"] = list(_outputs("".join(cell["source"]), cell["id"], names, number))
        cell["execution_count"] = number
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _outputs(source: str, name: str, names: dict[str, Any], number: int) -> Iterable[dict[str, Any]]:
    """Yield what a cell prints, and the value of its last line if that is an expression."""
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()):
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(value, method):
                data[kind] = getattr(value, method)().splitlines(keepends=True)
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(Path(argument))
