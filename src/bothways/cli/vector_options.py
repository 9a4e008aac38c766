"""Options for models that make vectors."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import Pooling, PositiveInt, bad_usage, given_of, usage_error

if TYPE_CHECKING:
    from bothways.retrieval import CandidateRanking
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.task import Task


@Parameter(name="*", group="Vectors (of embedders)")
@dataclass(frozen=True, slots=True)
class VectorOptions:
    """How texts become vectors."""

    pooling: Pooling | None = None
    """From token states to one vector; by default what the model says, or the mean."""
    dimensions: PositiveInt | None = None
    """Keep this many leading dimensions, for models trained to allow it."""


AS_THE_MODEL_SAYS = VectorOptions()


def use_vectors(model: "Task | CandidateRanking", options: VectorOptions) -> None:
    """Let a model make vectors in the way that was asked for.

    Raises:
        CycloptsError: It makes none, or has fewer dimensions.
    """
    given = given_of(options)
    if not given:
        return
    embedder = _embedder_of(model)
    if embedder is None:
        named = " and ".join(f"--{name}" for name in given)
        raise usage_error(f"{named} can be given for models that compare vectors of texts, but this one does not.")
    if options.dimensions is not None:
        from bothways.tasks.embedding.vectors import check_dimensions

        with bad_usage():
            check_dimensions(options.dimensions, embedder.model.config.hidden)
    embedder.settings = replace(embedder.settings, **given)


def _embedder_of(model: "Task | CandidateRanking") -> "SentenceEmbedder | None":
    from bothways.retrieval import BiEncoder, CandidateRanking
    from bothways.tasks import SentenceEmbedder

    if isinstance(model, CandidateRanking):
        return model.reranker.embedder if isinstance(model.reranker, BiEncoder) else None
    return model if isinstance(model, SentenceEmbedder) else None
