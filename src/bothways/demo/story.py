"""Words, figures and tables of the demo's report; the running text is in ``story.txt``.

Shape legend: C classes, S tokens.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bothways import report as html
from bothways.demo import DATA, INDEX, MODEL, MODEL_FOLDER, PRONOUN, SENTENCE
from bothways.evaluation import ClassificationReport, Estimate
from bothways.explain import TextAttention, causal, illustrative_head
from bothways.tasks.predictions import Classification
from bothways.training.record import TrainingRecord

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

_METRICS = {
    "accuracy": "Accuracy",
    "macro_f1": "Macro F1",
    "mcc": "Matthews correlation",
    "nll": "Negative log likelihood, nats",
    "brier": "Brier score, 0 to 2",
    "ece": "Expected calibration error",
}


def tell(macro: str, *values: object) -> tuple[html.Paragraph, ...]:
    """The paragraphs of a macro of ``story.txt``, which a blank line ends."""
    parts = re.split("\n *\n", str(getattr(_story(), macro)(*values)))
    # Not a no-break space.
    return tuple(html.Paragraph(re.sub("[ \n]+", " ", part).strip(" ")) for part in parts if part.strip())


@cache
def _story() -> "TemplateModule":
    from jinja2 import Environment, StrictUndefined

    # Plain text, which the page escapes.
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False)
    environment.filters["interval"] = with_interval
    return environment.from_string((files("bothways.demo") / "story.txt").read_text(encoding="utf-8")).module


def with_interval(estimate: Estimate, decimals: int = 3) -> str:
    """A value and, in brackets, the ends of its 95 % interval."""
    value, low, high = (
        f"{round(each, decimals) + 0.0:.{decimals}f}".replace("-", "\u2212")
        for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def duration(seconds: float) -> str:
    """Seconds, or minutes and seconds.

    >>> duration(75.2)
    '1 min 15 s'
    """
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.0f} s"


def most_confused(report: ClassificationReport) -> str:
    """The two classes that are confused most often, in a sentence."""
    counts_CC = np.array(report.confusion)
    np.fill_diagonal(counts_CC, 0)
    if not counts_CC.any():
        return "No test text got a wrong label."
    most = int(counts_CC.max())
    places = np.argwhere(counts_CC == most)
    truth, predicted = (report.labels[at] for at in places[0])
    alone = "The most frequent confusion" if len(places) == 1 else "One of the most frequent confusions"
    return f"{alone}: {most} text{'s' if most > 1 else ''} of {truth} labelled {predicted}."


def course(record: TrainingRecord) -> html.Figure:
    """Losses and validation accuracy of a training."""
    losses = [html.TrainLoss(step, loss) for step, loss in enumerate(record.losses, start=1)]
    scores = [html.ValidationScore(each.epoch, each.metrics["accuracy"]) for each in record.validations]
    return html.Figure(
        html.learning_curve([*losses, *scores], "validation accuracy"),
        "Fine-tuning on the category: the loss of each update on its training texts, and the accuracy on the "
        "validation texts after each epoch.",
        f"The training loss goes from {losses[0].loss:.2f} to {losses[-1].loss:.2f} in {len(losses)} updates; the "
        f"validation accuracy is {', '.join(f'{each.score:.2f}' for each in scores)} after the epochs.",
    )


def metrics(before: ClassificationReport, after: ClassificationReport) -> html.Table:
    """Metrics before and after calibration."""
    columns = ("Measure", "Before calibration", "After calibration")
    old, new = before.estimates(), after.estimates()
    rows = tuple((name, with_interval(old[key]), with_interval(new[key])) for key, name in _METRICS.items())
    caption = "The test texts, with 95\u00a0% intervals in brackets. Calibration changes probabilities and no label."
    return html.Table(columns, rows, caption, numeric=columns[1:])


def f1_of_classes(report: ClassificationReport) -> html.Figure:
    """F1 of each class as a bar."""
    scores = [html.Bar(row.label, row.f1.value, (row.f1.low, row.f1.high)) for row in report.per_class]
    return html.Figure(
        html.bars(scores, "F1", domain=(0.0, 1.0)),
        "F1 of each class, the harmonic mean of precision and recall; the thin lines are 95\u00a0% intervals.",
        "F1 of each class: " + ", ".join(f"{bar.label} {bar.value:.2f}" for bar in scores),
    )


def confusion(report: ClassificationReport) -> html.Figure:
    """The confusion matrix."""
    words = most_confused(report)
    matrix = html.confusion_matrix(report.labels, report.confusion)
    return html.Figure(matrix, f"True labels in rows, predicted ones in columns. {words}", f"Confusion matrix. {words}")


def reliability(before: ClassificationReport, after: ClassificationReport) -> html.Figure:
    """Reliability before and after calibration."""
    return html.Figure(
        html.reliability_diagram(before.reliability, after.reliability),
        "How often the model is right (height) where it states a confidence (width). On the dashed line the two "
        "agree; dots above it are texts on which the model was right more often than it said.",
        f"Reliability before and after calibration; the expected calibration error is {before.ece.value:.3f} and "
        f"{after.ece.value:.3f}.",
    )


def text_list(items: Iterable[tuple[str, dict[str, str]]], caption: str = "") -> html.TextList:
    """Texts with the facts about each."""
    facts = ((text, tuple(html.Fact(*fact) for fact in named.items())) for text, named in items)
    return html.TextList(tuple(html.TextItem(*each) for each in facts), caption)


def predictions(predicted: list[tuple[dict[str, Any], Classification]], coverage: float) -> html.Table:
    """Predictions for headlines."""
    rows = []
    for row, each in predicted:
        first, second = [f"{label} ({value:.2f})" for label, value in each.probabilities.items()][:2]
        known = ", ".join(each.label_set or ()) or "none", "no" if each.outside else "yes"
        rows.append((row["text"], row["category"] or "none of them", first, second, *known))
    caption = "Unseen headlines, with calibrated probabilities in brackets. Familiar: like the training texts."
    columns = ("Headline", "Meant as", "Predicted", "Second", f"{coverage:.0%} set", "Familiar")
    return html.Table(columns, tuple(rows), caption)


def attention_blocks(attention: TextAttention) -> tuple[html.Block, ...]:
    """One head with and without a causal mask, in words and as a figure."""
    head = illustrative_head(attention)
    encoder_SS = attention.head(head)
    causal_SS, at = causal(encoder_SS), attention.tokens.index(PRONOUN)
    layers, heads = attention.weights_LNSS.shape[:2]
    right = float(np.triu(encoder_SS, 1).sum() / len(attention.tokens))
    read_from = (_strongest(attention.tokens, weights_SS[at]) for weights_SS in (encoder_SS, causal_SS))
    words = tell("reading", right, PRONOUN, *read_from)
    figure = html.Figure(
        html.attention_pair(attention.tokens, encoder_SS, causal_SS),
        f"“{SENTENCE}” Each row is a token that reads, each column a token that is read from; a row sums to 1. On the "
        "right, the same scores with a causal mask.",
        f"Two heat maps of attention weights over the tokens of the sentence. {words[0].text}",
    )
    return (*tell("attention", head, heads, layers), figure, *words)


def _strongest(tokens: tuple[str, ...], weights_S: npt.NDArray[np.floating]) -> str:
    read_from = [at for at in np.argsort(-weights_S, kind="stable")[:3] if weights_S[at] >= 0.005]
    *others, last = (f"“{tokens[at]}” ({weights_S[at]:.2f})" for at in read_from)
    return f"{', '.join(others)} and {last}" if others else last


def commands(output: Path) -> tuple[str, ...]:
    """Commands that go on from the demo's files, as they can be typed where it ran."""
    beside = Path(sys.executable).parent / "bothways"
    found = os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
    program = "bothways" if shutil.which("bothways") else shlex.quote(found)
    model, index = (shlex.quote(str(output / name)) for name in (MODEL_FOLDER, INDEX))
    news = {split: shlex.quote(str(output / DATA / f"news.{split}.jsonl")) for split in ("train", "validation", "test")}
    return (
        f'{program} predict {model} "Parliament votes on the new chip subsidy"',
        f"{program} evaluate {model} --data {news['test']} --label category",
        f'{program} search query {index} "a late goal decides the match"',
        f"{program} train classification --model {MODEL} --train {news['train']} --validation {news['validation']} "
        "--text text --label sentiment --output runs/sentiment --seed 1",
    )
