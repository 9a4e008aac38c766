"""What the demo found out, as data: the report is written from this alone.

Shapes: S tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from bothways.demo.settings import DemoSettings, Headline
from bothways.evaluation import Estimate, Report, Temperature
from bothways.explain import Head, TextAttention
from bothways.retrieval import Hit
from bothways.tasks.predictions import Classification
from bothways.training.record import TrainingRecord


@dataclass(frozen=True, slots=True)
class Mistake:
    """A test text that was labelled wrongly, and how sure of it the calibrated model was."""

    text: str
    truth: str
    predicted: str
    probability: float
    probability_of_truth: float


@dataclass(frozen=True, slots=True)
class Classified:
    """A fine-tuned classifier's course and its results on the test texts.

    Attributes:
        record: The course of the training.
        temperature: Fitted on the validation texts.
        before: The test texts with the probabilities as they come.
        after: The same with calibrated ones; the predicted labels are the same.
        nll_change: Mean change by calibration of a text's negative log likelihood; below 0 it helped.
        mistakes: The most confident first.
    """

    record: TrainingRecord
    temperature: Temperature
    before: Report
    after: Report
    nll_change: Estimate
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """Two tasks above one encoder.

    Attributes:
        category: The classifier of categories.
        sentiment: The classifier of sentiments.
    """

    category: Classified
    sentiment: Classified


@dataclass(frozen=True, slots=True)
class FewShot:
    """A classifier that saw few texts.

    Attributes:
        texts: How many texts it was shown.
        report: Its results on the test texts.
    """

    texts: int
    report: Report


@dataclass(frozen=True, slots=True)
class Told:
    """What the classifier said of a headline that it had not seen."""

    headline: Headline
    prediction: Classification


@dataclass(frozen=True, slots=True)
class Found:
    """A query, or a text of the index, and the texts nearest to it."""

    query: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Searched:
    """The search index over all news texts.

    Attributes:
        queries: The demo's queries with their hits.
        neighbours: A few texts with their nearest others.
        category_of: The category of each text, by its id.
        agreement: Share of the texts whose nearest other text has the same category.
        agreement_by_chance: That share if the nearest other text were any other text.
    """

    queries: tuple[Found, ...]
    neighbours: tuple[Found, ...]
    category_of: dict[str, str]
    agreement: float
    agreement_by_chance: float


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """One head over the demo's sentence, with and without a view to the right."""

    attention: TextAttention
    head: Head
    encoder_SS: npt.NDArray[Any]
    causal_SS: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the demo ran; nothing that names the machine."""

    versions: tuple[tuple[str, str], ...]
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that the report tells.

    Attributes:
        settings: What was asked for.
        surroundings: Where it ran.
        counts: Texts in each split.
        category: The classifier of categories, the one that is kept.
        shared: Both labels learnt by one encoder.
        few: A classifier of categories that saw few texts.
        told: Unseen headlines.
        searched: The search index.
        attended: The attention example.
        seconds: Wall time of each stage, by its name.
    """

    settings: DemoSettings
    surroundings: Surroundings
    counts: dict[str, int]
    category: Classified
    shared: Shared
    few: FewShot
    told: tuple[Told, ...]
    searched: Searched
    attended: Attended
    seconds: dict[str, float]
