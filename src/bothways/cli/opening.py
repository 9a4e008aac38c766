"""Opening models as the options say."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.cli.declared import group_of, of_all_tasks, options_of
from bothways.cli.options import ModelOptions, ReadingOptions, bad_usage, usage_error
from bothways.tasks.registry import SPECS
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from bothways.retrieval import CandidateRanking
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.backend import OpenOptions
    from bothways.tasks.predict import Predictor
    from bothways.text import TextTokenizer


def columns_of(spec: TaskSpec) -> tuple[object, ...]:
    """Return the usual columns of all kinds of rows that a task reads."""
    return spec.columns, *spec.kinds


def _only_of_opening(spec: TaskSpec) -> list[str]:
    """Options of opening a model that are none of the calls of it."""
    calls = [spec.fit_options, spec.data_options, spec.predict_options]
    others = {option.name for call in calls for option in options_of(call)}
    return [option.name for option in options_of(spec.open_options) if option.name not in others]


_OPENING = {name for spec in SPECS.values() for name in _only_of_opening(spec)}
# What a prediction can be asked for as well, and an evaluation is computed at.
_DECIDING = {"threshold"}

# What a trained model can be opened with, whatever its task.
OPENING = group_of(
    "As it was saved, by default",
    (option for option in of_all_tasks(lambda spec: [spec.open_options]) if option.name in _OPENING),
)
EVALUATING = group_of(
    "As it was saved, by default",
    (option for option in of_all_tasks(lambda spec: [spec.open_options]) if option.name in _OPENING | _DECIDING),
)
COLUMNS = group_of("Columns (by default as in training)", of_all_tasks(columns_of))
VECTORS = group_of("Vectors", options_of(SPECS["embedding"].open_options))

# What a model can be evaluated as besides its task: how well it ranks the candidates of queries.
RANKING = "ranking"


def open_options(reading: ReadingOptions, model: ModelOptions) -> "OpenOptions":
    """Return the library's words for what the options say."""
    return {
        "max_length": reading.max_length,
        "on_overflow": reading.on_overflow,
        "stride": reading.stride,
        "revision": model.revision,
        "device": model.device,
        "dtype": model.dtype,
        "download": model.download,
        "allow_pickle": model.allow_pickle,
    }


def open_task(
    name: str, own: dict[str, Any], reading: ReadingOptions, model: ModelOptions, task: str | None = None
) -> "Predictor[Any, Any, Any]":
    """Return the trained model of this name, as the task that it was trained for.

    Or the one of its tasks that is named.

    Raises:
        CycloptsError: A value of an option is out of range, or the model's task has no such option.
    """
    from bothways.compose.opening import open_trained

    with bad_usage(*own):
        return open_trained(name, task=task, **own, **open_options(reading, model))


def open_ranking(
    name: str, own: dict[str, Any], reading: ReadingOptions, model: ModelOptions, relevant: str | None
) -> "CandidateRanking":
    """Return a model of pairs, or any encoder as an embedder, to rank candidates with.

    Raises:
        CycloptsError: A value of an option is out of range, or the model has no such label or option.
    """
    from bothways.retrieval import CandidateRanking

    with bad_usage(*own):
        return CandidateRanking.open(name, relevant=relevant, **own, **open_options(reading, model))


def open_embedder(
    name: str, vectors: dict[str, Any], reading: ReadingOptions, model: ModelOptions
) -> "SentenceEmbedder":
    """Return the embedder of this name.

    Raises:
        CycloptsError: A value of an option is out of range.
    """
    from bothways.tasks import SentenceEmbedder

    with bad_usage(*vectors):
        return SentenceEmbedder.from_pretrained(name, **vectors, **open_options(reading, model))


def open_tokenizer(name: str, *, revision: str | None, download: bool) -> "tuple[TextTokenizer, int | None]":
    """Return the tokenizer of this name, without the weights, and the most tokens that its model reads at once.

    A folder may hold a tokenizer alone, which has no such limit.
    """
    from bothways.checkpoints.files import read_json
    from bothways.checkpoints.hub import locate
    from bothways.families import family_of
    from bothways.text import TextTokenizer, recipes

    if (alone := Path(name)).is_dir() and not (alone / "config.json").exists():
        return TextTokenizer.from_folder(alone, recipes.TRAINED), None
    folder = locate(name, revision=revision, download=download).folder
    settings = read_json(folder / "config.json")
    family = family_of(settings.get("model_type"))
    return TextTokenizer.from_folder(folder, family.tokenizer), family.config(settings).max_length


def reading_columns(model: Any, columns: dict[str, Any]) -> Any:  # noqa: ANN401 (a model that reads rows)
    """Return the same model, which reads the columns that were asked for.

    Raises:
        CycloptsError: It reads no such part of a row.
    """
    from bothways.tasks.columns import column_names

    known = model.column_names if hasattr(model, "column_names") else column_names(model.fitted.columns)
    for name in columns:
        if name not in known:
            there = ", ".join(f"--{each.replace('_', '-')}" for each in known)
            raise usage_error(f"this model reads no --{name.replace('_', '-')}. Its columns are: {there}.")
    return model.with_columns(**columns) if columns else model
