"""Calling the command line in this process, and data to call it with."""

import contextlib
import gzip
import io
import json
import random
from dataclasses import dataclass

import tiny_models
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


def call(*words):
    """Run a command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([str(word) for word in words])
    return Outcome(code, out.getvalue(), err.getvalue())


def rows(count, seed, labels=("even", "odd")):
    """Texts of five words; all of them w6, w8, ... or all of them w5, w7, ..., and labelled so."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        label = labels[number % len(labels)]
        words = range(6 if label == "even" else 5, tiny_models.VOCABULARY, 2)
        made.append(
            {"id": f"r{number}", "text": " ".join(f"w{generator.choice(words)}" for _ in range(5)), "label": label}
        )
    return made


def write_jsonl(path, made):
    content = "".join(json.dumps(row) + "\n" for row in made).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
