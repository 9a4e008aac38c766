"""``bothways tokenize``, ``bothways tokenizer`` and ``bothways mask``: texts as tokens, and masks."""

import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bothways import checkpoints
from bothways import text as tokenizing
from bothways.choices import MaskUnit, TokenizerKind
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, print_json, print_table, printable
from bothways.data import Row, corpus_files, read_documents
from bothways.progress import progress
from bothways.storage import check_folder_free, new_folder
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from rich.text import Text

    from bothways.objectives.masking import MaskedTokens
    from bothways.text import TextTokenizer, TokenizerSummary

_BLOCK = 1024  # texts that are tokenized at once
_PINNED = re.compile(r"(?P<name>.+)@(?P<commit>[0-9a-f]{40})")
_LONGEST_WORD, _MOST_PIECES = 30, 12

Download = Annotated[bool, Parameter(show_default=False, help="Download the model from the hub if it is not local.")]

_TOKENIZE_EXAMPLE = """\
Examples:
  bothways tokenize sentence-transformers/all-MiniLM-L6-v2 "unbelievable"
  bothways tokenize sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz
  bothways tokenize "unbelievable" \\
    --compare sentence-transformers/all-MiniLM-L6-v2 models/xlnet"""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a text, special tokens included, and the number of windows that it needs."""

    count: int
    windows: int
    tokens: list[str]
    ids: list[int]


@opt.command(_TOKENIZE_EXAMPLE)
def tokenize(
    model: str | None = None,
    *texts: str,
    compare: opt.Names | None = None,
    data: opt.File | None = None,
    text: opt.TrainedTextColumns = None,
    file: opt.FileOptions = opt.ANY_FILE,
    max_length: opt.PositiveInt | None = None,
    json: opt.Flag = False,
    revision: opt.Revision = None,
    download: Download = False,
    threads: opt.Threads = None,
) -> None:
    """Tokenize texts and count their tokens.

    Texts longer than the model's window are marked.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2; not with --compare.
        texts: Texts whose tokens are shown.
        compare: Folders or names of models whose tokenizers are compared; NAME@COMMIT names a commit on the hub.
        data: Rows to count tokens of, not TEXTS: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for stdin.
        max_length: Maximum tokens per window, special tokens included. Default: the model's limit.
        json: Print a JSON object for each text, with count, windows, tokens and ids; with --compare, one for all texts.
    """
    choose_threads(threads)
    if compare is not None:
        if max_length is not None or revision is not None:
            raise opt.usage_error(
                "--max-length and --revision cannot be used with --compare: pin a name as NAME@COMMIT."
            )
        texts, columns = texts if model is None else (model, *texts), text or opt.TEXT
        rows = inputs.given_rows(texts, data, columns, file)
        _compare(compare, rows, columns, in_full=data is None, download=download, json=json)
        return
    if model is None:
        raise opt.usage_error("expected a model: a folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.")
    inputs.check_given(texts, data)
    tokenizer, own_limit = checkpoints.open_tokenizer(model, revision=revision, download=download)
    limit, read = max_length or own_limit, iter(texts)
    if data is not None:
        trained = inputs.trained_columns(model, opt.ModelOptions(revision=revision, download=download))
        read = inputs.input_texts(inputs.file_rows(data, file), text, trained)
    tokenized = _tokenized(tokenizer, read, limit)
    if json:
        for each in tokenized:
            print_json(asdict(each))
    elif data is not None:
        _print_counts(tokenized, limit)
    else:
        for each in tokenized:
            print(f"tokens  {' '.join(printable(token) for token in each.tokens)}")
            print(f"ids     {' '.join(map(str, each.ids))}")
            too_long = f", more than the limit of {limit}: read in {each.windows} windows" if each.windows > 1 else ""
            print(f"count   {each.count}{too_long}\n")


def _tokenized(tokenizer: "TextTokenizer", texts: Iterable[str], limit: int | None) -> Iterator[Tokenized]:
    remaining = iter(texts)
    while block := list(itertools.islice(remaining, _BLOCK)):
        whole = tokenizer.encode(block, max_length=sys.maxsize)
        windows = whole if limit is None else tokenizer.encode(block, max_length=limit, on_overflow="window")
        for one, several in zip(whole, windows, strict=True):
            ids = one.windows[0].ids
            yield Tokenized(len(ids), len(several.windows), tokenizer.tokens(ids), ids)


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


def _compare(
    names: tuple[str, ...], rows: Iterable[Row], text: tuple[str, ...], *, in_full: bool, download: bool, json: bool
) -> None:
    """Compare how several tokenizers split the same texts; with ``in_full``, print the tokens of each text too."""
    if len(set(names)) < max(2, len(names)):
        raise opt.usage_error(f"--compare needs at least two different models, got {' '.join(names) or 'none'}.")
    tokenizers = {name: _open_pinned(name, download) for name in names}
    texts: Iterable[str] = inputs.texts_of(rows, text)
    shown: list[tuple[str, dict[str, tuple[str, ...]]]] = []
    if in_full:
        texts = list(texts)
        shown = [(each, {name: tokenizing.text_pieces(tokenizers[name], each) for name in names}) for each in texts]
    summaries = tokenizing.compare_tokenizers(tokenizers, texts)
    if json:
        print_json(
            {
                "texts": [{"text": each, "pieces": pieces} for each, pieces in shown],
                "tokenizers": [_summary_as_json(summary) for summary in summaries],
            }
        )
        return
    for each, pieces in shown:
        split = [(printable(name), str(len(parts)), " ".join(map(printable, parts))) for name, parts in pieces.items()]
        print_table(("<tokenizer", ">pieces", f"~{printable(each)}"), split)
        print()
    _print_summaries(summaries)


def _open_pinned(name: str, download: bool) -> "TextTokenizer":
    pinned = _PINNED.fullmatch(name)
    plain, commit = (pinned["name"], pinned["commit"]) if pinned else (name, None)
    return checkpoints.open_tokenizer(plain, revision=commit, download=download)[0]


def _summary_as_json(summary: "TokenizerSummary") -> dict[str, object]:
    return {
        **asdict(summary),
        "pieces_per_word": summary.pieces_per_word,
        "characters_per_piece": summary.characters_per_piece,
        "unknown_rate": summary.unknown_rate,
        "unknown_word_rate": summary.unknown_word_rate,
        "used_share": summary.used_share,
    }


def _print_summaries(summaries: "Sequence[TokenizerSummary]") -> None:
    headings = (">pieces", ">pieces/word", ">chars/piece", ">unknown", ">unk. words", ">vocabulary", ">used")
    rows = [
        (
            printable(each.name),
            f"{each.pieces:,}",
            f"{each.pieces_per_word:.2f}",
            f"{each.characters_per_piece:.2f}",
            f"{each.unknown_rate:.2%}",
            f"{each.unknown_word_rate:.2%}",
            f"{each.vocabulary:,}",
            f"{each.used_share:.1%}",
        )
        for each in summaries
    ]
    print_table(("~tokenizer", *headings), rows)
    print("\nunknown: share of pieces; unk. words: share of words with such a piece; white space ends a word.")
    if not any(each.most_cut for each in summaries):
        return
    print()
    words = []
    for each in summaries:
        for number, word in enumerate(each.most_cut):
            pieces = [printable(piece) for piece in word.pieces[:_MOST_PIECES]]
            more = ["..."] if len(word.pieces) > _MOST_PIECES else []
            shown = printable(word.word)
            shown = shown if len(shown) <= _LONGEST_WORD else shown[: _LONGEST_WORD - 3] + "..."
            name = "" if number else printable(each.name)
            words.append((name, shown, str(len(word.pieces)), " ".join(pieces + more)))
    print_table(("~tokenizer", "<words with the most pieces", ">pieces", "~"), words)


_TRAIN_EXAMPLE = """\
Plain text has one paragraph per line, and an empty line after each document;
rows of .jsonl, .csv, .tsv and .parquet are documents.

