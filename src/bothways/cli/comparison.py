"""Several tokenizers side by side, for ``bothways tokenize --compare``."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.cli.opening import open_tokenizer
from bothways.cli.options import usage_error
from bothways.cli.reading import texts_of
from bothways.cli.terminal import plain_table, print_json, print_table, printable

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.text import TextTokenizer, TokenizerSummary

_PINNED = re.compile(r"(?P<name>.+)@(?P<commit>[0-9a-f]{40})")
_RATES = ("pieces_per_word", "characters_per_piece", "unknown_rate", "unknown_word_rate", "used_share")
_SHOWN_WORD = 30
_SHOWN_PIECES = 12


def print_comparison(
    names: tuple[str, ...],
    rows: "Iterable[Row]",
    text: tuple[str, ...],
    *,
    in_full: bool,
    download: bool,
    json: bool,
) -> None:
    """Print what the tokenizers of several models make of the same rows.

    Raises:
        CycloptsError: There are fewer than two names, or one is there twice.
    """
    from bothways.text import compare_tokenizers, text_pieces

    if len(set(names)) < max(2, len(names)):
        raise usage_error(f"--compare needs at least two models, each named once; got {' '.join(names) or 'none'}.")
    tokenizers = {name: _open(name, download) for name in names}
    texts: Iterable[str] = texts_of(rows, text)
    shown: list[tuple[str, dict[str, tuple[str, ...]]]] = []
    if in_full:
        texts = list(texts)
        shown = [(each, {name: text_pieces(tokenizers[name], each) for name in names}) for each in texts]
    summaries = compare_tokenizers(tokenizers, texts)
    if json:
        print_json(
            {
                "texts": [{"text": each, "pieces": pieces} for each, pieces in shown],
                "tokenizers": [_as_json(summary) for summary in summaries],
            }
        )
        return
    for each, pieces in shown:
        _print_pieces(each, pieces)
    _print_rates(summaries)
    _print_most_cut(summaries)


def _open(name: str, download: bool) -> "TextTokenizer":
    pinned = _PINNED.fullmatch(name)
    plain, commit = (pinned["name"], pinned["commit"]) if pinned else (name, None)
    return open_tokenizer(plain, revision=commit, download=download)[0]


def _as_json(summary: "TokenizerSummary") -> dict[str, object]:
    return {**asdict(summary), **{rate: getattr(summary, rate) for rate in _RATES}}


def _print_pieces(text: str, pieces: dict[str, tuple[str, ...]]) -> None:
    table = plain_table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("text", "", printable(text))
    for name, cut in pieces.items():
        table.add_row(printable(name), str(len(cut)), " ".join(map(printable, cut)))
    print_table(table)
    print()


def _print_rates(summaries: "tuple[TokenizerSummary, ...]") -> None:
    table = plain_table()
    table.add_column("tokenizer", overflow="fold")
    for heading in ("pieces", "pieces/word", "chars/piece", "unknown", "unk. words", "vocabulary", "used"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in summaries:
        table.add_row(
            printable(each.name),
            f"{each.pieces:,}",
            f"{each.pieces_per_word:.2f}",
            f"{each.characters_per_piece:.2f}",
            f"{each.unknown_rate:.2%}",
            f"{each.unknown_word_rate:.2%}",
            f"{each.vocabulary:,}",
            f"{each.used_share:.1%}",
        )
    print_table(table)
    print("\nunknown: share of pieces; unk. words: share of words with such a piece; white space ends a word.")


def _print_most_cut(summaries: "tuple[TokenizerSummary, ...]") -> None:
    if not any(each.most_cut for each in summaries):
        return
    print("\nWords of most pieces\n")
    table = plain_table()
    table.show_header = False
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for each in summaries:
        for number, cut in enumerate(each.most_cut):
            pieces = [printable(piece) for piece in cut.pieces[:_SHOWN_PIECES]]
            more = ["..."] if len(cut.pieces) > _SHOWN_PIECES else []
            name = "" if number else printable(each.name)
            table.add_row(name, _shortened(cut.word), str(len(cut.pieces)), " ".join(pieces + more))
    print_table(table)


def _shortened(word: str) -> str:
    shown = printable(word)
    return shown if len(shown) <= _SHOWN_WORD else shown[: _SHOWN_WORD - 3] + "..."
