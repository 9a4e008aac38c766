"""Print as JSON what real calls run through: ``python traced_paths.py fit FOLDER``, then ``... use FOLDER``.

Each in a process of its own, so that neither the caches of other tests nor their imports shorten a path.
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


def fit(folder):
    """Trace files of a table -> a fit -> a saved model; and build an index."""
    import tiny_models  # which imports much

    base = folder / "base"
    tiny_models.write_checkpoint(base)
    rows = [f"w{5 + row % 2} w{20 + row % 30},{'even' if row % 2 else 'odd'}\n" for row in range(60)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    with Trace() as trace:
        classifier = bothways.TextClassifier.from_pretrained(base, device="cpu")
        classifier.fit(folder / "rows.csv", epochs=1, seed=1)
        classifier.save(folder / "trained")
    corpus = [{"id": f"d{row}", "text": f"w{5 + row} w{6 + row}"} for row in range(4)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus), encoding="utf-8")
    data = ("--data", folder / "corpus.jsonl", "--output", folder / "index", "--quiet")
    _call("search", "build", "--model", base, *data)
    return {"fit": trace.measures()}


def use(folder):
    """Trace a search and a command that predicts from their first import on, and the answer of an opened model."""
    with Trace() as search:
        _call("search", "query", folder / "index", TEXT, "--json")
    _call("predict", folder / "trained", TEXT)
    for_training = [name for name in sys.modules if name.startswith(("bothways.training", "bothways.objectives"))]
    classifier = bothways.TextClassifier.from_pretrained(folder / "trained", device="cpu")
    for _ in range(2):
        classifier.predict("w6 w8 w10")
    with Trace(deep=True) as predict:
        classifier.predict(TEXT)
    return {"search": search.measures(), "predict": predict.measures(), "training": sorted(for_training)}


def _call(*words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(f"{words}: {shown.getvalue()}")


if __name__ == "__main__":
    print(json.dumps({"fit": fit, "use": use}[sys.argv[1]](Path(sys.argv[2]))))
