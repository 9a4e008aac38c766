"""``bothways predict``, ``bothways fill-mask``, ``bothways embed`` and ``bothways schema``."""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from bothways import compose, jobs, tasks
from bothways.choices import OnEmpty
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.predictions.jobs import NO_JOB, JobOptions, run_job
from bothways.cli.predictions.output_files import prediction_table, vector_writer
from bothways.cli.printing import (
    counted,
    note,
    on_terminal,
    print_json,
    print_rows,
    print_table,
    printable,
    progress_beside,
)
from bothways.data import Row, text_at, with_gaps, with_text, write_rows
from bothways.errors import EmptyInput, UnknownModel, did_you_mean
from bothways.progress import figure, rounded
from bothways.tasks import embedding
from bothways.tasks.columns import column_names
from bothways.tasks.embedding.spec import PromptOptions
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.registry import SPECS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bothways.tasks.masked_lm.outputs import FilledText
    from bothways.tasks.masked_lm.pseudo_likelihood import PseudoLikelihood
    from bothways.tasks.task import AnyTask

    Answer = FilledText | PseudoLikelihood

_EXAMPLE = """\
Examples:
  bothways predict runs/news "Lakers win in overtime"
  bothways predict runs/news --data test.jsonl.gz --output out.jsonl
  bothways predict runs/news "Lakers win in overtime" --coverage 0.95 --top 3
  bothways predict runs/qa "Who won?" "In 2016 the Broncos won." --top 3
  bothways predict runs/ner --data test.jsonl --output out.conll --scheme BIOES

Single-label classifiers set "out_of_domain" for texts that are unlike their
training data: do not rely on the labels of such texts."""


@opt.command(
    _EXAMPLE,
    options=opt.group_of("Predictions", opt.of_all_tasks(lambda spec: [spec.predict_options])),
    columns=opt.column_options(),
    opened=opt.opening_options("labels"),
)
def predict(
    model: str,
    *texts: str,
    data: opt.File | None = None,
    output: opt.File = "-",
    overwrite: opt.Overwrite = False,
    keep: opt.Flag = False,
    on_empty: OnEmpty = "error",
    file: opt.FileOptions = opt.ANY_FILE,
    json: opt.Flag = False,
    task: str | None = None,
    options: object = None,
    columns: object = None,
    opened: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
    job: JobOptions = NO_JOB,
) -> None:
    """Predict with a trained model.

    Prints a table on a terminal, else one JSON object per line. Probabilities are calibrated if the model is.

    Args:
        model: Folder of a trained model.
        texts: Texts, instead of --data; two for a model of text pairs, a question and a context for question answering.
        data: Rows: .jsonl, .json, .csv, .tsv, .txt, .conll (also .gz), .parquet, or '-' for JSON Lines on stdin.
        output: Output file: .jsonl, .csv, .tsv or, for taggers, .conll (also .gz); '-' is standard output. Tables
            (.csv, .tsv) have columns for the texts, for the probability of each label (with --top, of each rank), and
            for the id if the first row has one. Tables of spans, or of answers with --top, have one row per span or
            answer; their column "row" is the number of the input row.
        keep: Copy all input columns to the output; those with the name of a result get the prefix 'input_'.
        on_empty: What to do with a row without a text: fail (error), leave it out (skip), or predict null.
        json: Print JSON Lines on a terminal too.
        task: Name of one task of a multi-task model. Default: all. For a classifier of another program: classification
            or pairs, if its files do not say what it reads.
    """
    inputs.check_given(texts, data)
    if job.output_dir is not None:
        asked, own = opt.given_of(options), {**inputs.open_options(reading, opening), **opt.given_of(opened)}
        work = jobs.Predict(model, task, keep, on_empty, opt.given_of(columns), asked, own)
        run_job(work, job, data, file, opening, output)
        return
    inputs.check_output(output, overwrite, data)
    shown, named = on_terminal(output, json=json), opt.given_of(columns)
    trained = inputs.with_columns(inputs.open_task(model, opt.given_of(opened), reading, opening, task), named)
    with opt.as_usage_error(*(given := opt.given_of(options))):
        table = prediction_table(trained, output, given, keep=keep, on_empty=on_empty, shown=shown)
        own = trained.fitted.columns
        read = None if keep else own.input_columns
        source = inputs.typed_rows(own.rows_of(texts)) if data is None else inputs.file_rows(data, file, read)
        rows, again = itertools.tee(source)
        # Rows without a text are dropped while writing, since inputs and predictions must stay aligned.
        answer = trained.predict_stream if on_empty == "error" else partial(tasks.predict_or_none, trained)
        predictions = answer(again, show_progress=progress_beside(output), **given)
    tally: Counter[str] = Counter()
    with _advising_on_empty():
        written = table.rows(rows, _tallied(predictions, tally))
        count = print_rows(written) if shown else write_rows(output, written, format=table.format, overwrite=True)
    _note_predictions(count, table.listed, tally, output, on_empty)
    _note_uncalibrated(trained)


