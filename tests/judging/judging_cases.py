"""Rows of question answering systems, and a judge that needs no model."""

import random
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from bothways.data import Example
from bothways.data.known_rows import KnownRows, TrainingRows
from bothways.judging import Judge, read_triples

LABEL = "context_relevance"


def triples(count, seed=0, rate=0.5, *, label=LABEL, **more):
    """Rows whose passage begins with the word of the answer where it is relevant, and with another one where not."""
    generator, made = random.Random(seed), []
    for number in range(count):
        good = int(generator.random() < rate)
        word, other = f"w{5 + number % 5}", f"w{12 + number % 5}"
        made.append(
            {
                "id": f"q{number}",
                "query": f"{word} w{20 + number % 20} question {number}",
                "passage": f"{word if good else other} passage {number}",
                "answer": word,
                label: good,
                **more,
            }
        )
    return made


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


class FakeClassifier:
    """Says that a pair is good where both texts begin with the same word, with a share of seeded mistakes."""

    fitted = SimpleNamespace(outputs=SimpleNamespace(labels=("0", "1")), known=TrainingRows())
    card: ClassVar = {}

    def __init__(self, mistakes=0.1):
        self.mistakes = mistakes

    def predict_proba(self, pairs, **_):
        stated = []
        for first, second in pairs:
            good = first.split()[0] == second.split()[0]
            wrong = random.Random(f"{first}|{second}").random() < self.mistakes
            stated.append(0.9 if good != wrong else 0.1)
        return np.array([[1 - value, value] for value in stated]).reshape(-1, 2)


def fake_judge(mistakes=0.1, dimension=LABEL, training=()):
    """A judge; ``training`` are the rows that it was trained on."""
    judge = Judge(FakeClassifier(mistakes), dimension)
    if training:
        read = read_triples(training, judge.dimension).triples
        pairs = [Example(judge.dimension.pair(each), str(each.label), 0) for each in read]
        known = TrainingRows(KnownRows.of(pairs))
        judge.classifier.fitted = SimpleNamespace(outputs=FakeClassifier.fitted.outputs, known=known)
    return judge
