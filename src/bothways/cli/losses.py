"""The loss of an embedder, from options to what ``fit`` is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bothways.choices import LossName
from bothways.cli.options import Flag, PositiveFloat, PositiveInt, usage_error

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.tasks.embedding.embedder import SentenceEmbedder
    from bothways.tasks.embedding.losses import PlainLoss
    from bothways.tasks.embedding.spec import EmbeddingColumns


@Parameter(name="*", group="Loss")
@dataclass(frozen=True, slots=True)
class LossOptions:
    """Options of the loss of an embedder."""

    loss: LossName | None = None
    """By default cosent for scores, and ranking (in-batch negatives) for everything else. It sees the whole batch;
    memory grows with its vectors only, so --batch-size may be in the thousands."""
    scale: PositiveFloat | None = None
    """Inverse temperature of ranking, cosent and a teacher; 20 by default."""
    margin: PositiveFloat | None = None
    """Of triplet, in Euclidean distance; 1 by default."""
    symmetric: Flag | None = None
    """Ranking also finds the anchor of each positive."""
    matryoshka: Annotated[tuple[PositiveInt, ...] | None, Parameter(consume_multiple=True)] = None
    """Dimensions that vectors may later be cut to: --matryoshka 384 128 64."""
    teacher: str | None = None
    """A larger embedder, a folder or a name, to learn likeness from."""


def with_kind(source: "Source", given: Mapping[str, Any], words: dict[str, Any]) -> "tuple[Source, dict[str, Any]]":
    """Return the rows to learn from, and the options of ``fit`` with the kind of rows where nothing else tells it.

    Raises:
        InvalidInput: The rows cannot be read.
    """
    from bothways.tasks.embedding.rows import with_usual_kind
    from bothways.tasks.embedding.spec import NAMES

    if "teacher" in given or not words.keys().isdisjoint(NAMES):
        return source, words
    source, columns = with_usual_kind(source)
    return source, {**words, "columns": columns}


def with_loss(
    embedder: "SentenceEmbedder", given: dict[str, Any], words: dict[str, Any], opening: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of ``fit`` with the loss that was asked for, checked against data and vector length.

    Raises:
        CycloptsError: A setting is one that the loss does not have.
        InvalidInput: The loss cannot learn from such data, or a setting is out of range.
    """
    from bothways.tasks.embedding.losses import Matryoshka
    from bothways.tasks.embedding.spec import NAMES, kind_of
    from bothways.tasks.embedding.training import check_loss

    settings = dict(given)
    cut = settings.pop("matryoshka", None)
    named = {name: value for name, value in words.items() if name in NAMES}
    columns = words.get("columns") or kind_of(**named, teacher="teacher" in settings)
    plain = _plain_loss(settings, columns, opening)
    loss = plain if cut is None else Matryoshka(plain, tuple(cut))
    check_loss(loss, columns, embedder.dimensions)
    return {**words, "loss": loss}


def _plain_loss(settings: dict[str, Any], columns: "EmbeddingColumns", opening: Mapping[str, Any]) -> "PlainLoss":
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.embedding.losses import CoSENT, Distillation, MultipleNegativesRanking, Triplet
    from bothways.tasks.embedding.training import usual_loss

    teacher, name = settings.pop("teacher", None), settings.pop("loss", None)
    if teacher is not None and name is not None:
        raise usage_error("--teacher is a loss of its own, so it does not go with --loss.")
    name = "distillation" if teacher is not None else name or usual_loss(columns).name
    allowed = {"ranking": ("scale", "symmetric"), "triplet": ("margin",)}.get(name, ("scale",))
    for each in settings:
        if each not in allowed:
            raise usage_error(f"--{each} is no setting of the {name} loss, which has: --{', --'.join(allowed)}.")
    match name:
        case "ranking":
            return MultipleNegativesRanking(**settings)
        case "cosent":
            return CoSENT(**settings)
        case "triplet":
            return Triplet(**settings)
        case _:
            return Distillation(SentenceEmbedder.from_pretrained(teacher, **opening), **settings)
