"""Success rates and rankings on a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.terminal import counted, note, plain_table, print_table, shortened
from bothways.judging.triples import TripleColumns

if TYPE_CHECKING:
    from bothways.judging import Judge, SystemRanking, SystemScore

_LONGEST_NAME = 32


def write_next(found: "SystemRanking", path: Path, columns: TripleColumns, *, quiet: bool) -> None:
    """Write the rows to label next, and say what they are good for."""
    from bothways.data import write_rows

    count = write_rows(str(path), (each.to_dict(columns) for each in found.next_rows))
    if not quiet:
        note(
            f"{counted(count, 'row')} to label next in {path}. They were not drawn at random: label them to train the "
            "judge, and do not add them to the labels of an estimate."
        )


def show_score(found: "SystemScore", judge: "Judge") -> None:
    """Print a success rate by all methods, and how well the judge agrees with the labels."""
    from bothways.judging.scoring import equivalent_labels

    print(f"{judge.dimension.question} {found.rows:,} rows of {found.system}, {found.estimate.labels:,} labelled")
    table = plain_table()
    table.add_column("method", no_wrap=True)
    for heading in ("rate", f"{found.estimate.level:.0%} interval", "width", "labels it is worth"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in found.estimates.items():
        interval = f"{each.low:.4f} to {each.high:.4f}"
        table.add_row(name, f"{each.value:.4f}", interval, f"{each.high - each.low:.4f}", equivalent_labels(each))
    print_table(table)
    print(f"judge alone {found.judge_mean:.4f}; on the labelled rows:")
    print(found.quality.summary())
    for warning in found.warnings:
        note(f"warning: {warning}")


def show_ranking(found: "SystemRanking", judge: "Judge") -> None:
    """Print the systems in order, and how sure the order is."""
    from bothways.judging.scoring import equivalent_labels

    print(judge.dimension.question)
    table = plain_table()
    table.add_column("system", no_wrap=True)
    truth = ("truth",) if found.truth else ()
    for heading in ("rate", "interval", *truth, "labels", "worth", "judge alone", "better than the next"):
        table.add_column(heading, justify="right", no_wrap=True)
    for at, each in enumerate(found.systems):
        estimate, below = each.estimate, found.systems[at + 1 : at + 2]
        sure = f"{found.probability(each.system, below[0].system):.3f}" if below else ""
        cells = [f"{estimate.value:.4f}", f"{estimate.low:.4f} to {estimate.high:.4f}"]
        cells += [f"{found.truth[each.system]:.4f}"] if found.truth else []
        cells += [str(estimate.labels), equivalent_labels(estimate), f"{each.judge_mean:.4f}", sure]
        table.add_row(shortened(each.system, _LONGEST_NAME), *cells)
    print_table(table)
    if len(found.systems) > 1:
        print(_separation(found))
    if found.tau is not None:
        print(f"Kendall's tau with the truth: {found.tau:.3f}")
    for warning in found.warnings:
        note(f"warning: {warning}")


def _separation(found: "SystemRanking") -> str:
    """Return the probability that the first is better than the second, and the labels that would separate them."""
    first = found.comparisons[0]
    gap = first.difference
    line = (
        f"{first.first} is better than {first.second} with probability {first.probability:.3f}: difference "
        f"{gap.value:+.4f}, from {gap.low:+.4f} to {gap.high:+.4f} ({first.pairing})."
    )
    if found.separating_labels is None:
        return f"{line}\nEven labels of all rows would not separate them, if the difference is as it looks now."
    if found.separating_labels == 0:
        return f"{line}\nThe interval leaves out 0: no further labels are needed to separate them."
    return (
        f"{line}\nAbout {found.separating_labels:,} more labels of each, drawn at random, would separate them, if the "
        "difference is as it looks now."
    )
