"""The catalogue of models: counted parameters, and published facts with their sources (``published.toml``)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from bothways.checkpoints.files import read_json
from bothways.choices import FamilyName
from bothways.choices import Language as Language
from bothways.encoder.config import EncoderConfig
from bothways.errors import UnknownModel
from bothways.families import FAMILIES, Family, family_in
from bothways.families.catalogue import PublishedSize, find_published, sized
from bothways.families.family import Published

Purpose = Literal["fine-tuning", "embedding", "replacing tokens"]
Part = Literal["total", "embedding", "backbone"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A benchmark, a metric and a split. Only scores of the same measure are comparable."""

    benchmark: str
    metric: str
    split: Literal["dev", "test"]

    def __str__(self) -> str:
        """Return the measure in words."""
        return f"{self.benchmark} {self.split}, {self.metric}"


@dataclass(frozen=True, slots=True)
class Score:
    """A published result, in percent.

    Attributes:
        benchmark: As in `Measure`.
        metric: As in `Measure`.
        split: As in `Measure`.
        value: The result.
        source: Short name of the publication.
        note: A caveat for comparing it with other scores.
    """

    benchmark: str
    metric: str
    split: Literal["dev", "test"]
    value: float
    source: str
    note: str = ""

    @property
    def measure(self) -> Measure:
        """The key that comparable scores share."""
        return Measure(self.benchmark, self.metric, self.split)


@dataclass(frozen=True, slots=True)
class StatedSize:
    """A published number of parameters.

    Attributes:
        what: The part of the encoder that was counted.
        millions: The number, in millions.
        rounded_to: Unit of the rounding, in millions.
        source: Short name of the publication.
        differs: Reason why the counted size may differ by more than the rounding; empty if it should not.
    """

    what: Part
    millions: float
    rounded_to: float
    source: str
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Facts that the models of one paper share."""

    title: str  # name in running text
    paper: str  # short name of the publication
    objective: str
    innovation: str
    strengths: tuple[str, ...]
    weaknesses: tuple[str, ...]
    uses: tuple[str, ...]
    pretraining: str = ""  # reason to pre-train such a model from scratch; empty if others are better
    research: str = ""  # value for research
    distilled: bool = False  # True if training them needs a trained teacher


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Published facts about one model."""

    lineage: str  # key of its lineage
    cased: bool = False  # True if it distinguishes upper and lower case
    language: Language = "english"  # language of its training texts
    made_for: Purpose = "fine-tuning"  # intended use of its weights
    commit: str = ""  # a commit on the hub; empty if none is recorded
    pickled: bool = False  # True if the hub has its weights only as a pickle
    stated: tuple[StatedSize, ...] = ()
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The contents of ``published.toml``; models refer to lineages, and both to sources, by their keys."""

    sources: Mapping[str, str]
    lineages: Mapping[str, Lineage]
    models: Mapping[str, ModelFacts]


@cache
def published_facts() -> Facts:
    """Return the published facts, read once."""
    content = files("bothways.advice").joinpath("published.toml").read_text(encoding="utf-8")
    return TypeAdapter(Facts).validate_python(tomllib.loads(content), strict=False, extra="forbid")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model of the catalogue.

    Attributes:
        name: Its name on the model hub.
        family: The ``model_type`` of its family.
        title: Display name of its lineage.
        year: Year of publication.
        paper: The publication.
        counted: Sizes computed from its configuration.
        stated: Published numbers of parameters.
        lineage: Facts shared by the models of its paper; None if no facts are recorded.
        language: Language of its training texts; None if no facts are recorded.
        cased: True if it distinguishes upper and lower case; None if no facts are recorded.
        made_for: Intended use of its weights.
        scores: Published results.
    """

    name: str
    family: str
    title: str
    year: int
    paper: str
    counted: PublishedSize
    stated: tuple[StatedSize, ...]
    lineage: Lineage | None
    language: Language | None
    cased: bool | None
    made_for: Purpose
    scores: tuple[Score, ...]


def catalogue(family: FamilyName | None = None) -> tuple[ModelCard, ...]:
    """Return every model of a family, or of all families."""
    families = FAMILIES.values() if family is None else (FAMILIES[family],)
    return tuple(_card(each, size) for each in families for size in each.published)


def card(name: str) -> ModelCard:
    """Return the card of one model.

    Args:
        name: Its hub name, or the part after the slash.

    Raises:
        UnknownModel: The catalogue has no such model; the message suggests similar names.
    """
    return _card(*find_model(name))


def find_model(name: str) -> tuple[Family, Published]:
    """Return a published model and its family, by its hub name or the part after the slash, ignoring case."""
    names = model_names()
    short = {full.split("/")[-1].lower(): full for full in names} | {full.lower(): full for full in names}
    found = find_published(FAMILIES.values(), short.get(name.lower(), ""))
    if found is None:
        # Names that start with the given text come before names that are merely similar.
        begun = [each for each in short if each.startswith(name.lower())]
        near = [*begun, *get_close_matches(name.lower(), short, n=3, cutoff=0.5)][:3]
        raise UnknownModel(
            f"{name!r} is not in the catalogue. "
            + (f"Nearest: {', '.join(dict.fromkeys(short[each] for each in near))}. " if near else "")
            + "The command bothways models lists all models."
        )
    return found


def model_names() -> tuple[str, ...]:
    """Return the hub names of all models of the catalogue."""
    return tuple(size.name for family in FAMILIES.values() for size in family.published)


def find_config(name_or_folder: str | Path) -> tuple[str, EncoderConfig]:
    """Return the name and configuration of a catalogue model, or of a folder with a ``config.json``.

    Raises:
        UnknownModel: The argument is neither a folder nor a model of the catalogue.
        CorruptCheckpoint: The folder has no usable ``config.json``.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        settings = read_json(folder / "config.json")
        return str(name_or_folder), family_in(settings).config(settings)
    family, published = find_model(str(name_or_folder))
    return published.name, family.config(published.settings)


def _card(family: Family, size: Published) -> ModelCard:
    known = published_facts()
    model = known.models.get(size.name)
    lineage = None if model is None else known.lineages[model.lineage]
    return ModelCard(
        name=size.name,
        family=family.model_type,
        title=family.title if lineage is None else lineage.title,
        year=size.year,
        paper=family.paper if lineage is None else known.sources[lineage.paper],
        counted=sized(family, size),
        stated=() if model is None else model.stated,
        lineage=lineage,
        language=None if model is None else model.language,
        cased=None if model is None else model.cased,
        made_for="fine-tuning" if model is None else model.made_for,
        scores=() if model is None else model.scores,
    )
