"""Wrong predictions of an evaluation, with their texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bothways.data import class_label
from bothways.data.columns import texts_in
from bothways.evaluation.metrics.question_answering import score_answer
from bothways.progress import figure
from bothways.report.page import TextItem
from bothways.tasks.heads.targets import AnyExample

MOST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Mistake:
    """A prediction that differs from its label.

    Attributes:
        text: The input.
        where: The row, such as ``line 3 of 'test.csv'``.
        label: The label in the data.
        predicted: The prediction.
        weight: How wrong the prediction is: its probability, the number of wrong words, or the error of a number.
    """

    text: str
    where: str
    label: str
    predicted: str
    weight: float
    probability: float | None = None

    def item(self) -> TextItem:
        """Return the mistake as an item of a page."""
        stated = "" if self.probability is None else figure(self.probability, 3)
        facts = {"label": self.label, "predicted": self.predicted, "probability": stated, "at": self.where}
        return TextItem(self.text, facts)


def wrong_predictions(predictions: Sequence[Mapping[str, object]], examples: Sequence[AnyExample]) -> list[Mistake]:
    """Return the wrong predictions (the largest errors of a regression), the worst or most probable first.

    ``predictions`` are those of the examples, as JSON values; for a task without wrong predictions there are none.
    """
    pairs = zip(predictions, examples, strict=True)
    found = [mistake for prediction, example in pairs for mistake in _mistakes(prediction, example)]
    return sorted(found, key=lambda each: -each.weight)


def _mistakes(prediction: Mapping[str, object], example: AnyExample) -> Iterator[Mistake]:
    text = "\n".join(texts_in(example.text))
    match prediction:
        case {"label": found}:
            label, predicted = str(example.label), class_label(found)
            wrong = label != predicted
        case {"labels": list(found)}:
            names = list(map(class_label, found))
            label, predicted = _listed(example.label), _listed(names)
            wrong = set(example.label) != set(names)
        case {"value": float(found)}:
            error = abs(found - example.label)
            if error > 0:
                yield Mistake(text, example.where, f"{example.label:.4g}", f"{found:.4g}", error)
            return
        case {"words": list(words)}:
            pairs = [(word, tag) for word, tag in zip(words, example.label, strict=True) if word["tag"] != tag]
            label = ", ".join(f"{word['text']}: {tag}" for word, tag in pairs)
            predicted = ", ".join(str(word["tag"]) for word, _ in pairs)
            if pairs:
                yield Mistake(text, example.where, label, predicted, len(pairs))
            return
        case {"answer": str() | None as found}:
            golds = [answer.text for answer in example.label]
            label, predicted = _listed(golds, "no answer"), found or "no answer"
            wrong = not score_answer(found or "", golds, "2.0")[0]
        case {"choice": str(predicted), "index": int(index)}:
            wrong, label = index != example.label, example.text[1][example.label]
        case _:
            return
    if wrong:
        stated = prediction.get("probability")
        probability = stated if isinstance(stated, float) else None
        yield Mistake(text, example.where, label, predicted, probability or 0.0, probability)


def _listed(names: Sequence[object], nothing: str = "none") -> str:
    return ", ".join(map(str, names)) or nothing
