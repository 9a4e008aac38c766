"""``bothways explain``: the words that a prediction rests on, attention, and the roles of heads."""

import json as json_format
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bothways import checkpoints, compose, tasks
from bothways import explain as explaining
from bothways import report as pages
from bothways.choices import AttributionMethod
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import bar, described, note, one_line, print_json, print_table
from bothways.data import read_rows
from bothways.errors import NotFitted
from bothways.progress import figure, rounded
from bothways.storage import new_file
from bothways.tasks.tagging.spec import TagColumns
from bothways.text.characters import VISIBLE

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.explain import Explanation, Target
    from bothways.tasks.task import AnyTask

_MOST_WORDS = 30
_SUFFIXES = (".html", ".htm", ".png", ".svg", ".json", ".npz")

_EXAMPLE = """\
Examples:
  bothways explain runs/news "Lakers win in overtime" --report page.html
  bothways explain runs/news "Lakers win in overtime" --label Sports --json
  bothways explain runs/qa "Who sat?" "A cat sat on a mat." --answer "A cat"
  bothways explain sentence-transformers/all-MiniLM-L6-v2 \\
    "The cat sat on the mat because it was tired" --report attention.png"""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The prediction to explain."""

    label: str | None = None
    """For a classifier: explain the score of this label. Default: the predicted one."""
    word: opt.WholeNumber | None = None
    """For a tagger: explain the tag of the word with this number, from 0. Default: all predicted tags other than O."""
    tag: str | None = None
    """With --word, explain this tag. Default: the predicted one."""
    answer: str | None = None
    """For question answering: explain this part of the context as the answer. Default: the predicted one."""
    choice: opt.WholeNumber | None = None
    """For multiple choice: explain the choice with this number; choices count from 0. Default: the predicted one."""

    def target(self, texts: tuple[str, ...]) -> "Target | None":
        """Return the target that the options name."""
        targets: list[Target] = []
        if self.label is not None:
            targets.append(explaining.Label(self.label))
        if self.word is not None:
            targets.append(explaining.WordTag(self.word, self.tag))
        if self.answer is not None:
            start = texts[-1].find(self.answer)
            if start < 0 or not self.answer.strip():
                raise opt.usage_error(f"--answer must be a part of the context, the last text, got {self.answer!r}.")
            targets.append(explaining.AnswerSpan(start, start + len(self.answer)))
        if self.choice is not None:
            targets.append(explaining.ContextChoice(self.choice))
        if len(targets) > 1:
            raise opt.usage_error("expected one of --label, --word, --answer and --choice, got several.")
        return targets[0] if targets else None


PREDICTED = TargetOptions()


@opt.command(_EXAMPLE, name="explain")
def explain(
    model: str,
    *texts: str,
    report: opt.Report = None,
    overwrite: opt.Overwrite = False,
    method: AttributionMethod = "integrated-gradients",
    target: TargetOptions = PREDICTED,
    steps: opt.PositiveInt = 32,
    task: str | None = None,
    json: opt.Json = False,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Explain a prediction by word contributions and attention.

    Explains the model's own prediction, or the label, tag, answer or choice that you name. For an encoder without a
    task, shows only attention.

    Args:
        model: A folder or name of a trained model, or of an encoder.
        texts: The input of the model: a text, two texts, a question and its context, or a context and choices.
        report: Write a page (.html), picture (.png, .svg) or arrays (.npz, .json). Default: print the words.
        method: Attribution method; leave-one-out also works for ensembles and texts of several windows.
        steps: Number of steps of integrated gradients.
        task: Name of one task of a multi-task model.
    """
    _check(texts, report, target)
    inputs.check_output(report, overwrite, option="--report")
    explanation, prediction = _explained(model, texts, target, method, steps, task, reading, opening)
    for each in explanation.notes:
        note(f"not shown: {each}")
    if report is not None:
        _write(explanation, report)
        note(f"wrote {report}")
    if json:
        print_json(rounded({**explanation.to_dict(), **({"prediction": prediction} if prediction else {})}))
    elif report is None:
        _print(explanation, prediction, target.label)


