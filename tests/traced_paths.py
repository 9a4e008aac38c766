"""Print as JSON what real calls run through: ``python traced_paths.py FOLDER``, which is an empty one.

In a process of its own, so that neither the caches of other tests nor their imports shorten a path.
"""

import contextlib
import inspect
import io
import json
import sys
import threading
from pathlib import Path

import torch  # noqa: F401  # its import is no part of a path

import bothways
from bothways.cli import main

PACKAGE = str(Path(bothways.__file__).parent)
FROZEN = Path(__file__).parent / "frozen" / "models"
TEXT = "w5 w7 w9"


class Trace:
    """The functions of the package that run while it is open, in every thread, and how deep they stand in each other.

    Comprehensions, which newer Pythons have no frames for, do not count.
    """

    def __init__(self, deep=False):
        self._deep = deep

    def __enter__(self):
        self._codes, self._deepest = {}, 0
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame, event, _argument):
        if event != "call":
            return
        code = frame.f_code
        ours = self._codes.get(code)
        if ours is None:
            ours = code.co_filename.startswith(PACKAGE) and not code.co_name.endswith("comp>")
            self._codes[code] = ours
        if ours and self._deep:
            depth = 0
            while frame is not None:
                depth += self._codes.get(frame.f_code, False)
                frame = frame.f_back
            self._deepest = max(self._deepest, depth)

    def measures(self):
        ours = [code for code, counts in self._codes.items() if counts]
        functions = [code for code in ours if code.co_flags & inspect.CO_OPTIMIZED]  # no bodies of modules and classes
        return {
            "loaded": len({code.co_filename for code in ours}),
            "files": len({code.co_filename for code in functions}),
            "functions": len(functions),
            "depth": self._deepest,
        }


def measure(folder):
    """Trace a search and a command that predicts from their first import on; a fit; the answer of an opened model."""
    with Trace() as search:
        _call("search", "query", FROZEN / "index", TEXT, "--model", FROZEN / "embedder", "--json")
    _call("predict", FROZEN / "classifier", TEXT)
    for_training = [name for name in sys.modules if name.startswith(("bothways.training", "bothways.objectives"))]

    import tiny_models  # which imports much

    tiny_models.write_checkpoint(folder / "base")
    rows = [f"w{5 + row % 2} w{20 + row % 30},{'even' if row % 2 else 'odd'}\n" for row in range(60)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    with Trace() as fit:
        classifier = bothways.TextClassifier.from_pretrained(folder / "base", device="cpu")
        classifier.fit(folder / "rows.csv", epochs=1, seed=1)
        classifier.save(folder / "trained")

    classifier = bothways.TextClassifier.from_pretrained(folder / "trained", device="cpu")
    for _ in range(2):
        classifier.predict("w6 w8 w10")
    with Trace(deep=True) as predict:
        classifier.predict(TEXT)
    traces = {"search": search, "fit": fit, "predict": predict}
    return {name: trace.measures() for name, trace in traces.items()} | {"training": sorted(for_training)}


def _call(*words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(f"{words}: {shown.getvalue()}")


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