def _note_predictions(count: int, listed: str | None, tally: Counter[str], output: str, on_empty: OnEmpty) -> None:
    if output != "-":
        items = f"{counted(count, listed[:-1])} of " if listed else ""
        note(f"{items}{counted(tally['predicted'], 'prediction')} in {output}")
    _note_empty(tally, "predictions", on_empty)


@contextmanager
def _advising_on_empty() -> Iterator[None]:
    try:
        yield
    except EmptyInput as error:
        raise EmptyInput(f"{error} {inputs.SKIP_EMPTY}") from error


def _tallied(predictions: Iterable[Any], tally: Counter[str]) -> Iterator[Any]:
    for each in predictions:
        tally["empty" if each is None else "predicted"] += 1
        yield each


def _note_empty(tally: Counter[str], results: str, on_empty: OnEmpty) -> None:
    if tally["empty"]:
        outcome = "left out" if on_empty == "skip" else f"their {results} are null"
        note(f"{counted(tally['empty'], 'row')} without a text: {outcome}.")


def _note_uncalibrated(model: "AnyTask") -> None:
    """Note the tasks of a model whose probabilities are not calibrated."""
    bare = [
        name
        for name, each in (compose.parts_of(model) or {"this model": model}).items()
        if "calibrated" in column_names(each.spec.predict_options)
        and each.confidence.calibration is None
        and each.labels != tasks.Regression.labels
    ]
    if bare:
        note(f"the probabilities of {', '.join(bare)} are not calibrated on held-out rows.")


_EMBED_EXAMPLE = """\
Examples:
  bothways embed sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --output vectors.npy
  bothways embed ./e5 --data queries.jsonl --prompt "query: " --output q.npy"""


@opt.command(
    _EMBED_EXAMPLE,
    vectors=opt.vector_options(),
    prompting=opt.group_of("Vectors: prompt", opt.options_of(PromptOptions)),
)
def embed(
    model: str,
    *,
    data: opt.Files,
    output: opt.File | None = None,
    overwrite: opt.Overwrite = False,
    text: opt.TrainedTextColumns = None,
    on_empty: OnEmpty = "error",
    file: opt.FileOptions = opt.ANY_FILE,
    json: opt.Json = False,
    vectors: object = None,
    prompting: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
    job: JobOptions = NO_JOB,
) -> None:
    """Embed texts as vectors.

    The vectors have unit length, unless the model says otherwise.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input; with
            --output-dir also a folder, a pattern or a URL; repeat the option for several.
        output: A .npy file (float32, one row per text) or .jsonl (also .gz).
        on_empty: What to do with a row without a text: fail (error), leave it out (skip), or write null (in .npy, a row
            of NaN). A note counts such rows.
    """
    if job.output_dir is not None:
        text = inputs.text_columns(text, inputs.trained_columns(model, opening))
        own, asked = {**inputs.open_options(reading, opening), **opt.given_of(vectors)}, opt.given_of(prompting)
        work = jobs.Embed(model, text, asked.get("prompt"), asked.get("prompt_name"), on_empty, own)
        run_job(work, job, data, file, opening, output)
        return
    if output is None or len(data) != 1:
        missing = "--output with a file" if output is None else f"one file of --data, got {len(data)}"
        raise opt.usage_error(f"expected {missing}; or, for many files, --output-dir with a folder.")
    write = vector_writer(output)
    inputs.check_output(output, overwrite, data[0])
    embedder = inputs.open_embedder(model, opt.given_of(vectors), reading, opening)
    with opt.as_usage_error():
        prompt = embedder.fitted.settings.prompt_of(**opt.given_of(prompting))
    text = inputs.text_columns(text, inputs.trained_columns(model, opening))
    rows, tally = inputs.given_rows((), data[0], text, file, columns=text), Counter[str]()
    if on_empty == "error":
        encoded = embedder.encode_stream(inputs.texts_of(rows, text), prompt=prompt)
    else:
        waiting: deque[bool] = deque()
        texts = with_text(lambda row: text_at(row, text), rows, waiting)
        gapped = with_gaps(embedder.encode_stream(texts, prompt=prompt), waiting)
        encoded = _filled(gapped, embedder.dimensions, on_empty, tally)
    with _advising_on_empty():
        count = write(output, encoded, embedder.dimensions)
    _note_empty(tally, "vectors", on_empty)
    if json:
        print_json({"vectors": count, "dimensions": embedder.dimensions, "prompt": prompt, "output": output})
    else:
        note(f"{counted(count, 'vector')} of {embedder.dimensions} dimensions in {output}")
    _note_prompt(embedder, prompt)


