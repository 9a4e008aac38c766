"""The page that compares models measured on this machine."""

from bothways.advice.comparing import ComparedModel, ModelComparison
from bothways.report.charts import Bar, BarGroup, bars, grouped_bars
from bothways.report.page import Block, Figure, KeyFigure, KeyFigures, Page, Paragraph, Section, Table

_TEACHER, _STUDENT = "google-bert/bert-base-uncased", "distilbert/distilbert-base-uncased"


def model_comparison_page(comparison: ModelComparison) -> Page:
    """Return the page of a comparison."""
    names = ", ".join(_short(each) for each in comparison.models)
    return Page(
        title="Encoders, measured here",
        subtitle=f"Speed and memory of {names} on this machine, beside counted and published figures.",
        sections=(
            _summary(comparison),
            _speed(comparison),
            _latency(comparison),
            _memory(comparison),
            _how(comparison),
        ),
        footer="Written by “bothways compare-models”.",
    )


def _short(model: ComparedModel) -> str:
    return model.card.name.split("/")[-1]


def _middle(comparison: ModelComparison) -> int:
    """Return the index of the length nearest to a paragraph of 128 tokens, which single numbers refer to."""
    return min(range(len(comparison.lengths)), key=lambda at: abs(comparison.lengths[at] - 128))


def _summary(comparison: ModelComparison) -> Section:
    at = _middle(comparison)
    length = comparison.lengths[at]
    fastest = max(comparison.models, key=lambda model: model.measured.speeds[at].tokens_per_second)
    figures = [
        KeyFigure(
            "Fastest",
            f"{fastest.measured.speeds[at].tokens_per_second:,.0f}",
            f"tokens a second: {_short(fastest)}, texts of {length} tokens",
        )
    ]
    known = [(model.measured.peak_bytes, model) for model in comparison.models if model.measured.peak_bytes]
    if known:
        least, model = min(known, key=lambda pair: pair[0])
        figures.append(KeyFigure("Least memory", f"{least / 1e6:,.0f} MB", f"{_short(model)}, of the whole process"))
    accurate = [model for model in comparison.models if model.accuracy is not None]
    if accurate:
        best = max(accurate, key=lambda model: model.accuracy or 0.0)
        figures.append(KeyFigure("Most accurate", f"{best.accuracy:.1f}", f"{_short(best)}, as published: MNLI, dev"))
    blocks: list[Block] = [KeyFigures(tuple(figures)), _overview(comparison, at)]
    return Section("In short", (*blocks, *_distilled(comparison, at)))


def _overview(comparison: ModelComparison, at: int) -> Table:
    columns = ("Model", "Params", "MFLOPs", "Tokens/s", "ms", "MB", "MNLI")
    rows = tuple(
        (
            _short(model),
            "?" if model.card.counted is None else f"{model.card.counted.parameters / 1e6:.1f} M",
            f"{model.flops_per_token[at] / 1e6:,.0f}",
            f"{model.measured.speeds[at].tokens_per_second:,.0f}",
            f"{model.measured.speeds[at].latency_ms:,.1f}",
            "?" if model.measured.peak_bytes is None else f"{model.measured.peak_bytes / 1e6:,.0f}",
            "?" if model.accuracy is None else f"{model.accuracy:.1f}",
        )
        for model in comparison.models
    )
    caption = (
        f"Texts of {comparison.lengths[at]} tokens, {comparison.batch} in a batch. Counted: parameters, and operations "
        "for each token. Measured here: tokens a second of a batch, milliseconds for one text, the most memory of the "
        f"process. Published, in percent: {comparison.yardstick}."
    )
    return Table(columns, rows, caption, numeric=columns[1:])


