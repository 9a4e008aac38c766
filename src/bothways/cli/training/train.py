"""``bothways train``: a command for each task, made from its declaration, and one for multi-task training."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import App, Parameter

from bothways import compose, tasks
from bothways.choices import LossName, Merge, Sampling, SimilarityName, TargetKind, Unlabelled
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import note
from bothways.cli.training import run as runs
from bothways.confidence.confidence import ConfidenceOptions
from bothways.data import Row, Source
from bothways.errors import InvalidInput
from bothways.tasks import embedding
from bothways.tasks.columns import renamed
from bothways.tasks.embedding.spec import NAMES, EmbeddingColumns, PlainTexts, kind_of
from bothways.tasks.registry import SPECS, task_class
from bothways.tasks.spec import AlikeLabelData, TaskSpec

if TYPE_CHECKING:
    from bothways.compose import MultiTask, TaskData
    from bothways.compose.multitask.data import Sampling as Sampler
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.embedding import PlainLoss
    from bothways.tasks.task import AnyTask
    from bothways.training.options import TrainingArguments
    from bothways.training.state import TrainingRecord

_COLUMN = re.compile(r"\(--(text|tokens|label|tags) ((?:'[^']*'|[^()'])+)\)")  # the advised option of an error
_LINE = 78  # columns of a line of an example
_OTHER_ROWS = opt.Option(
    "out_of_domain",
    opt.File,
    "File of unlabelled out-of-domain rows, to fit the out-of-domain threshold on instead of using --in-domain-share.",
)


@Parameter(name="*", group="Loss")
@dataclass(frozen=True, slots=True)
class LossOptions:
    """The loss of an embedder."""

    loss: LossName | None = None
    """Loss function. Default: cosent if rows have scores, else ranking (in-batch negatives). The loss compares all
    rows of a batch, but only their vectors are kept in memory: --batch-size may be in the thousands."""
    scale: opt.PositiveFloat | None = None
    """Inverse temperature of the ranking and cosent losses, and of distillation (--teacher). Default: 20."""
    margin: opt.PositiveFloat | None = None
    """Margin of the triplet loss, as a Euclidean distance. Default: 1."""
    symmetric: opt.Flag | None = None
    """For the ranking loss: rank the positives for each anchor, and also the anchors for each positive."""
    matryoshka: Annotated[tuple[opt.PositiveInt, ...] | None, Parameter(consume_multiple=True)] = None
    """Numbers of dimensions that vectors can later be truncated to (Matryoshka loss): --matryoshka 384 128 64."""
    teacher: str | None = None
    """Folder or name of a larger embedder, whose similarities are learnt by distillation."""


def training_command(spec: TaskSpec, *, hidden: bool = False, name: str | None = None) -> App:
    """Return the command that trains models for a task."""
    learnt = {option.name for option in opt.options_of(spec.fit_options)}
    embeds = spec.name == "embedding"

    def train(
        model: runs.BaseModel,
        *,
        train: opt.File,
        output: runs.OutputFolder,
        validation: Annotated[opt.File | None, Parameter(help=f"Held-out rows. Default: {spec.held_out}.")] = None,
        file: opt.FileOptions = opt.ANY_FILE,
        columns: object = None,
        own: object = None,
        confidence: object = None,
        loss: object = None,
        run: runs.RunOptions = runs.DEFAULT_RUN,
        training: object = None,
        reading: opt.WindowOptions = opt.ANY_WINDOWS,
        opening: opt.ModelOptions = opt.ANY_MODEL,
    ) -> int:
        given = {**opt.given_of(own), **opt.given_of(confidence)}
        other_rows = given.pop(_OTHER_ROWS.name, None)
        inputs.check_piped({"--train": train, "--validation": validation, "--out-of-domain": other_rows})
        opening_words = {name: value for name, value in given.items() if name not in learnt}
        fitting = {name: value for name, value in given.items() if name in learnt}
        with opt.as_usage_error(*fitting):
            settings = spec.fit_options(**fitting)
        others = _rows_to_detect(spec, settings, opt.given_of(columns), other_rows, file)
        fitting = {**opt.given_of(columns), **fitting}

        def fit(options: "TrainingArguments") -> "tuple[Any, TrainingRecord]":
            opened = inputs.open_options(reading, opening.in_full)
            with opt.as_usage_error(*fitting, *opening_words):
                task = task_class(spec).from_pretrained(model, **opening_words, **opened)
                tasks.split_fit_options(task, {**fitting, **options})
            rows, words = inputs.labelled_source(train, file), fitting
            if embeds:
                rows, words = _with_loss(task, rows, opt.given_of(loss), words, opened)
            record = task.fit(rows, validation=inputs.optional_source(validation, file), **words, **options)
            if others is not None and not record.finished_no_epoch:
                if task.confidence.out_of_domain is None:
                    note("--out-of-domain was not used: the training fitted no out-of-domain detector.")
                else:
                    task.fit_threshold(others)
            return task, record

        def next_step(task: "AnyTask") -> str:
            if isinstance(task.columns, PlainTexts):  # without labels
                return runs.build_next(train, file)
            return runs.evaluate_next(train, file)

        files = file.to_remember(train, validation, other_rows)
        return runs.train_and_save(output, training, run, fit, next_step, files)

    train.__doc__ = _help(spec)
    made = opt.command(_example(spec), name=name or spec.name.replace("_", "-"), **_groups(spec))(train)
    made.show = not hidden
    return made


def _groups(spec: TaskSpec) -> dict[str, type]:
    own = opt.options_of(spec.fit_options)
    learnt = {option.name for option in own}
    opened = [option for option in opt.options_of(spec.open_options) if option.name not in learnt]
    others = [_OTHER_ROWS] * issubclass(spec.fit_options, ConfidenceOptions)
    return {
        "columns": opt.group_of(
            "Columns", [option for columns in opt.columns_of(spec) for option in opt.options_of(columns)]
        ),
        **opt.fitting_groups("Task", own, opened, others),
        "loss": LossOptions if spec.name == "embedding" else opt.group_of("Loss", ()),
        "training": runs.TRAINING,
    }


def _help(spec: TaskSpec) -> str:
    calibrates = any(option.name == "calibration" for option in opt.options_of(spec.fit_options))
    calibrated = " Probabilities are calibrated on held-out rows." if calibrates else ""
    return f"""{spec.summary}

    Fine-tunes an encoder; see --epochs for the epoch that is kept.{calibrated}

    Args:
        train: Labelled rows: .jsonl, .json, .csv, .tsv, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
    """


def _example(spec: TaskSpec) -> str:
    """Return the end of a command's help: an example of the data, and of the command."""
    row, lines = "{", []
    for number, (name, value) in enumerate(spec.example.items()):
        part = f"{', ' if number else ''}{json.dumps(name)}: {json.dumps(value)}"
        if len(row + part) > _LINE - 2:
            lines.append(f"{row},")
            row, part = " ", part.removeprefix(", ")
        row += part
    shown = "\n  ".join([*lines, f"{row}}}"])
    notes = f"\n{spec.notes}" if spec.notes else ""
    return f"""\
A row of the data:
  {shown}{notes}

Example:
  bothways train {spec.name.replace("_", "-")} \\
    --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/model

{runs.RESUMING}"""