def _note_prompt(embedder: "tasks.SentenceEmbedder", prompt: str) -> None:
    """Print the prompt in use, and prompts that the model or its card names if none of them is."""
    own = {name: text for name, text in embedder.fitted.settings.prompts.items() if text}
    if prompt:
        note(f"prompt before each text: {prompt!r}")
    elif own:
        note(f"no prompt before the texts; the model has prompts named {', '.join(own)} (--prompt-name).")
    if not own and (remark := embedding.note_of_card(embedder.name, {"query": prompt, "document": prompt})):
        note(f"{remark} Add one with --prompt.")


def _filled(
    gapped: "Iterable[NDArray[np.float32] | None]", dimensions: int, on_empty: OnEmpty, tally: Counter[str]
) -> "Iterator[NDArray[np.float32]]":
    """Yield the vectors; rows without a text are left out (``skip``) or become NaN (``null``)."""
    import numpy as np

    for vector_D in gapped:
        tally["empty"] += vector_D is None
        if vector_D is not None:
            yield vector_D
        elif on_empty == "null":
            yield np.full(dimensions, np.nan, dtype=np.float32)


_FILL_EXAMPLE = """\
Examples:
  bothways fill-mask my-bert/ "Paris is the [MASK] of France." --top 5 --json
  bothways fill-mask runs/adapted "The film was [MASK]."
  bothways fill-mask my-bert/ "The film was [MASK]." --words great terrible
  bothways fill-mask my-bert/ "Paris is in France." --pseudo-likelihood"""


@opt.command(
    _FILL_EXAMPLE,
    filling=opt.group_of(
        "Predictions", [each for each in opt.options_of(MASKED_LM.predict_options) if each.name != "words"]
    ),
)
def fill_mask(
    model: str,
    *texts: str,
    data: opt.File | None = None,
    text: opt.TrainedTextColumns = None,
    file: opt.FileOptions = opt.ANY_FILE,
    output: opt.File = "-",
    overwrite: opt.Overwrite = False,
    words: opt.Names | None = None,
    filling: object = None,
    pseudo_likelihood: opt.Flag = False,
    whole_words: opt.Flag = False,
    json: opt.Flag = False,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
    job: JobOptions = NO_JOB,
) -> None:
    """Fill the masks of texts with the likeliest words.

    For one mask and words of one token, probabilities are the model's softmax. Several masks are filled one after the
    other, in several orders; the probability of a filling is its geometric mean over the orders. Of a text longer than
    the model's limit, only the part around the masks is read.

    Args:
        model: A folder or name of a model with a masked LM head, such as a published BERT; bothways adapt adds one to
            an encoder without one, such as sentence-transformers/all-MiniLM-L6-v2.
        texts: Texts with [MASK], or the tokenizer's own mask token, instead of --data.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input. Results are
            JSON Lines.
        output: With --data: a .jsonl file (also .gz); '-' is standard output.
        words: The only words that may fill a mask; each may have several tokens.
        pseudo_likelihood: Fill no masks; score each text by its pseudo-log-likelihood: mask one token at a time.
        whole_words: With --pseudo-likelihood, mask the later tokens of the same word along with each token.
        json: Print one JSON object for each text.
    """
    if whole_words and not pseudo_likelihood:
        raise opt.usage_error("--whole-words needs --pseudo-likelihood.")
    _check_read(texts, data, output, overwrite)
    if job.output_dir is not None:
        asked = {**opt.given_of(filling), **({"words": words} if words else {})}
        own = {**inputs.open_options(reading, opening)}
        work = jobs.FillMasks(model, text, pseudo_likelihood, whole_words, asked, own)
        run_job(work, job, data, file, opening, output)
        return
    show = progress_beside(output)
    with opt.as_usage_error():
        filler = tasks.FillMask.from_pretrained(model, **inputs.open_options(reading, opening))
        text = inputs.text_columns(text, filler.columns)
        rows, again = itertools.tee(inputs.given_rows(texts, data, text, file))
        given = inputs.texts_of(again, text)
        answers: Iterator[Answer]
        if pseudo_likelihood:
            answers = filler.likelihood_stream(given, whole_words=whole_words, show_progress=show)
        else:
            answers = filler.predict_stream(given, show_progress=show, words=words or None, **opt.given_of(filling))
    if data is not None and not on_terminal(output, json=json):
        write_rows(output, _with_ids(rows, answers), overwrite=True)
    else:
        _print_answers(rows, answers, text[0], json=json)


