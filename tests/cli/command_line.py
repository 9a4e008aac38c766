"""Calling the command line in this process, and data to call it with."""

import contextlib
import gzip
import io
import json
import random
from dataclasses import dataclass

from bothways import open_trained
from bothways.cli import main


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self):
        return json.loads(self.out)

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def call(*words, terminal=False):
    """Run a command in this process; with its results on a terminal, if wanted."""
    shown = _Terminal() if terminal else io.StringIO()
    with contextlib.redirect_stdout(shown) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([str(word) for word in words])
    return Outcome(code, out.getvalue(), err.getvalue())


def rows(count, seed, labels=("even", "odd")):
    """Texts of five words; all of them w6, w8, ... or all of them w5, w7, ..., and labelled so.

    The words are few: 200 rows teach each of them, so that a tiny model makes no mistake on others.
    """
    generator = random.Random(seed)
    made = []
    for number in range(count):
        label = labels[number % len(labels)]
        words = range(6 if label == "even" else 5, 31, 2)
        made.append(
            {"id": f"r{number}", "text": " ".join(f"w{generator.choice(words)}" for _ in range(5)), "label": label}
        )
    return made


def evaluated(folder, data, task=None):
    """What the library says of a saved model, or of one of its tasks, as the command line writes it."""
    model = open_trained(folder, device="cpu")
    report = (model.part(task) if task else model).evaluate(str(data))
    return json.loads(json.dumps(report.to_dict()))


def write_jsonl(path, made):
    content = "".join(json.dumps(row) + "\n" for row in made).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