def _rows_to_detect(
    spec: TaskSpec,
    settings: Any,  # noqa: ANN401 (the task's own)
    columns: Mapping[str, Any],
    source: str | None,
    file: opt.FileOptions,
) -> list[Row] | None:
    """Return the out-of-domain rows; raise an error before the training if the task cannot use or read them."""
    if source is None:
        return None
    if not settings.detects:
        raise opt.usage_error(
            "--out-of-domain fits the threshold of a detector: it needs one label per text (--target single) and a "
            "--detector other than none."
        )
    rows = list(inputs.file_rows(source, file))
    reader = renamed(spec.columns, columns)
    for row in rows:
        reader.read(row)
    return rows


def _with_loss(
    embedder: "SentenceEmbedder",
    source: Source,
    given: Mapping[str, Any],
    fitting: dict[str, Any],
    opened: Mapping[str, Any],
) -> tuple[Source, dict[str, Any]]:
    """Return the rows, and the arguments of ``fit``, which are ``fitting`` and the columns and the loss."""
    settings = dict(given)
    dimensions = settings.pop("matryoshka", None)
    named = {name: value for name, value in fitting.items() if name in NAMES}
    if "teacher" not in settings and not named:
        source, columns = embedding.with_usual_kind(source, embedder.columns)
        fitting = {**fitting, "columns": columns}
    with opt.as_usage_error(*fitting):
        kind = fitting.get("columns") or kind_of(**named, teacher="teacher" in settings)
        plain = _plain_loss(settings, kind, opened, embedder.fitted.settings.similarity)
        loss = plain if dimensions is None else embedding.Matryoshka(plain, tuple(dimensions))
        embedding.check_loss(loss, kind, embedder.dimensions)
    return source, {**fitting, "loss": loss}


