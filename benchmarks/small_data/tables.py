"""The tables of the small-data benchmark.

Every figure is a mean over the seeds with its standard deviation. A difference is formed seed by seed, on the same
training and test rows, and is a tie where its mean is not larger than its standard deviation.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import table
from benchmarks.runs import Run, differences, spread, stated_origin, verdict

OURS, BASELINE = "ours", "probe"
LABELS = {
    "tfidf": "TF-IDF, linear", "ours": "ours", "probe": "embeddings, linear", "setfit": "SetFit",
    "trainer_tuned": "Trainer, tuned epochs",
}  # fmt: skip
BELOW = 2_000  # rows; the sets whose mean lead is summed up


def page(runs: Sequence[Run]) -> str:
    """Return all tables in Markdown."""
    parts = [_note(runs), figures_table(runs)]
    if found := leads(runs):
        parts += ["## Ours minus the best peer", leads_table(found), summary(found, runs)]
    return "\n\n".join(parts)


def figures_table(runs: Sequence[Run]) -> str:
    """Return a row for each set and size, a column for each contestant."""
    names = [name for name in LABELS if any(run["contestant"] == name for run in runs)]
    rows = []
    for of_cell in _grouped(runs):
        figures = [_figures(of_cell, name) for name in names]
        seconds = [_seconds(of_cell, name) for name in names]
        rows.append([*_named(of_cell), *(spread(list(each.values())) for each in figures), " / ".join(seconds)])
    return table(("data", "training rows", *(LABELS[name] for name in names), "seconds per fit"), rows)


def leads(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return ours minus the hardest peer for each set and size, over the seeds that both have."""
    found = []
    for of_cell in _grouped(runs):
        ours = _figures(of_cell, OURS)
        peers = {name: differences(ours, _figures(of_cell, name)) for name in LABELS if name != OURS}
        peers = {name: found_of for name, found_of in peers.items() if found_of}
        if peers:
            best = min(peers, key=lambda name: statistics.mean(peers[name]))
            found.append({"runs": of_cell, "peer": best, "differences": peers[best]})
    return found


def leads_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return ours minus the best peer with its spread and verdict."""
    rows = [
        [*_named(each["runs"]), LABELS[each["peer"]], spread(found_of, "+.4f"), str(len(found_of)), verdict(found_of)]
        for each in found
        for found_of in [each["differences"]]
    ]
    return table(("data", "training rows", "best peer", "ours minus it", "seeds", ""), rows)


def summary(found: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> str:
    """Return counts and means of the differences."""
    verdicts = [verdict(each["differences"]) for each in found]
    counts = ", ".join(f"{name} {verdicts.count(name)}" for name in ("ahead", "tie", "behind", "one seed"))
    lines = [f"Of {len(found)} sets and sizes: {counts}."]
    small = [
        statistics.mean(each["differences"])
        for each in found
        if _metric(each["runs"]) == "accuracy" and each["runs"][0]["rows"]["train"] < BELOW
    ]
    if small:
        lines.append(
            f"Accuracy below {BELOW:,} rows: {100 * statistics.mean(small):+.2f} points on the best peer, the mean of "
            f"{len(small)}."
        )
    against = [differences(_figures(cell, OURS), _figures(cell, BASELINE)) for cell in _grouped(runs)]
    below = [verdict(each) for each in against if each].count("behind")
    if any(against):
        lines.append(f"Behind the linear model on embeddings: {below} of {sum(map(bool, against))}.")
    return " ".join(lines)


def _note(runs: Sequence[Run]) -> str:
    cap = runs[0]["test_cap"]
    ours = [run for run in runs if run["contestant"] == OURS]
    others = [run for run in runs if run["contestant"] != OURS]
    return (
        f"Test rows: {f'at most {cap:,} of each set, the same for all' if cap else 'all'}. Mean and standard deviation "
        "over the seeds, which draw the training rows; a draw of other test rows would add to it (a share of .9 of "
        "1,000 rows has a standard error of .009). R2 for numbers, MAP for rankings, accuracy for labels. 8 a class: "
        f"for numbers 8 of each fifth. {stated_origin(ours, others)} "
        f"Device {', '.join(sorted({run['device'] for run in runs}))}."
    )


def _grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each set and size, by set and by rows."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["set"], run["size"]].append(run)
    return sorted(groups.values(), key=lambda each: (each[0]["set"], max(run["rows"]["train"] for run in each)))


def _named(of_cell: Sequence[Run]) -> list[str]:
    first = of_cell[0]
    counts = sorted({run["rows"]["train"] for run in of_cell})
    rows = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    more = {"8": " (8 a class)", "all": " (all)"}.get(first["size"], "")
    return [f"{first['set']}, {_metric(of_cell)}", rows + more]


def _metric(of_cell: Sequence[Run]) -> str:
    return str(next(iter(of_cell[0]["figures"])))


def _figures(of_cell: Sequence[Run], name: str) -> dict[int, float]:
    """Return a contestant's figure for each seed."""
    metric = _metric(of_cell)
    return {run["seed"]: run["figures"][metric] for run in of_cell if run["contestant"] == name}


def _seconds(of_cell: Sequence[Run], name: str) -> str:
    seconds = [run["fit_seconds"] for run in of_cell if run["contestant"] == name]
    return f"{statistics.mean(seconds):,.0f}" if seconds else "-"
