"""Calling the command line in this process, and data to call it with."""

import contextlib
import csv
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


def ok(*words):
    """Run a command that has to succeed."""
    outcome = call(*words)
    assert outcome.code == 0, outcome.err
    return outcome


def fails(code, said, *words):
    """Run a command that has to end with this code and say this, or all of these; bad usage has no results."""
    outcome = call(*words)
    assert outcome.code == code, outcome.err
    assert code != 2 or outcome.out == ""
    for each in (said,) if isinstance(said, str) else said:
        assert each in outcome.err
    return outcome


def short_training(files, output, *more, epochs=1):
    """The words of a training on 24 texts, most of them for three updates an epoch and some held out."""
    return [
        *("train", "classification", "--model", files / "tiny", "--train", files / "few.jsonl.gz", "--batch-size", 8),
        *("--output", output, "--epochs", epochs, "--device", "cpu", *more),
    ]


def names(folder):
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


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


def saved_of(folder):
    """What a saved model says of itself."""
    return json.loads((folder / "bothways.json").read_text())


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_table(path, delimiter=","):
    """The rows of a table, as dictionaries of texts."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter=delimiter))


def write_jsonl(path, made):
    content = "".join(json.dumps(row) + "\n" for row in made).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