Examples:
  bothways tokenizer train --kind wordpiece --vocabulary 8000 \\
    --data texts.txt.gz --output tok/
  bothways tokenize "unbelievable" \\
    --compare tok/ sentence-transformers/all-MiniLM-L6-v2"""


class _Texts:
    """The texts of files, as an iterable that can be read several times."""

    def __init__(self, files: Sequence[Path], text: tuple[str, ...], file: opt.FileOptions) -> None:
        self._files, self._text, self._file = files, text, file
        self.documents = 0

    def __iter__(self) -> Iterator[str]:
        self.documents = 0
        with progress("reading documents", None) as bar:
            own = self._file
            for path in self._files:
                for document in read_documents(path, text=self._text, **own.settings(path)):
                    self.documents += 1
                    bar.advance()
                    yield document.text


@opt.command(_TRAIN_EXAMPLE)
def train(
    *,
    data: opt.Names,
    output: Path,
    kind: TokenizerKind = "wordpiece",
    vocabulary: opt.PositiveInt = 30_000,
    lowercase: Annotated[bool | None, Parameter(negative="--no-lowercase")] = None,
    text: opt.TextColumns = opt.TEXT,
    file: opt.FileOptions = opt.ANY_FILE,
    overwrite: opt.Flag = False,
    json: opt.Json = False,
    threads: opt.Threads = None,
) -> None:
    """Train a tokenizer on raw texts.

    The tokenizer is for pre-training models; transformers can open it too.

    Args:
        data: Files, or folders of files: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.
        output: Folder for the tokenizer.
        kind: wordpiece (BERT, ELECTRA), bpe on bytes (RoBERTa, ModernBERT) or unigram (ALBERT, XLNet,
            DeBERTa-v3).
        vocabulary: Number of tokens, special tokens included.
        lowercase: Lower-case texts and strip accents. Default: only for wordpiece.
        overwrite: Replace a tokenizer at the output.
    """
    from bothways.text.training import TOKENIZER, check_vocabulary, train_tokenizer, write_trained_tokenizer

    choose_threads(threads)
    if not data:
        raise opt.usage_error("--data needs at least one file or folder.")
    with opt.as_usage_error():
        check_vocabulary(kind, vocabulary)
    check_folder_free(output, overwrite=overwrite, kind=TOKENIZER)
    texts = _Texts(list(corpus_files(data)), text, file)
    trained = train_tokenizer(texts, kind, vocabulary, lowercase=lowercase)
    with new_folder(output, overwrite=overwrite, kind=TOKENIZER) as folder:
        write_trained_tokenizer(trained, folder)
    tokens = trained.get_vocab_size()
    if json:
        print_json({"kind": kind, "vocabulary": tokens, "documents": texts.documents, "output": str(output)})
    else:
        fewer = f", fewer than {vocabulary:,} as the texts have no more" if tokens < vocabulary else ""
        note(f"{tokens:,} tokens{fewer}, from {counted(texts.documents, 'document')}, in {output}")
        note(f"next: bothways tokenize {shlex.quote(str(output))} 'some words'")


tokenizer = App(name="tokenizer", help="Train tokenizers on your own texts.")
tokenizer.command(train)

_MASK_EXAMPLE = """\
Example:
  bothways mask "The cat sat on the mat" --epochs 3 \\
    --model sentence-transformers/all-MiniLM-L6-v2"""

# Styles of the chosen tokens, by the replacement of the token.
_STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold green"}


@opt.command(_MASK_EXAMPLE)
def mask(
    model: str,
    *texts: str,
    epochs: opt.PositiveInt = 3,
    unit: MaskUnit = "token",
    fraction: opt.Share = 0.15,
    seed: opt.WholeNumber = 0,
    json: opt.Flag = False,
    revision: opt.Revision = None,
    download: Download = False,
) -> None:
    """Show static and dynamic masks of a text by epoch.

    Masked language modelling predicts the chosen tokens; static masks choose the same ones in each epoch. On a
    terminal, tokens are red if replaced by the mask token, yellow if replaced by another token, and green if left
    unchanged. Elsewhere, they are in asterisks.

    Args:
        model: A folder of a model or of a tokenizer, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        texts: One text to mask.
        epochs: Number of epochs to show.
        unit: Unit that is masked as a whole: a token, a word, a span of words, or an n-gram.
        fraction: Share of the tokens to choose for masking.
        seed: Random seed of the masks.
        json: Print one JSON object for each epoch.
    """
    import numpy as np

    from bothways.objectives.masking import MASKED_UNITS, Masker, Masking

    if len(texts) != 1:
        raise opt.usage_error(f"expected one text to mask, got {len(texts)}.")
    inputs.check_typed(texts)
    tokenizer, _ = checkpoints.open_tokenizer(model, revision=revision, download=download)
    (encoded,) = tokenizer.encode(texts, max_length=sys.maxsize)
    ids = np.array(encoded.windows[0].ids, dtype=np.int32)
    with opt.as_usage_error():
        maskings = [Masking(fraction, unit=MASKED_UNITS[unit](), dynamic=dynamic) for dynamic in (False, True)]
    maskers = [Masker(tokenizer, masking, seed) for masking in maskings]
    rows = [[masker.training(ids, epoch, 0) for masker in maskers] for epoch in range(epochs)]
    if json:
        for epoch, (static, dynamic) in enumerate(rows, start=1):
            print_json({"epoch": epoch, "static": _as_json(tokenizer, static), "dynamic": _as_json(tokenizer, dynamic)})
        return
    coloured = (
        (str(epoch), _coloured(tokenizer, static), _coloured(tokenizer, dynamic))
        for epoch, (static, dynamic) in enumerate(rows, start=1)
    )
    print_table((">epoch", "~static masks", "~dynamic masks"), coloured)
    shown = "red masked, yellow another token, green unchanged" if sys.stdout.isatty() else "in asterisks"
    note(f"{len(rows[0][0].places_M)} of {len(ids)} tokens are chosen: {shown}.")


def _fates(masked: "MaskedTokens", mask_id: int) -> Mapping[int, str]:
    """Map the position of each chosen token to masked, random or kept."""
    read_M = masked.ids_n[masked.places_M]
    return {
        place: "masked" if read == mask_id else "kept" if read == target else "random"
        for place, read, target in zip(
            masked.places_M.tolist(), read_M.tolist(), masked.targets_M.tolist(), strict=True
        )
    }


def _as_json(tokenizer: "TextTokenizer", masked: "MaskedTokens") -> dict[str, object]:
    fates, targets = _fates(masked, tokenizer.mask_id), tokenizer.tokens(masked.targets_M.tolist())
    chosen = zip(fates.items(), targets, strict=True)
    return {
        "tokens": tokenizer.tokens(masked.ids_n.tolist()),
        "chosen": [{"place": place, "token": token, "becomes": fate} for (place, fate), token in chosen],
    }


def _coloured(tokenizer: "TextTokenizer", masked: "MaskedTokens") -> "Text":
    from rich.text import Text

    around, fates = "" if sys.stdout.isatty() else "*", _fates(masked, tokenizer.mask_id)
    return Text(" ").join(
        Text(f"{around}{printable(token)}{around}", _STYLES[fates[place]]) if place in fates else Text(printable(token))
        for place, token in enumerate(tokenizer.tokens(masked.ids_n.tolist()))
    )
