"""``bothways tokenize``: what a model's tokenizer makes of texts, or several side by side."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.opening import open_tokenizer
from bothways.cli.options import TEXT, Columns, File, Flag, Names, PositiveInt, usage_error
from bothways.cli.reading import given_rows, texts_of
from bothways.cli.terminal import plain_table, print_json, print_table, printable
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.text import TextTokenizer, TokenizerSummary

EXAMPLE = """\
Examples:
  bothways tokenize sentence-transformers/all-MiniLM-L6-v2 "unbelievable"
  bothways tokenize sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz
  bothways tokenize "unbelievable" \\
    --compare sentence-transformers/all-MiniLM-L6-v2 models/xlnet"""

_BLOCK = 1024
_PINNED = re.compile(r"(?P<name>.+)@(?P<commit>[0-9a-f]{40})")
_RATES = ("pieces_per_word", "characters_per_piece", "unknown_rate", "unknown_word_rate", "used_share")
_SHOWN_WORD = 30
_SHOWN_PIECES = 12


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A text as the model sees it, special tokens included."""

    count: int
    windows: int
    tokens: list[str]
    ids: list[int]


def tokenize(
    model: str | None = None,
    /,
    *texts: str,
    compare: Names | None = None,
    data: File | None = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    max_length: PositiveInt | None = None,
    json: Flag = False,
    revision: str | None = None,
    download: Flag = False,
    threads: PositiveInt | None = None,
) -> None:
    """Tokenize texts and count their tokens.

    Texts that are longer than the model reads at once are marked.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2; not with --compare.
        texts: Texts to show in full.
        compare: Models whose tokenizers to set side by side; a name on the hub is pinned as NAME@COMMIT.
        data: Rows to count instead: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for standard input.
        text: Column of the texts; give it again to join several.
        format: Of the data, where the name does not say it.
        max_length: The limit to hold texts against, special tokens included; the model's own when left out.
        json: Print one JSON object for each text: count, windows, tokens, ids; with --compare, one for all.
        revision: Commit (40 hexadecimal digits) of a name on the model hub; by default the one that its download
            resolved.
        download: Fetch the model from the hub if it is not here.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    choose_threads(threads)
    if compare is not None:
        if max_length is not None or revision is not None:
            raise usage_error("--max-length and --revision have no part in a comparison; pin a name as NAME@COMMIT.")
        rows = given_rows(texts if model is None else (model, *texts), data, text, format)
        _print_comparison(compare, rows, text, in_full=data is None, download=download, json=json)
        return
    if model is None:
        raise usage_error("give a model: a folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.")
    rows = given_rows(texts, data, text, format)
    tokenizer, own_limit = open_tokenizer(model, revision=revision, download=download)
    limit = max_length or own_limit
    tokenized = _tokenized(tokenizer, texts_of(rows, text), limit)
    if json:
        for each in tokenized:
            print_json(asdict(each))
    elif data is not None:
        _print_counts(tokenized, limit)
    else:
        for each in tokenized:
            _print_in_full(each, limit)


def _tokenized(tokenizer: "TextTokenizer", texts: Iterable[str], limit: int | None) -> Iterator[Tokenized]:
    import itertools
    import sys

    remaining = iter(texts)
    while block := list(itertools.islice(remaining, _BLOCK)):
        whole = tokenizer.encode(block, max_length=sys.maxsize)
        cut = whole if limit is None else tokenizer.encode(block, max_length=limit, on_overflow="window")
        for one, windows in zip(whole, cut, strict=True):
            ids = one.windows[0].ids
            yield Tokenized(len(ids), len(windows.windows), tokenizer.tokens(ids), ids)


def _print_in_full(text: Tokenized, limit: int | None) -> None:
    print(f"tokens  {' '.join(printable(token) for token in text.tokens)}")
    print(f"ids     {' '.join(map(str, text.ids))}")
    too_long = f", more than the limit of {limit}: read in {text.windows} windows" if text.windows > 1 else ""
    print(f"count   {text.count}{too_long}\n")


def _print_counts(texts: Iterable[Tokenized], limit: int | None) -> None:
    counts: list[int] = []
    too_long = 0
    for text in texts:
        counts.append(text.count)
        too_long += text.windows > 1
    counts.sort()
    print(f"texts    {len(counts):,}")
    print(f"tokens   {sum(counts):,}")
    print(f"mean     {sum(counts) / len(counts):.1f}")
    print(f"median   {counts[len(counts) // 2]:,}")
    print(f"longest  {counts[-1]:,}")
    if limit is not None:
        print(f"longer than {limit:,}: {too_long:,} ({too_long / len(counts):.1%})")


def _print_comparison(
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
    tokenizers = {name: _open_pinned(name, download) for name in names}
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
                "tokenizers": [_summary_as_json(summary) for summary in summaries],
            }
        )
        return
    for each, pieces in shown:
        _print_pieces(each, pieces)
    _print_rates(summaries)
    _print_most_cut(summaries)


def _open_pinned(name: str, download: bool) -> "TextTokenizer":
    pinned = _PINNED.fullmatch(name)
    plain, commit = (pinned["name"], pinned["commit"]) if pinned else (name, None)
    return open_tokenizer(plain, revision=commit, download=download)[0]


def _summary_as_json(summary: "TokenizerSummary") -> dict[str, object]:
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
