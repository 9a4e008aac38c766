"""A few rows of data for every task that is trained, and models of each on a tiny encoder."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from answering_cases import long_question, questions
from bothways.tasks.registry import SPECS, task_class
from contract_cases import pair_rows, rows

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "show_progress": False}
LONG = " ".join(f"w{5 + place % 50}" for place in range(45))


@dataclass(frozen=True)
class Case:
    """Data of a task.

    Attributes:
        rows: Makes so many labelled rows.
        inputs: Columns that a prediction reads.
        label: Column of what is right; None where nothing is.
        long: What a row has that is read in several windows.
        asked: What every row has that predictions are asked for.
    """

    rows: Callable[[int], list[dict[str, Any]]]
    inputs: tuple[str, ...]
    label: str | None
    long: dict[str, object]
    asked: dict[str, object] | None = None

    def questions(self) -> list[dict[str, Any]]:
        """Rows to predict, one of them long."""
        made = self.rows(9)
        return [*({**row, **(self.asked or {})} for row in made), {**made[0], **self.long}]

    def values(self, made: list[dict[str, Any]]) -> list[Any]:
        """The Python values for rows: a text, a list of words, a tuple of two texts."""
        return [
            row[self.inputs[0]] if len(self.inputs) == 1 else tuple(row[each] for each in self.inputs) for row in made
        ]


def texts(count):
    return rows("single", count)


def pairs(count):
    return pair_rows("single", count)


def scored(count):
    return [{"text_a": row["text_a"], "text_b": row["text_b"], "score": len(row["text_a"]) / 7} for row in pairs(count)]


def tagged(count):
    tags = {"w5": "B-PER", "w6": "B-LOC"}
    words = [row["text"].split() for row in texts(count)]
    return [{"tokens": each, "tags": [tags.get(word, "O") for word in each]} for each in words]


def raw(count):
    return [{"text": row["text"]} for row in texts(count)]


def choices(count):
    made = []
    for number, row in enumerate(texts(count)):
        endings = ["w6 w30", "w5 w31"]
        made.append({"context": f"{row['text']} w9", "choices": endings[:: (-1) ** number], "label": 1 - number % 2})
    return made


long_context = {name: long_question()[name] for name in ("context", "answers")}
CASES = {
    "classification": Case(texts, ("text",), "label", {"text": LONG}),
    "pairs": Case(pairs, ("text_a", "text_b"), "label", {"text_b": LONG}),
    "question-answering": Case(questions, ("question", "context"), "answers", long_context),
    "tagging": Case(tagged, ("tokens",), "tags", {"tokens": LONG.split(), "tags": ["O"] * 45}),
    "embedding": Case(scored, ("text_a", "text_b"), "score", {"text_b": LONG}),
    "multiple_choice": Case(choices, ("context", "choices"), "label", {"context": LONG}),
    "masked_lm": Case(raw, ("text",), None, {"text": f"w5 [MASK] {LONG}"}, {"text": "w5 [MASK] w20"}),
}


def fitted(base, name, data=None, validation=None, **options):
    """A model of a task after two epochs on a few rows."""
    case = CASES[name]
    model = task_class(SPECS[name]).from_pretrained(base, device="cpu")
    model.fit(case.rows(24) if data is None else data, validation=validation or case.rows(12), **{**QUICK, **options})
    return model


def plain(prediction):
    return prediction.to_dict() if hasattr(prediction, "to_dict") else prediction


def close(one, other):
    """True if two answers are equal but for the last bits of their numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5) if isinstance(one, float) else one == other