def _plain_loss(
    settings: dict[str, Any], columns: EmbeddingColumns, opened: Mapping[str, Any], similarity: SimilarityName
) -> "PlainLoss":
    teacher, name = settings.pop("teacher", None), settings.pop("loss", None)
    if teacher is not None and name is not None:
        raise opt.usage_error("--teacher already chooses the loss (distillation): drop --loss.")
    name = "distillation" if teacher is not None else name or embedding.usual_loss(columns, similarity).name
    allowed = {"ranking": ("scale", "symmetric"), "triplet": ("margin",)}.get(name, ("scale",))
    for each in settings:
        if each not in allowed:
            raise opt.usage_error(f"the {name} loss has no setting --{each}; it has --{', --'.join(allowed)}.")
    if name in ("ranking", "cosent"):
        settings.setdefault("scale", embedding.usual_scale(similarity))
    match name:
        case "ranking":
            return embedding.MultipleNegativesRanking(**settings)
        case "cosent":
            return embedding.CoSENT(**settings)
        case "triplet":
            return embedding.Triplet(**settings)
        case _:
            teaching = {**opened, "revision": None}  # the revision is a commit of the student
            return embedding.Distillation(tasks.SentenceEmbedder.from_pretrained(teacher, **teaching), **settings)


_MULTITASK_EXAMPLE = f"""\
A row of the data for a task:
  {{"text": "Lakers win in overtime", "label": "sports"}}
or, for a tagging task:
  {{"tokens": ["EU", "rejects", "it"], "tags": ["B-ORG", "O", "O"]}}

A task is NAME=FILE, NAME=FILE:TEXT:LABEL with the columns of texts and labels,
or NAME=FILE:TEXT:LABEL:TARGET with single (the default), multi or regression;
with tagging, TEXT and LABEL are the columns of words and tags. A further part
has all labels or tags in their order: NAME=FILE:TEXT:LABEL:single:bad,good.

Example:
  bothways train multitask --model sentence-transformers/all-MiniLM-L6-v2 \\
    --task sentiment=s.jsonl.gz:text:label \\
    --task names=n.jsonl.gz:tokens:tags:tagging --output runs/mt

{runs.RESUMING}"""


@dataclass(frozen=True, slots=True)
class _TaskWords:
    """One ``--task`` option, parsed."""

    file: str
    text: str
    label: str
    target: TargetKind | Literal["tagging"]
    labels: str | None = None


