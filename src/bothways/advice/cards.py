"""The catalogue of models: what is counted here joined with what was published."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from bothways.advice.facts import (
    Facts,
    Language,
    Lineage,
    ModelFacts,
    PublishedShape,
    Purpose,
    Score,
    StatedSize,
    published_facts,
)
from bothways.errors import UnknownModel
from bothways.families import FAMILIES, Family
from bothways.families import catalogue as sizes
from bothways.families.catalogue import PublishedSize


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of the catalogue.

    Attributes:
        name: Its name on the model hub.
        family: The ``model_type`` of its family; None where this package cannot open it.
        title: Name of its lineage in running text.
        year: Of publication.
        paper: Where it was published.
        counted: Sizes counted here; None where ``family`` is.
        shape: Layers, widths, context and vocabulary: counted where that is possible, else as published.
        stated: Numbers of parameters as published.
        lineage: What it shares with the other models of its paper; None where no facts are carried.
        language: What it was trained on.
        cased: Whether it tells upper from lower case; None where no facts are carried.
        made_for: What its weights are meant for.
        scores: Published results.
    """

    name: str
    family: str | None
    title: str
    year: int | None
    paper: str
    counted: PublishedSize | None
    shape: PublishedShape | None
    stated: tuple[StatedSize, ...]
    lineage: Lineage | None
    language: Language | None
    cased: bool | None
    made_for: Purpose
    scores: tuple[Score, ...]


def catalogue(*families: Family) -> tuple[ModelCard, ...]:
    """Every model of families, in their order; all families, and models that are only known of, when none is given."""
    known = published_facts()
    opened = tuple(
        _counted_card(size, known) for size in sizes.published_sizes(*(families or tuple(FAMILIES.values())))
    )
    return opened if families else (*opened, *_known_of(known))


def card(name: str) -> ModelCard:
    """Return the card of one model.

    Args:
        name: Its hub name, or the part behind the slash.

    Raises:
        UnknownModel: No such model in the catalogue; the message names the nearest.
    """
    known = published_facts()
    full = full_name(name)
    found = sizes.find_published(FAMILIES.values(), full)
    if found is not None:
        return _counted_card(sizes.sized(*found), known)
    return _stated_card(full, known.models[full], known)


def full_name(name: str) -> str:
    """Return the hub name of a model of the catalogue, given that name or the part behind the slash, in any case.

    Raises:
        UnknownModel: No such model in the catalogue; the message names the nearest.
    """
    names = model_names()
    short = {full.split("/")[-1].lower(): full for full in names} | {full.lower(): full for full in names}
    if name.lower() not in short:
        # A name that was not typed to its end first; likeness alone would put names of equal length before it.
        begun = [each for each in short if each.startswith(name.lower())]
        near = [*begun, *get_close_matches(name.lower(), short, n=3, cutoff=0.5)][:3]
        raise UnknownModel(
            f"{name!r} is not in the catalogue. "
            + (f"Nearest: {', '.join(dict.fromkeys(short[each] for each in near))}. " if near else "")
            + "bothways models lists all of them."
        )
    return short[name.lower()]


def model_names() -> tuple[str, ...]:
    """Hub names of all models of the catalogue, those that can be opened first."""
    published = (size.name for family in FAMILIES.values() for size in family.published)
    return tuple(dict.fromkeys((*published, *published_facts().models)))


def _known_of(known: Facts) -> tuple[ModelCard, ...]:
    opened = {size.name for family in FAMILIES.values() for size in family.published}
    return tuple(_stated_card(name, model, known) for name, model in known.models.items() if name not in opened)


def _counted_card(size: PublishedSize, known: Facts) -> ModelCard:
    family = FAMILIES[size.family]
    model = known.models.get(size.name)
    lineage = None if model is None else known.lineages[model.lineage]
    return ModelCard(
        name=size.name,
        family=size.family,
        title=family.title if lineage is None else lineage.title,
        year=size.year,
        paper=family.paper if lineage is None else known.sources[lineage.paper],
        counted=size,
        shape=PublishedShape(size.layers, size.hidden, size.heads, size.vocabulary, size.context),
        stated=() if model is None else model.stated,
        lineage=lineage,
        language=None if model is None else model.language,
        cased=None if model is None else model.cased,
        made_for="fine-tuning" if model is None else model.made_for,
        scores=() if model is None else model.scores,
    )


def _stated_card(name: str, model: ModelFacts, known: Facts) -> ModelCard:
    lineage = known.lineages[model.lineage]
    return ModelCard(
        name=name,
        family=None,
        title=lineage.title,
        year=model.year,
        paper=known.sources[lineage.paper],
        counted=None,
        shape=model.shape,
        stated=model.stated,
        lineage=lineage,
        language=model.language,
        cased=model.cased,
        made_for=model.made_for,
        scores=model.scores,
    )


def comparable(cards: Sequence[ModelCard]) -> dict[str, dict[str, float]]:
    """Scores by measure, then by model: what may stand side by side. Of two values of a model the first is taken."""
    table: dict[str, dict[str, float]] = {}
    for each in cards:
        for score in each.scores:
            table.setdefault(str(score.measure), {}).setdefault(each.name, score.value)
    return table