def _check(texts: tuple[str, ...], report: Path | None, target: TargetOptions) -> None:
    if not texts:
        raise opt.usage_error("nothing to explain: give a text after the model, or several if the task takes several.")
    inputs.check_typed(texts)
    if not all(map(VISIBLE.search, texts)):
        raise opt.usage_error("expected texts with visible characters, got an empty text.")
    if report is not None and report.suffix.lower() not in _SUFFIXES:
        raise opt.usage_error(f"--report must end in one of {', '.join(_SUFFIXES)}, got {report.name!r}.")
    if report is not None and report.suffix.lower() not in (".json", ".npz"):
        pages.require_extra("a page or picture of an explanation")
    if target.tag is not None and target.word is None:
        raise opt.usage_error("--tag needs --word, the number of the word.")


def _explained(
    name: str,
    texts: tuple[str, ...],
    options: TargetOptions,
    method: AttributionMethod,
    steps: int,
    task: str | None,
    reading: opt.WindowOptions,
    opening: opt.ModelOptions,
) -> "tuple[Explanation, dict[str, object]]":
    """Return the explanation, and the model's prediction with ``calibrated``; empty if it has no task."""
    model: AnyTask | None = None
    try:
        model = inputs.open_task(name, {}, reading, opening, task)
    except NotFitted:
        if options != PREDICTED or task is not None:
            raise
    if model is None or isinstance(model, tasks.FillMask):
        if len(texts) > 2:
            raise opt.usage_error(f"expected one text or two, since the model has no task, got {len(texts)}.")
        with opt.as_usage_error():
            attention = explaining.explain_attention(
                _encoder(name, opening), texts[0] if len(texts) == 1 else (texts[0], texts[1])
            )
        return replace(attention, notes=("words, since this model has no task to give a score.",)), {}
    with opt.as_usage_error():
        target = options.target(texts)
        if isinstance(model, tasks.SentenceEmbedder) and len(texts) != 2:
            raise opt.usage_error(f"expected two texts, as an embedder is explained by their cosine, got {len(texts)}.")
        value = texts if isinstance(model, tasks.SentenceEmbedder) else _input(model, texts)
        explanation = explaining.explain(model, value, method, target=target, steps=steps)
    (prediction,) = model.predict([value])
    return explanation, {**prediction.to_dict(), "calibrated": model.confidence.calibration is not None}


def _input(model: "AnyTask", texts: tuple[str, ...]) -> Any:  # noqa: ANN401 (the task's input)
    """Return the texts of the command line as one input of the model."""
    columns = model.fitted.columns
    rows = columns.rows_of(texts)
    if len(rows) != 1:
        raise opt.usage_error(f"this model explains one text at a time, got {len(rows)}.")
    (value,) = map(columns.read, read_rows(rows))
    return value[0] if isinstance(model, compose.Ensemble) else value  # all members have the same input


def _encoder(name: str, opening: opt.ModelOptions) -> "PretrainedEncoder":
    return checkpoints.load(name, **opening.in_full.arguments())


def _write(explanation: "Explanation", output: Path) -> None:
    suffix = output.suffix.lower()
    if suffix in (".html", ".htm"):
        pages.write(pages.explanation_page(explanation), output, overwrite=True)
        return
    with new_file(output, binary=True) as stream:
        if suffix == ".json":
            written = json_format.dumps(explanation.to_dict(), ensure_ascii=False, allow_nan=False)
            stream.write(written.encode() + b"\n")
        elif suffix == ".npz":
            import numpy as np

            save: Callable[..., None] = np.savez_compressed  # mypy: its parameters could clash with names of arrays
            save(stream, **explanation.arrays())
        else:
            stream.write(_picture(explanation, suffix))


def _picture(explanation: "Explanation", suffix: str) -> bytes:
    drawn = pages.explanation_picture(explanation)
    if suffix == ".svg":
        return drawn.encode()
    import vl_convert

    return bytes(vl_convert.svg_to_png(drawn, scale=2))