@opt.command(_MULTITASK_EXAMPLE, training=runs.TRAINING)
def multitask(
    model: runs.BaseModel,
    *,
    task: Annotated[tuple[str, ...], Parameter(negative=())],
    output: runs.OutputFolder,
    validation: tuple[str, ...] = (),
    sampling: Sampling = "proportional",
    temperature: opt.PositiveFloat | None = None,
    merge: Merge | None = None,
    unlabelled: Unlabelled = "error",
    normalise_labels: opt.Flag = False,
    file: opt.FileOptions = opt.ANY_FILE,
    run: runs.RunOptions = runs.DEFAULT_RUN,
    training: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Train several tasks on one shared encoder.

    Fine-tunes the encoder with a head for each task, and calibrates each task; see --epochs for the epoch that is kept.
    Each update uses --batch-size rows of one task.

    Args:
        task: NAME=FILE[:TEXT:LABEL[:TARGET[:LABELS]]], or NAME=FILE:TOKENS:TAGS:tagging[:TAGS]; repeat it for each
            task. LABELS are all labels, with commas between them, in the order of numbers and vectors in the data.
        validation: NAME=FILE with held-out rows of a task. Default: a tenth of its rows, drawn with the seed.
        sampling: Share of the updates that a task gets: proportional to its number of rows, temperature (more for small
            tasks), or uniform (equal for all tasks).
        temperature: For --sampling temperature: 1 is proportional, higher is more equal. Default: 2.
        merge: How to merge the logits of a long text's windows. Default: their mean, weighted by length.
        unlabelled: Refuse rows of a task that have no label (error), or leave them out of this task (drop).
        normalise_labels: Take labels of a task that look alike, such as sport and SPORT, as one label.
    """
    files = dict(_split_name(each, "--task") for each in task)
    held_out = dict(_split_name(each, "--validation") for each in validation)
    if len(files) < len(task) or len(held_out) < len(validation):
        raise opt.usage_error("expected a different name for each task, and at most one --validation for each.")
    for name in held_out.keys() - files.keys():
        raise opt.usage_error(f"--validation names {name!r}, but the tasks are {', '.join(files)}.")
    if temperature is not None and sampling != "temperature":
        raise opt.usage_error("--temperature needs --sampling temperature.")
    words = {name: _task_words(name, value) for name, value in files.items()}
    inputs.check_piped(
        {f"--task {name}": each.file for name, each in words.items()}
        | {f"--validation {name}": file for name, file in held_out.items()}
    )

    def fit(options: "TrainingArguments") -> "tuple[MultiTask, TrainingRecord]":
        with opt.as_usage_error():
            compose.check_names(words)
            sampler = _sampler(sampling, temperature)
            opened = inputs.open_options(reading, opening.in_full)
            shared = compose.MultiTask.from_pretrained(model, merge=merge, **opened)
        labelled = AlikeLabelData(unlabelled=unlabelled, normalise_labels=normalise_labels or None)
        data = {name: _task_data(each, held_out.get(name), file, labelled) for name, each in words.items()}
        with _advising_columns(words):
            return shared, shared.fit(data, sampling=sampler, **options)

    settings = file.to_remember(*(each.file for each in words.values()), *held_out.values())
    return runs.train_and_save(output, training, run, fit, partial(_next_step, words, file), settings)


def _next_step(words: Mapping[str, _TaskWords], file: opt.FileOptions, model: "MultiTask") -> str:
    # Tasks that read the same column of labels cannot be evaluated on the same rows.
    (name, first), *_ = words.items()
    return runs.evaluate_next(first.file, file, "" if model.fitted.columns.has_own_label_columns else f" --task {name}")


@contextmanager
def _advising_columns(words: Mapping[str, _TaskWords]) -> Iterator[None]:
    """Spell the advice in errors about a column as the option that names the columns of the task."""
    try:
        yield
    except InvalidInput as error:
        found = re.match("task '([^']+)': ", str(error))
        own = None if found is None else words.get(found[1])
        if found is None or own is None or f"of {own.file!r}" not in str(error):
            raise

        def option(advised: re.Match[str]) -> str:
            column, target = shlex.split(advised[2])[0], "" if own.target == "single" else f":{own.target}"
            named = f"{column}:{own.label}" if advised[1] in ("text", "tokens") else f"{own.text}:{column}"
            return f"(--task {shlex.quote(f'{found[1]}={own.file}:{named}{target}')})"

        raise type(error)(_COLUMN.sub(option, str(error))) from error


def _split_name(word: str, option: str) -> tuple[str, str]:
    name, sign, rest = word.partition("=")
    if not (name and sign and rest):
        raise opt.usage_error(f"{option} must be NAME=FILE, got {word!r}.")
    return name, rest


def _task_words(name: str, value: str) -> _TaskWords:
    parts = value.split(":", 4)
    if len(parts) == 2 or not all(parts):
        raise opt.usage_error(
            f"--task {name} must be FILE, FILE:TEXT:LABEL or FILE:TEXT:LABEL:TARGET[:LABELS], got {value!r}."
        )
    file, text, label, target, labels = (*parts, *("", "text", "label", "single", "")[len(parts) :])
    known: Sequence[TargetKind | Literal["tagging"]] = (*get_args(TargetKind), "tagging")
    for each in known:
        if target == each:
            return _TaskWords(file, text, label, each, labels or None)
    raise opt.usage_error(f"the target of --task {name} must be one of {', '.join(known)}, got {target!r}.")


def _task_data(
    words: _TaskWords, validation: str | None, file: opt.FileOptions, labelled: AlikeLabelData
) -> "TaskData":
    train, held_out = inputs.labelled_source(words.file, file), inputs.optional_source(validation, file)
    reading = asdict(labelled)
    if words.labels is not None:
        reading["labels"] = words.labels
    if words.target == "tagging":
        return compose.TaggingData(train, held_out, tokens=words.text, tags=words.label, **reading)
    columns = {"text": words.text, "label": words.label}
    return compose.TaskData(train, held_out, **columns, target=words.target, **reading)


def _sampler(sampling: Sampling, temperature: float | None) -> "Sampler":
    match sampling:
        case "proportional":
            return compose.Proportional()
        case "temperature":
            return compose.Tempered() if temperature is None else compose.Tempered(temperature)
        case "uniform":
            return compose.Uniform()


train = App(name="train", help="Fine-tune a pretrained encoder for a task.")
for _spec in SPECS.values():
    # Masked language models are trained by `bothways adapt`.
    if _spec.name != "masked_lm":
        train.command(training_command(_spec))
train.command(multitask)
train.command(training_command(SPECS["question-answering"], hidden=True, name="answering"))
