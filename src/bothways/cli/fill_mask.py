"""``bothways fill-mask``: which words may stand in the place of masks, and how likely texts are."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.opening import open_options
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    TEXT,
    Columns,
    File,
    Flag,
    ModelOptions,
    Names,
    PositiveInt,
    ReadingOptions,
    bad_usage,
    usage_error,
)
from bothways.cli.reading import check_output, given_rows, texts_of
from bothways.cli.terminal import counted, note, plain_table, print_json, print_table, progress_beside, rounded

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.tasks.masked_lm.predictions import FilledText, PseudoLikelihood

    Answer = FilledText | PseudoLikelihood

EXAMPLE = """\
Examples:
  bothways fill-mask my-bert/ "Paris is the [MASK] of France." --top 5 --json
  bothways fill-mask runs/adapted "The film was [MASK]."
  bothways fill-mask my-bert/ "The film was [MASK]." --words great terrible
  bothways fill-mask my-bert/ "Paris is in France." --pseudo-likelihood"""


def fill_mask(
    model: str,
    /,
    *texts: str,
    data: File | None = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    output: File = "-",
    top: PositiveInt = 5,
    words: Names | None = None,
    max_pieces: PositiveInt = 1,
    beam: PositiveInt = 16,
    pseudo_likelihood: Flag = False,
    whole_words: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Fill the masks of texts with the likeliest words.

    With one mask of one piece, probabilities are the model's softmax. Several masks are filled together, one after
    the other in several orders; their probability is the mean over the orders, taken of logarithms. Of a text that is
    too long, what stands around its masks is read.

    Args:
        model: A folder or a name of a model with a masked language modelling head, as published BERTs have one; an
            encoder without, such as sentence-transformers/all-MiniLM-L6-v2, gets one from bothways adapt.
        texts: Texts with [MASK], or the tokenizer's own mask, instead of --data.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input. The answers
            are one JSON object a line.
        text: Column of the texts; give it again to join several.
        format: Of the data, where the name does not say it.
        output: With --data, .jsonl (also .gz), replaced if it is there; '-' is standard output.
        top: How many words and fillings, at most.
        words: Only these may fill a mask; they may have several pieces.
        max_pieces: Otherwise, most pieces of a word; with 1 any token may fill a mask.
        beam: Partial fillings that the search keeps.
        pseudo_likelihood: Say how likely whole texts are instead: each token is masked in turn.
        whole_words: With --pseudo-likelihood, also mask the pieces behind it in the same word.
        json: Print one JSON object for each text.
        quiet: Show no progress.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    from bothways.data import write_rows
    from bothways.tasks import FillMask

    if whole_words and not pseudo_likelihood:
        raise usage_error("--whole-words goes with --pseudo-likelihood.")
    if output != "-" and data is None:
        raise usage_error("--output goes with --data.")
    check_output(data, output)
    rows, again = itertools.tee(given_rows(texts, data, text, format))
    with bad_usage():
        task = FillMask.from_pretrained(model, **open_options(reading, opening))
    show = progress_beside(output, quiet=quiet)
    given = texts_of(again, text)
    with bad_usage():
        answers: Iterator[Answer] = (
            task.likelihood_stream(given, whole_words=whole_words, show_progress=show)
            if pseudo_likelihood
            else task.predict_stream(
                given, show_progress=show, top=top, words=words or None, max_pieces=max_pieces, beam=beam
            )
        )
    if data is not None:
        write_rows(output, _with_ids(rows, answers))
        return
    for row, answer in zip(rows, answers, strict=True):
        if json:
            print_json(rounded(answer.to_dict()))
            continue
        _print(str(row.values[text[0]]), answer)
        if answer.dropped_tokens:
            note(f"not read of {row.where}, which is too long: {counted(answer.dropped_tokens, 'token')}.")


def _with_ids(rows: "Iterable[Row]", answers: "Iterable[Answer]") -> Iterator[Mapping[str, object]]:
    for row, answer in zip(rows, answers, strict=True):
        kept = {"id": row.values["id"]} if "id" in row.values else {}
        yield kept | rounded(answer.to_dict())


def _print(text: str, answer: "Answer") -> None:
    from bothways.cli.terminal import printable
    from bothways.tasks.masked_lm.predictions import PseudoLikelihood

    table = plain_table()
    if isinstance(answer, PseudoLikelihood):
        for name in ("log-likelihood", "tokens", "perplexity"):
            table.add_column(name, justify="right")
        table.add_column("text")
        perplexity = "-" if answer.perplexity is None else f"{answer.perplexity:.4f}"
        table.add_row(f"{answer.log_likelihood:.4f}", str(answer.tokens), perplexity, printable(text))
    else:
        table.add_column("probability", justify="right")
        table.add_column("words" if len(answer.masks) > 1 else "word")
        table.add_column("text")
        for filling in answer.fillings:
            words = " ".join(filling.words)
            table.add_row(f"{filling.probability:.4f}", printable(words), printable(filling.text))
    print_table(table)