def _distilled(comparison: ModelComparison, at: int) -> tuple[Paragraph, ...]:
    by_name = {model.card.name: model for model in comparison.models}
    if not {_TEACHER, _STUDENT} <= by_name.keys():
        return ()
    teacher, student = by_name[_TEACHER], by_name[_STUDENT]
    speeds = [model.measured.speeds[at].tokens_per_second for model in (teacher, student)]
    counts = [model.card.counted.parameters for model in (teacher, student) if model.card.counted is not None]
    words = (
        f"DistilBERT against BERT-base: {speeds[1] / speeds[0]:.2f} times its speed here with "
        f"{100 * counts[1] / counts[0]:.0f}\u00a0% of its parameters. The paper reports 60\u00a0% faster, "
        "40\u00a0% fewer parameters and 97\u00a0% of the GLUE score; it keeps half of the layers, and all of the "
        "embedding table."
    )
    return (Paragraph(words),)


def _speed(comparison: ModelComparison) -> Section:
    groups = [
        BarGroup(_short(model), tuple(speed.tokens_per_second for speed in model.measured.speeds))
        for model in comparison.models
    ]
    keys = [f"{length:,}" for length in comparison.lengths]
    figure = Figure(
        grouped_bars(groups, keys, "tokens of a text", "tokens a second"),
        f"Tokens a second of batches of {comparison.batch} texts of one length, medians. Each token takes the same "
        "arithmetic whatever the length, but for attention, which compares every token with every other.",
        "Tokens a second by model and length: "
        + "; ".join(f"{group.label} {', '.join(f'{value:,.0f}' for value in group.values)}" for group in groups),
    )
    words = (
        "More is better. Layers that share their weights, as in ALBERT, save no time: the arithmetic depends on depth "
        "and width. Random weights are as fast as trained ones."
    )
    return Section("Speed by length", (Paragraph(words), figure))


def _latency(comparison: ModelComparison) -> Section:
    at = _middle(comparison)
    rows = [Bar(_short(model), model.measured.speeds[at].latency_ms) for model in comparison.models]
    figure = Figure(
        bars(rows, "milliseconds", decimals=1),
        f"Time for one text of {comparison.lengths[at]} tokens alone, tokenisation not included. Less is better.",
        "Milliseconds for one text: " + ", ".join(f"{row.label} {row.value:.1f}" for row in rows),
    )
    return Section("One text at a time", (figure,))


def _memory(comparison: ModelComparison) -> Section:
    known = [(model, model.measured.peak_bytes) for model in comparison.models if model.measured.peak_bytes]
    if not known:
        return Section("Memory", (Paragraph("This system does not report the memory of a process."),))
    rows = [Bar(_short(model), peak / 1e6) for model, peak in known]
    base = min(model.measured.runtime_bytes or 0 for model, _ in known)
    figure = Figure(
        bars(rows, "MB", decimals=0),
        f"The most memory that each process took, up to batches of {comparison.batch} texts of "
        f"{comparison.lengths[-1]} tokens, weights in float32. Less is better.",
        "Memory in MB: " + ", ".join(f"{row.label} {row.value:,.0f}" for row in rows),
    )
    words = (
        f"{base / 1e6:,.0f} MB of each bar are Python and torch before a model is loaded. Shared weights and narrow "
        "embeddings save memory. Training takes several times as much: “bothways cost” estimates it."
    )
    return Section("Memory", (Paragraph(words), figure))


def _how(comparison: ModelComparison) -> Section:
    machine = comparison.machine
    rows = (
        ("Processor", f"{machine.processor}, {machine.cores} cores; threads used: {machine.threads}"),
        ("Versions", f"Python {machine.python}, torch {machine.torch}"),
        ("Weights", "random, float32; nothing was downloaded"),
        ("Lengths", ", ".join(f"{length:,}" for length in comparison.lengths) + " tokens"),
        ("Batch", f"{comparison.batch} texts of one length, every token computed to the end"),
        ("Figures", "medians after a warm-up, each model in a process of its own; other programs disturb them"),
    )
    return Section("How it was measured", (Table(("What", "How"), rows),))
