"""How the code is cut: what one call runs through, and lines of code by package, of one or several checkouts.

``python -m benchmarks.anatomy --source ../before --source . --json anatomy.json`` puts two checkouts side by side.

Definitions:

- **Lines of code** are the lines that a token stands on, without comments, blank lines and docstrings (a string that is
  a statement of its own).
- **Functions** are those with ``def``, methods included. A **short** one has three lines or fewer from ``def`` to its
  end, its docstring not counted.
- **What a call enters**: every function of ``bothways`` that begins to run, in any thread, told apart by file and
  qualified name; lambdas, comprehensions and generators have one of their own, those of one function share it. So the
  figures depend a little on the version of Python. **Depth** is the largest number of such functions on one stack; what
  torch and others have in between is not counted.
- **predict** is ``TextClassifier.predict("one text")`` of a tiny classifier with a temperature and without a detector.
  **fit** is one training of it with validation rows; **prepare**, all that it enters before ``training/loop.py``.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.harness import REPOSITORY, table

SHORT = 3
LOOP = "training/loop.py"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


# --- lines ---


def count_lines(package: Path) -> dict[str, dict[str, int]]:
    """Files, lines of code, functions and short functions of every folder or module at the top of a package."""
    counts: dict[str, Counter[str]] = {}
    for path in sorted(package.rglob("*.py")):
        home = path.relative_to(package).parts[0].removesuffix(".py")
        counts.setdefault(home, Counter()).update(count_source(path.read_text(encoding="utf-8")))
    return {home: dict(count) for home, count in counts.items()}


def count_source(source: str) -> dict[str, int]:
    """The same counts of one file."""
    tree = ast.parse(source)
    docstrings = {line for node in ast.walk(tree) for line in _docstring_lines(node)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    spans = [(node.end_lineno or 0) - node.lineno + 1 - len(_docstring_lines(node, first=True)) for node in functions]
    short = sum(span <= SHORT for span in spans)
    return {"files": 1, "lines": len(code - docstrings), "functions": len(functions), "short": short}


def _docstring_lines(node: ast.AST, *, first: bool = False) -> list[int]:
    """Lines of the strings that are statements in the body of a node; of the ``first`` statement alone."""
    body = getattr(node, "body", None)
    statements = body if isinstance(body, list) else []
    return [
        line
        for each in (statements[:1] if first else statements)
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    ]


# --- calls ---


class Entered:
    """The functions of a package that run while this is open, in every thread that is started meanwhile."""

    def __init__(self, package: Path, until: str | None = None) -> None:
        self._package = f"{package}{os.sep}"
        self._until = until
        self._functions: set[tuple[str, str]] = set()
        self._depth = 0
        self.reached = False

    def __enter__(self) -> "Entered":
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def counts(self) -> dict[str, int]:
        """Files, functions, and the depth of the deepest."""
        files = {file for file, _ in self._functions}
        return {"files": len(files), "functions": len(self._functions), "depth": self._depth}

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or self.reached or not self._is_ours(frame.f_code):
            return
        file = Path(frame.f_code.co_filename).as_posix()
        if self._until is not None and file.endswith(self._until):
            self.reached = True
            return
        # Sets of CPython take additions from several threads.
        self._functions.add((file, frame.f_code.co_qualname))
        depth = 0
        above: FrameType | None = frame
        while above is not None:
            depth += self._is_ours(above.f_code)
            above = above.f_back
        self._depth = max(self._depth, depth)

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._package)


def count_calls() -> dict[str, dict[str, int]]:
    """What the package that is on the path enters when it predicts, prepares a training, and trains."""
    import bothways
    from bothways import TextClassifier

    package = Path(bothways.__file__).parent
    rows = [{"text": "a good film", "label": "p"}, {"text": "a very bad plot", "label": "n"}] * 20

    def trained(options: Callable[[], dict[str, Any]], until: str | None = None) -> tuple[Any, Entered]:
        classifier = TextClassifier.from_pretrained(folder, device="cpu")
        with Entered(package, until) as entered:
            classifier.fit(rows, validation=rows, epochs=1, show_progress=False, **options())
        return classifier, entered

    with tempfile.TemporaryDirectory(prefix="bothways-anatomy-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        write_tiny_checkpoint(folder)
        # The first training also imports what is imported when it is first needed.
        try:
            options = _plain_options
            trained(options)
        except TypeError:
            # Earlier versions take them as one value.
            from bothways.tasks.settings import FitSettings

            def options() -> dict[str, Any]:
                return {"settings": FitSettings(**_plain_options())}

            trained(options)
        classifier, fit = trained(options)
        prepare = trained(options, LOOP)[1]
        if not prepare.reached:
            raise RuntimeError(f"no training entered {LOOP}, so its preparation has no end: say where the loop is now")
        classifier.predict("one text")
        with Entered(package) as predict:
            classifier.predict("one text")
    return {"predict": predict.counts(), "prepare": prepare.counts(), "fit": fit.counts()}


def _plain_options() -> dict[str, Any]:
    return {"calibration": "temperature", "detector": None}


def write_tiny_checkpoint(folder: Path, hidden: int = 32, layers: int = 2) -> None:
    """A BERT with random weights and a handful of words."""
    import torch
    from safetensors.torch import save_file

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "one", "text", "good", "bad", "film", "plot", "very"]]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    settings = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(words),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    tables = {"word": len(words), "position": 64, "token_type": 2}
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, hidden) for name, rows in tables.items()}
    maps, norms = {"pooler.dense": (hidden, hidden)}, ["embeddings.LayerNorm"]
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        maps |= {f"{layer}.attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        maps[f"{layer}.attention.output.dense"] = (hidden, hidden)
        maps[f"{layer}.intermediate.dense"] = (2 * hidden, hidden)
        maps[f"{layer}.output.dense"] = (hidden, 2 * hidden)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    generator = torch.Generator().manual_seed(0)
    shapes |= {f"{name}.weight": shape for name, shape in maps.items()}
    tensors = {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in maps.items()}
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    tensors |= {f"{name}.bias": torch.zeros(hidden) for name in norms}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# --- checkouts ---


def anatomy(checkout: Path) -> dict[str, Any]:
    """Calls and lines of a checkout; the calls are counted in a process that has it on its path."""
    source = checkout.resolve() / "src"
    package = source / "bothways"
    if not package.is_dir():
        raise SystemExit(f"expected a checkout with src/bothways, got {checkout}.")
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.anatomy", "--calls"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"counting the calls of {checkout} failed:\n{done.stderr}")
    packages = count_lines(package)
    whole = {name: sum(each[name] for each in packages.values()) for name in ("files", "lines", "functions", "short")}
    return {"calls": json.loads(done.stdout.splitlines()[-1]), "all": whole, "packages": packages}


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """Two tables with a column for each checkout."""
    calls = [
        [call, *(f"{each['files']} files, {each['functions']} functions, {each['depth']} deep" for each in counts)]
        for call in ("predict", "prepare", "fit")
        for counts in [[one["calls"][call] for one in found.values()]]
    ]
    homes = sorted({home for one in found.values() for home in one["packages"]})
    packages = [[home, *(_package_cell(one["packages"].get(home)) for one in found.values())] for home in homes]
    whole = ["**all**", *(_package_cell(one["all"]) for one in found.values())]
    header = "package: lines of code (files; functions, of them of three lines or fewer)"
    return f"{table(('call', *found), calls)}\n\n{table((header, *found), [*packages, whole])}"


def _package_cell(counts: dict[str, int] | None) -> str:
    if counts is None:
        return ""
    return f"{counts['lines']:,} ({counts['files']}; {counts['functions']:,}, {counts['short']:,})"


def main() -> None:
    """Count, and print Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anatomy", description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, action="append", help="a checkout (default: this one); may be repeated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        print(json.dumps(count_calls()))
        return
    found = {str(each): anatomy(each) for each in arguments.source or [REPOSITORY]}
    if arguments.json:
        figures = {"python": sys.version.split()[0], "checkouts": found}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()