def _print(explanation: "Explanation", prediction: Mapping[str, object], label: str | None) -> None:
    """Print the prediction, and the words by the size of their contributions."""
    attribution = explanation.attribution
    if attribution is None:
        print("Only attention is available: see it with --report page.html, or as numbers with --json.")
        return
    shown = {name: value for name, value in prediction.items() if name != "calibrated"}
    match prediction:
        case {"probabilities": {**shares}, "calibrated": calibrated}:
            certain = "calibrated" if calibrated else "not calibrated"
            if label in shares and label != str(prediction.get("label")):
                shown[f"probability of {label}"] = shares[label]
            print(f"{described(shown)} ({certain} probabilities)")
        case _:
            print(described(shown))
    print(f"explained: {one_line(attribution.score_name)}, {figure(attribution.score)}\n")
    pairs = zip(attribution.words, attribution.weights_W.tolist(), strict=True)
    known = [(word, weight) for word, weight in pairs if weight == weight]  # NaN: not a word of its own
    known.sort(key=lambda pair: -abs(pair[1]))
    largest = max((abs(weight) for _, weight in known), default=0.0) or 1.0
    rows = [
        (figure(weight, sign=True), bar(weight / largest), one_line(word.text)) for word, weight in known[:_MOST_WORDS]
    ]
    print_table((">contribution", "<", "word"), rows)
    if len(known) > len(rows):
        print(f"and {len(known) - len(rows)} words with smaller contributions (--json lists all)")
    if attribution.completeness_error is not None:
        print(f"error of the integral: {attribution.completeness_error:.2g}")


_HEADS_EXAMPLE = """\
Universal Dependencies publishes dependency trees as .conllu. Other rows have no
trees: the heads are then not scored by dependency relation.

Examples:
  bothways explain heads sentence-transformers/all-MiniLM-L6-v2
  bothways explain heads runs/news --data en_ewt-ud-dev.conllu.gz --json"""


@opt.command(_HEADS_EXAMPLE)
def heads(
    model: str,
    *,
    data: opt.File | None = None,
    tokens: str | None = None,
    text: opt.TrainedTextColumns = None,
    file: opt.FileOptions = opt.ANY_FILE,
    most: opt.PositiveInt = 1000,
    random: Annotated[bool, Parameter(negative="--no-random")] = True,
    seed: opt.WholeNumber = 0,
    json: opt.Flag = False,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Score attention heads by role, such as previous token.

    Args:
        model: A folder or name of a model; only its encoder is used.
        data: Sentences: .conllu (also .gz) with dependency trees, or rows with tokens or a text. Default: the sentences
            with pronouns that come with this package.
        tokens: Column of the words. Default: as in training, else tokens; rows without it have a text.
        most: Maximum number of sentences.
        random: Also score an encoder with the same architecture and random weights, as a baseline.
        seed: Seed of the random weights.
        json: Print one JSON object with the scores of all heads. Without it, only the best head of each role is shown.
    """
    columns = inputs.trained_columns(model, opening)
    tokens, text = (
        tokens or (columns.tokens if isinstance(columns, TagColumns) else "tokens"),
        inputs.text_columns(text, columns),
    )
    source = inputs.optional_source(data, file)
    sentences = [] if source is None else explaining.read_sentences(source, limit=most, tokens=tokens, text=text)
    roles = explaining.head_roles(_encoder(model, opening), sentences, random=random, seed=seed)
    if sentences and not any(each.heads for each in sentences):
        note("these sentences have no dependency trees, so relations are not scored: give a .conllu file with trees.")
    if json:
        print_json({"model": model, "sentences": len(sentences), "roles": [rounded(each.to_dict()) for each in roles]})
        return
    rows = []
    for each in roles:
        null = "-" if each.random is None else figure(each.random, 3)
        numbers = (figure(each.score, 3), null, figure(each.without, 3), each.kind, f"{each.count:,}")
        rows.append((one_line(each.role), str(each.best.layer), str(each.best.head), *numbers))
    print_table(("<role", ">layer", ">head", ">score", ">random encoder", ">without a model", ">of", ">count"), rows)


explain.command(heads)