def _check_read(texts: tuple[str, ...], data: str | None, output: str, overwrite: bool) -> None:
    if output != "-" and data is None:
        raise opt.usage_error("--output needs --data.")
    inputs.check_output(output, overwrite, data)
    inputs.check_given(texts, data)


def _print_answers(rows: Iterable[Row], answers: "Iterable[Answer]", column: str, *, json: bool) -> None:
    for row, answer in zip(rows, answers, strict=True):
        if json:
            print_json(rounded(answer.to_dict()))
        else:
            _print_filled(row, column, answer)


def _with_ids(rows: Iterable[Row], answers: "Iterable[Answer]") -> Iterator[Mapping[str, object]]:
    for row, answer in zip(rows, answers, strict=True):
        kept = {"id": row.values["id"]} if "id" in row.values else {}
        yield kept | rounded(answer.to_dict())


def _print_filled(row: Row, column: str, answer: "Answer") -> None:
    if isinstance(answer, tasks.PseudoLikelihood):
        perplexity = "-" if answer.perplexity is None else figure(answer.perplexity)
        cells = (figure(answer.log_likelihood), str(answer.tokens), perplexity, printable(str(row.values[column])))
        print_table((">log-likelihood", ">tokens", ">perplexity", "text"), [cells])
    else:
        rows = (
            (figure(filling.probability), printable(" ".join(filling.words)), printable(filling.text))
            for filling in answer.fillings
        )
        print_table((">probability", "words" if len(answer.masks) > 1 else "word", "text"), rows)
    if answer.dropped_tokens:
        note(f"{row.where} is too long: {counted(answer.dropped_tokens, 'token')} not read.", always=True)


_SCHEMA_EXAMPLE = """\
Examples:
  bothways schema runs/news
  bothways schema question-answering"""


@opt.command(_SCHEMA_EXAMPLE)
def schema(model: str, *, task: str | None = None, opening: opt.ModelOptions = opt.ANY_MODEL) -> None:
    """Print JSON schemas of a model's inputs, options and predictions.

    Prints one JSON object with three schemas (draft 2020-12). "input" is the schema of a row of data, "prediction" that
    of a line that 'bothways predict' prints, apart from the id and the columns copied from the data.

    Args:
        model: Folder of a trained model, or the name of a task, such as tagging.
        task: Name of one task of a multi-task model. Default: all.
    """
    named = {name.replace("_", "-"): spec for name, spec in SPECS.items()}
    spec = named.get(model.replace("_", "-"))
    if spec is not None and task is None:
        schemas = tasks.Schemas.of(spec)
    else:
        try:
            schemas = compose.schemas_of(inputs.open_task(model, {}, opt.ANY_WINDOWS, opening, task))
        except UnknownModel as error:
            hint = did_you_mean(model, named)
            raise UnknownModel(f"{error} The names of tasks are: {', '.join(named)}.{hint}") from error
    print_json({name: {"$schema": tasks.DIALECT, **each} for name, each in asdict(schemas).items()})
