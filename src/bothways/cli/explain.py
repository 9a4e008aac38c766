"""``bothways explain``: the words that a prediction rests on, where heads look, and what heads do."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bothways.choices import AttributionMethod
from bothways.cli.opening import open_task
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    WholeNumber,
    bad_usage,
    usage_error,
)
from bothways.cli.terminal import note, one_line, plain_table, print_json, print_table, rounded

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.explain import Attribution, Explanation, Target
    from bothways.tasks.predict import Predictor

EXAMPLE = """\
Examples:
  bothways explain runs/news "Lakers win in overtime" --output page.html
  bothways explain runs/news "Lakers win in overtime" --label Sports --json
  bothways explain runs/qa "Who sat?" "A cat sat on a mat." --answer "A cat"
  bothways explain sentence-transformers/all-MiniLM-L6-v2 \\
    "The cat sat on the mat because it was tired" --output attention.png"""

HEADS_EXAMPLE = """\
Universal Dependencies publish trees as .conllu; rows with tokens or a text
have none, and dependency relations are then left out.

Examples:
  bothways explain heads sentence-transformers/all-MiniLM-L6-v2
  bothways explain heads runs/news --data en_ewt-ud-dev.conllu.gz --json"""

_SUFFIXES = (".html", ".htm", ".png", ".svg", ".json", ".npz")


def explain(
    model: str,
    /,
    *texts: str,
    output: Path | None = None,
    method: AttributionMethod = "integrated-gradients",
    label: str | None = None,
    word: WholeNumber | None = None,
    tag: str | None = None,
    answer: str | None = None,
    choice: WholeNumber | None = None,
    steps: PositiveInt = 32,
    task: str | None = None,
    json: Flag = False,
    quiet: Flag = False,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Explain one prediction: what each word contributes, and attention.

    What is explained is the model's own prediction, or a label, tag, answer or choice that is named. Of an encoder
    without a task, attention alone is shown.

    Args:
        model: A folder or a name of a trained model, or of an encoder.
        texts: Input of the task: a text, two texts, question and context, context and choices.
        output: A page (.html), a picture (.png, .svg) or arrays (.npz, .json); the suffix says which. Without, the
            words are printed.
        method: Method of attribution; leave-one-out also serves ensembles and texts of several windows.
        label: Explain this label of a classifier.
        word: Explain the tag of this word of a tagger; words count from 0.
        tag: With --word, this tag; the predicted one by default.
        answer: Explain this part of the context as an answer.
        choice: Explain this choice; choices count from 0.
        steps: Points of the integral of integrated gradients.
        task: Which task of a model of several.
        json: Print one JSON object.
        quiet: Say nothing besides.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    from bothways.storage import check_file_writable

    _check(texts, output, word, tag)
    if output is not None:
        check_file_writable(output)
    found = _explained(model, texts, (label, word, tag, answer, choice), method, steps, task, reading, opening)
    for each in () if quiet else found.notes:
        note(f"not shown: {each}")
    if output is not None:
        _write(found, output)
        if not quiet:
            note(f"wrote {output}")
    if json:
        print_json(rounded(found.to_dict()))
    elif output is None:
        _print(found)


def heads(
    model: str,
    /,
    *,
    data: File | None = None,
    most: PositiveInt = 1000,
    random: Annotated[bool, Parameter(negative="--no-random")] = True,
    seed: WholeNumber = 0,
    json: Flag = False,
    quiet: Flag = False,
    opening: ModelOptions = HERE,
) -> None:
    """Score the role of each attention head over a corpus.

    Args:
        model: A folder or a name of a model; its encoder is read.
        data: Sentences: .conllu (also .gz) with dependency trees, or rows with tokens or a text. By default the
            sentences with pronouns that the package brings.
        most: Most sentences that are read.
        random: Also score a random encoder of the same shape.
        seed: Seed of the random encoder.
        json: Print one JSON object, with the scores of all heads.
        quiet: Show no progress.
        opening: How the model is found and where it runs.
    """
    from bothways.explain import head_roles, read_sentences

    sentences = [] if data is None else read_sentences(data, most=most)
    roles = head_roles(
        _encoder(model, opening), sentences, random=random, seed=seed, show_progress=False if quiet else None
    )
    if sentences and not quiet and not any(each.heads for each in sentences):
        note("these sentences have no dependency trees, so relations are not scored: give a .conllu file with heads.")
    if json:
        print_json({"model": model, "sentences": len(sentences), "roles": [rounded(each.to_dict()) for each in roles]})
        return
    table = plain_table()
    table.add_column("role")
    for heading in ("layer", "head", "score", "random encoder", "without a model", "of", "count"):
        table.add_column(heading, justify="right")
    for each in roles:
        null = "-" if each.random is None else f"{each.random:.3f}"
        numbers = (f"{each.score:.3f}", null, f"{each.without:.3f}", each.kind, f"{each.count:,}")
        table.add_row(one_line(each.role), str(each.best.layer), str(each.best.head), *numbers)
    print_table(table)


def _check(texts: tuple[str, ...], output: Path | None, word: int | None, tag: str | None) -> None:
    if not texts:
        raise usage_error("nothing to explain: give a text behind the model, or several where the task reads several.")
    if any(not each.strip() for each in texts):
        raise usage_error("expected texts with something to see in them, got an empty one.")
    if output is not None and output.suffix.lower() not in _SUFFIXES:
        raise usage_error(f"--output must end in one of {', '.join(_SUFFIXES)}, got {output.name!r}.")
    if output is not None and output.suffix.lower() not in (".json", ".npz"):
        from bothways.report.drawing import require_extra

        require_extra("a page or picture of an explanation")
    if tag is not None and word is None:
        raise usage_error("--tag goes with --word, the number of the word.")


def _explained(
    name: str,
    texts: tuple[str, ...],
    asked: tuple[str | None, int | None, str | None, str | None, int | None],
    method: AttributionMethod,
    steps: int,
    task: str | None,
    reading: ReadingOptions,
    opening: ModelOptions,
) -> "Explanation":
    from bothways.errors import NotFitted
    from bothways.explain import explain as explain_prediction
    from bothways.tasks import FillMask

    try:
        model: Predictor[Any, Any, Any] | None = open_task(name, {}, reading, opening, task)
    except NotFitted:
        if any(each is not None for each in (*asked, task)):
            raise
        model = None
    if model is None or isinstance(model, FillMask):
        return _of_attention(name, texts, opening)
    with bad_usage():
        target = _target(texts, asked)
        value = texts if _compares(model, texts) else _read(model, texts)
        return explain_prediction(model, value, method, target=target, steps=steps)


def _read(model: "Predictor[Any, Any, Any]", texts: tuple[str, ...]) -> Any:  # noqa: ANN401 (the task's input)
    """Return texts of the command line as an input of a model."""
    from bothways.compose.ensembles.ensemble import Ensemble
    from bothways.data import read_rows

    columns = model.fitted.columns
    rows = columns.rows_of(texts)
    if len(rows) != 1:
        raise usage_error(f"this model reads one text, and one is explained at a time, got {len(rows)}.")
    (value,) = map(columns.read, read_rows(rows))
    return value[0] if isinstance(model, Ensemble) else value  # of the first member: all are given the same here


def _compares(model: "Predictor[Any, Any, Any]", texts: tuple[str, ...]) -> bool:
    """Return True for an embedder that compares two texts, whatever rows it learnt from."""
    from bothways.tasks import SentenceEmbedder

    if isinstance(model, SentenceEmbedder) and len(texts) != 2:
        raise usage_error(f"an embedder is explained by the similarity of two texts, got {len(texts)}.")
    return isinstance(model, SentenceEmbedder)


def _of_attention(name: str, texts: tuple[str, ...], opening: ModelOptions) -> "Explanation":
    from dataclasses import replace

    from bothways.explain import explain_attention

    if len(texts) > 2:
        raise usage_error(f"an encoder without a task reads a text or a pair of texts, got {len(texts)}.")
    with bad_usage():
        found = explain_attention(_encoder(name, opening), texts[0] if len(texts) == 1 else (texts[0], texts[1]))
    return replace(found, notes=("words, for this model has no task that gives a score.",))


def _encoder(name: str, opening: ModelOptions) -> "PretrainedEncoder":
    from bothways.checkpoints import load

    return load(
        name,
        revision=opening.revision,
        device=opening.device,
        dtype=opening.dtype or "float32",
        download=opening.download,
        allow_pickle=opening.allow_pickle,
    )


def _target(
    texts: tuple[str, ...], asked: tuple[str | None, int | None, str | None, str | None, int | None]
) -> "Target | None":
    """Return the target that the options name.

    Raises:
        CycloptsError: They name several things, or an answer that is not in the context.
    """
    from bothways.explain import AnswerSpan, ContextChoice, Label, WordTag

    label, word, tag, answer, choice = asked
    found: list[Target] = []
    if label is not None:
        found.append(Label(label))
    if word is not None:
        found.append(WordTag(word, tag))
    if answer is not None:
        start = texts[-1].find(answer)
        if start < 0 or not answer.strip():
            raise usage_error(f"--answer must be a part of the context, the last text, got {answer!r}.")
        found.append(AnswerSpan(start, start + len(answer)))
    if choice is not None:
        found.append(ContextChoice(choice))
    if len(found) > 1:
        raise usage_error("name one thing to explain: one of --label, --word, --answer, --choice.")
    return found[0] if found else None


def _write(found: "Explanation", output: Path) -> None:
    from bothways.storage import new_file

    suffix = output.suffix.lower()
    if suffix in (".html", ".htm"):
        from bothways.report import write
        from bothways.report.explanation import explanation_page

        write(explanation_page(found), output)
        return
    with new_file(output, binary=True) as stream:
        if suffix == ".json":
            stream.write(json_module.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False).encode() + b"\n")
        elif suffix == ".npz":
            import numpy as np

            np.savez_compressed(stream, **found.arrays())  # type: ignore[arg-type]
        else:
            stream.write(_picture(found, suffix))


def _picture(found: "Explanation", suffix: str) -> bytes:
    from bothways.report.explanation import explanation_picture

    drawn = explanation_picture(found)
    if suffix == ".svg":
        return drawn.encode()
    import vl_convert

    return bytes(vl_convert.svg_to_png(drawn, scale=2))


def _print(found: "Explanation") -> None:
    if found.attribution is None:
        print("attention alone: see it with --output page.html, or as numbers with --json.")
        return
    _print_words(found.attribution)


def _print_words(found: "Attribution") -> None:
    print(f"{one_line(found.score_name)}: {found.score:.4f}")
    table = plain_table()
    table.add_column("contribution", justify="right")
    table.add_column("word")
    for each, weight in zip(found.words, found.weights_W.tolist(), strict=True):
        table.add_row("-" if weight != weight else f"{weight:+.4f}", one_line(each.text))
    print_table(table)
    if found.completeness_error is not None:
        print(f"error of the integral: {found.completeness_error:.2g}")
