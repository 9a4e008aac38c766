"""Opening models as the options say."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import ModelOptions, Overflow, PositiveInt, WholeNumber, bad_usage, usage_error
from bothways.cli.vector_options import VectorOptions

if TYPE_CHECKING:
    from bothways.retrieval import CandidateRanking
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.labelling.trusting import TrustingTask
    from bothways.tasks.opening import OpenOptions
    from bothways.tasks.task import Task
    from bothways.text import TextTokenizer


@Parameter(name="*", group="Reading")
@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How a model reads texts."""

    max_length: PositiveInt | None = None
    """Most tokens read at once; by default what the model was trained with, or can."""
    on_overflow: Overflow | None = None
    """Longer texts are read in overlapping windows, refused, or cut; by default as the model was saved, or in
    windows."""
    stride: WholeNumber | None = None
    """Tokens that neighbouring windows share; by default a quarter of a window's room, where masked words are learnt
    none."""


@Parameter(name="*", group="Reading")
@dataclass(frozen=True, slots=True)
class ClassifierOptions(ReadingOptions):
    """How a model with labels reads texts."""

    labels: tuple[str, ...] | None = None
    """Names of the outputs of a trained head that has none: --labels no --labels yes."""


AS_TRAINED = ClassifierOptions()
AS_IT_CAN = ReadingOptions()

# What a model can be evaluated as besides its task: how well it ranks the candidates of queries.
RANKING = "ranking"


def open_options(reading: ReadingOptions, model: ModelOptions) -> "OpenOptions":
    """The library's words for what the options say."""
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


def open_task(name: str, reading: ClassifierOptions, model: ModelOptions, task: str | None = None) -> "Task":
    """The trained model of this name, as the task that it was trained for; or the one of its tasks that is named.

    Raises:
        CycloptsError: A value of an option is out of range.
    """
    from bothways.compose.opening import open_trained

    with bad_usage():
        return open_trained(name, task=task, labels=reading.labels, **open_options(reading, model))


def open_ranking(
    name: str, reading: ClassifierOptions, model: ModelOptions, relevant: str | None
) -> "CandidateRanking":
    """A model of pairs, or any encoder as an embedder, to rank candidates with.

    Raises:
        CycloptsError: A value of an option is out of range, or the model has no such label.
    """
    from bothways.retrieval import CandidateRanking

    with bad_usage():
        return CandidateRanking.open(name, relevant=relevant, **open_options(reading, model))


def trusting_task(task: "Task", option: str) -> "TrustingTask":
    """A task that answers each text, or pair, with a label, several labels, or a number.

    Raises:
        CycloptsError: It is another; ``option`` is not for it.
    """
    from bothways.tasks.labelling.trusting import TrustingTask

    if not isinstance(task, TrustingTask):
        raise usage_error(
            f"{option} is for trained classifiers and models of pairs, which give a text labels or a number; "
            f"{type(task).__name__} is none."
        )
    return task


def open_embedder(
    name: str, vectors: VectorOptions, reading: ReadingOptions, model: ModelOptions
) -> "SentenceEmbedder":
    """The embedder of this name.

    Raises:
        CycloptsError: A value of an option is out of range.
    """
    from bothways.tasks import SentenceEmbedder

    with bad_usage():
        return SentenceEmbedder.from_pretrained(
            name, pooling=vectors.pooling, dimensions=vectors.dimensions, **open_options(reading, model)
        )


def open_tokenizer(name: str, *, revision: str | None, download: bool) -> "tuple[TextTokenizer, int | None]":
    """The tokenizer of this name, without the weights, and the most tokens that its model reads at once."""
    from bothways.checkpoints.files import read_json
    from bothways.checkpoints.hub import locate
    from bothways.families import family_of
    from bothways.text import TextTokenizer

    folder = locate(name, revision=revision, download=download).folder
    settings = read_json(folder / "config.json")
    family = family_of(settings.get("model_type"))
    return TextTokenizer.from_folder(folder, family.tokenizer), family.config(settings).max_length
