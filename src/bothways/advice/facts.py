"""Published facts about models with their sources, from ``published.toml``.

Keyed by the model's name on the hub, so that a fact can be carried before the model's family is built here, and stays
true afterwards.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import TypeAdapter

from bothways.choices import Language as Language
from bothways.errors import InvalidInput

Purpose = Literal["fine-tuning", "embedding", "replacing tokens"]
Part = Literal["total", "embedding", "backbone"]


@dataclass(frozen=True, slots=True, order=True)
class Measure:
    """The measure of a score; only scores of one measure may be compared.

    Attributes:
        benchmark: Such as ``"MNLI"``.
        metric: What was averaged or counted over what.
        split: ``"dev"`` or ``"test"``.
    """

    benchmark: str
    metric: str
    split: Literal["dev", "test"]

    def __str__(self) -> str:
        """Return the score in words."""
        return f"{self.benchmark} {self.split}, {self.metric}"


@dataclass(frozen=True, slots=True)
class Score:
    """One published result.

    Attributes:
        benchmark: As in `Measure`.
        metric: As in `Measure`.
        split: As in `Measure`.
        value: In percent.
        source: Short name of the publication that it was read in.
        note: What else one has to know to compare it.
    """

    benchmark: str
    metric: str
    split: Literal["dev", "test"]
    value: float
    source: str
    note: str = ""

    @property
    def measure(self) -> Measure:
        """The key that scores to be compared share."""
        return Measure(self.benchmark, self.metric, self.split)


@dataclass(frozen=True, slots=True)
class StatedSize:
    """A number of parameters as a publication gives it.

    Attributes:
        what: Of the whole encoder, its embedding, or the rest.
        millions: The number.
        rounded_to: Unit that it is rounded to, in millions.
        source: Short name of the publication.
        differs: Why a count may differ by more than the rounding; empty where it should not.
    """

    what: Part
    millions: float
    rounded_to: float
    source: str
    differs: str = ""


@dataclass(frozen=True, slots=True)
class PublishedShape:
    """The shape of a model that cannot be counted here yet; ``context`` is None where there is no limit."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Facts that the models of one paper share.

    Attributes:
        title: Name in running text.
        paper: Short name of the publication.
        objective: What they were pre-trained to do.
        innovation: What they brought, in a sentence.
        strengths: What speaks for them.
        weaknesses: What speaks against them.
        uses: What they are best for.
        pretraining: Why to pre-train one from scratch; empty where others are better.
        research: What they are good for in research.
        distilled: Whether they cannot be made without a trained teacher.
    """

    title: str
    paper: str
    objective: str
    innovation: str
    strengths: tuple[str, ...]
    weaknesses: tuple[str, ...]
    uses: tuple[str, ...]
    pretraining: str = ""
    research: str = ""
    distilled: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Published facts about one model.

    Attributes:
        lineage: Key of its lineage.
        cased: Whether it tells upper from lower case.
        language: What it was trained on.
        made_for: What its weights are meant for.
        commit: A commit of the hub's to get it at; empty where none is carried.
        pickled: Whether its weights on the hub are a pickle alone.
        year: Of publication, where no family here says it.
        shape: Its shape, where no family here says it.
        stated: Published numbers of parameters.
        scores: Published results.
    """

    lineage: str
    cased: bool = False
    language: Language = "english"
    made_for: Purpose = "fine-tuning"
    commit: str = ""
    pickled: bool = False
    year: int | None = None
    shape: PublishedShape | None = None
    stated: tuple[StatedSize, ...] = ()
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All of ``published.toml``.

    Raises:
        InvalidInput: A lineage or a source that is named is not there.
    """

    sources: Mapping[str, str]
    lineages: Mapping[str, Lineage]
    models: Mapping[str, ModelFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {lineage.paper for lineage in self.lineages.values()}
        for name, model in self.models.items():
            if model.lineage not in self.lineages:
                raise InvalidInput(f"{name} is of the lineage {model.lineage!r}, which is not among the lineages.")
            named |= {score.source for score in model.scores} | {stated.source for stated in model.stated}
        if missing := sorted(named - self.sources.keys()):
            raise InvalidInput(f"sources that are named but not there: {', '.join(missing)}.")


@cache
def published_facts() -> Facts:
    """Return the published facts, read once."""
    content = files("bothways.advice").joinpath("published.toml").read_text(encoding="utf-8")
    return TypeAdapter(Facts).validate_python(tomllib.loads(content), strict=False, extra="forbid")
