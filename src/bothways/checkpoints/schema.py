"""Schemas of ``bothways.json`` and the labels of ``config.json``, which are checked when a stored model is read.

Each task has its own schema: ``StoredTags.of(content)`` checks the content for a tagger. All schemas extend `Stored`,
which has the values that all models share. Unknown keys belong to another kind of model or to a newer release, and are
ignored. A null stands for a value that was not fitted or not requested.

Checks that need the opened model (the maximum length, one value for each label) are made elsewhere, with the same
error: `damaged`.
"""

from collections.abc import Mapping
from typing import Annotated, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from bothways.choices import (
    CalibrationMethod,
    DetectorKind,
    GuaranteeKind,
    HeadName,
    LabelRule,
    LabelValue,
    Merge,
    Method,
    Overflow,
    Pooling,
    Scheme,
    TargetKind,
)
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, InvalidInput, UnsupportedConfig

OURS = "bothways.json"
GOLDEN_FILE = "golden.json"
FORMAT_VERSION = 1

Extras = Mapping[str, object]
Thresholds = list[Annotated[float, Field(ge=0, le=1)]]

# Maximum number of members of an ensemble: each is opened, and predicts every row.
MAX_MEMBERS = 100

# Names of heads are used in file names, and as values of options on the command line.
HEAD_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


# One pooling, or several whose vectors are concatenated.
_POOLING = f"({'|'.join(get_args(Pooling))})"
PoolingNames = Annotated[str, StringConstraints(pattern=f"^{_POOLING}([+]{_POOLING})*$")]

# Values must have exactly the expected JSON types: neither true, nor "1", nor NaN is a number.
_STRICT = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False, defer_build=True)


class _Part(BaseModel):
    """A part of a file."""

    model_config = _STRICT


class StoredTemperature(_Part):
    """A temperature, see `bothways.evaluation.temperature.Temperature`."""

    model_config = ConfigDict(extra="forbid")

    value: float = Field(gt=0)
    slope: float = Field(ge=0)


class StoredCalibration(_Part):
    """A calibration method and its parameters, read by `bothways.evaluation.calibration.calibration_from`."""

    method: CalibrationMethod


class StoredGuarantee(_Part):
    """A coverage guarantee; its held-out scores are in ``confidence.safetensors``."""

    model_config = ConfigDict(extra="forbid")

    kind: GuaranteeKind


class StoredDetection(_Part):
    """Settings of out-of-domain detection; the detector's arrays are in ``confidence.safetensors``."""

    __pydantic_extra__: dict[str, int | float]

    kind: DetectorKind
    threshold: float
    unit_length: bool | None = None

    @property
    def settings(self) -> dict[str, int | float | bool]:
        """The values besides the kind and the threshold."""
        stored = {} if self.unit_length is None else {"unit_length": self.unit_length}
        return {**self.__pydantic_extra__, **stored}


class StoredBase(_Part):
    """The model that a training started from."""

    name: str
    revision: str | None
    sha256: str


class StoredBaseline(_Part):
    """The baseline of a training; the weights of its head are in ``baseline/head.safetensors``."""

    name: str
    base: StoredBase | None
    constant: list[float]
    config: dict[str, object]
    outputs: dict[str, object]


class Stored(BaseModel):
    """The values that are stored for every model, such as its text options."""

    model_config = _STRICT

    max_length: int | None = Field(default=None, ge=1, description="a whole number of at least 1")
    on_overflow: Overflow | None = Field(default=None, description="'window', 'error', 'truncate' or 'truncate_left'")
    stride: int | None = Field(default=None, ge=0, description="a whole number of at least 0")
    task: str | None = Field(default=None, description="the name of a task")
    as_words: bool = Field(default=False, description="true or false")
    temperature: StoredTemperature | None = Field(default=None, description="a value above 0 and a slope of at least 0")
    card: dict[str, object] = Field(default={}, description="an object")
    baseline: StoredBaseline | None = Field(default=None, description="a name, a base model, and settings of a head")
    checksums: dict[str, str] = Field(default={}, description="an object that must map file names to SHA-256")

    @classmethod
    def of(cls, content: Extras) -> Self:
        """Parse the content of ``bothways.json``, or its entry for one of several heads, by this schema."""
        version = content.get("format_version", FORMAT_VERSION)
        if isinstance(version, bool) or version != FORMAT_VERSION:
            raise UnsupportedConfig(
                f"{OURS} has the format version {version!r}, but this version of bothways reads {FORMAT_VERSION}. "
                "Open the model with the version that saved it."
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            name = str(error.errors(include_url=False)[0]["loc"][0])
            raise damaged(name, str(cls.model_fields[name].description), content.get(name)) from error


class StoredLabels(Stored):
    """The values of a classifier or a regression model, for texts or pairs."""

    merge: Merge | None = Field(default=None, description="a way to merge windows")
    target: TargetKind | None = Field(default=None, description="'single', 'multi' or 'regression'")
    thresholds: Thresholds | None = Field(default=None, description="a list of numbers from 0 to 1")
    label_values: list[LabelValue] | None = Field(default=None, description="a list of strings, numbers and booleans")
    normalise_labels: bool = Field(default=False, description="true or false")
    vector_labels: list[str] | None = Field(default=None, description="a list of labels")
    training_mean: float | None = Field(default=None, ge=-1e18, le=1e18, description="a number up to 1e18, or null")
    calibration: StoredCalibration | None = Field(default=None, description="a method and its numbers")
    conformal: StoredGuarantee | None = Field(default=None, description="a kind and its numbers")
    out_of_domain: StoredDetection | None = Field(default=None, description="a kind, a threshold and numbers")


class StoredTags(Stored):
    """The values of a tagger."""

    scheme: Scheme | None = Field(default=None, description="a scheme of tags")
    normalise_labels: bool = Field(default=False, description="true or false")
    vector_labels: list[str] | None = Field(default=None, description="a list of tags")


class StoredChoices(Stored):
    """The values of a multiple choice model."""

    label_is: LabelRule = Field(default="index", description="'index' or 'text'")


class StoredAnswers(Stored):
    """The values of a question answering model."""

    no_answer_threshold: float | None = Field(default=None, description="a finite number, or null")
    max_answer_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1")


class StoredVectors(Stored):
    """The values of a sentence embedder."""

    pooling: PoolingNames | None = Field(default=None, description="the name of a pooling, or several joined by '+'")
    unit_length: bool | None = Field(default=None, description="true or false")
    dimensions: int | None = Field(default=None, ge=1, description="a whole number of at least 1")


class StoredGraph(_Part):
    """The output of an exported graph for its task: values for each window, or for each token of a window."""

    head: HeadName | None  # the head that computes the values; None for embeddings
    per_token: bool
    size: int = Field(ge=1)  # number of the head's outputs, or of the embedding's dimensions
    # Number of values in a row: the outputs, then the input of an out-of-domain detector if there is one.
    width: int = Field(ge=1)
    pooling: PoolingNames | None = None  # the pooling of tokens to an embedding


class StoredHead(Stored):
    """One of several heads on an encoder: the values that all tasks share. Others are in the schema of its task."""

    name: Annotated[str, StringConstraints(pattern=HEAD_NAME)]
    config: dict[str, object]


class StoredTasks(Stored):
    """The values of a model with several heads."""

    merge: Merge | None = Field(default=None, description="a way to merge windows")
    heads: list[StoredHead] = Field(
        min_length=2,
        max_length=1000,
        description="a list of two or more objects, each with a name of its own and a config",
    )


class StoredMember(_Part):
    """The path of a member of an ensemble, and a checksum over its files."""

    path: str
    fingerprint: str


class StoredEnsemble(Stored):
    """The values of an ensemble: several models whose predictions are combined."""

    method: Method = Field(description="'mean', 'vote' or 'stacked'")
    members: list[StoredMember] = Field(
        min_length=2,
        max_length=MAX_MEMBERS,
        description=f"a list of 2 to {MAX_MEMBERS} objects, each with a path and a fingerprint",
    )
    no_answer_threshold: float | None = Field(default=None, description="a finite number, or null")
    weights: list[float] = Field(default=[], description="a list of finite numbers")
    biases: list[float] = Field(default=[], description="a list of finite numbers")
    thresholds: Thresholds | None = Field(default=None, description="a list of numbers from 0 to 1")
    conformal: list[float] | None = Field(default=None, min_length=1, description="a list of finite numbers")
    columns: list[dict[str, object]] = Field(description="a list of objects with names of columns")
    reading: Stored = Field(description="an object with text options")


def at_most(name: str, value: int | None, most: int) -> int | None:
    """Return ``value`` (an integer or None), or raise CorruptCheckpoint if it is above ``most``."""
    if value is not None and value > most:
        raise damaged(name, f"a whole number of at most {most}", value)
    return value


def damaged(name: str, expected: str, value: object) -> CorruptCheckpoint:
    """Return the error for an invalid value."""
    return CorruptCheckpoint(
        f"{OURS} must give {name} as {expected}, but it is {value!r:.200}: the file was altered or damaged. "
        "Get the model again from where it came."
    )


def label_names(settings: Mapping[str, object], count: int) -> tuple[str, ...]:
    """Return the names of a head's labels in the order of its scores; ``LABEL_0`` and so on if there are none."""
    stored = settings.get("id2label")
    if stored is None:
        return placeholders(count)
    names = numbered_names(stored)
    if len(names) != count:
        raise IncompatibleWeights(
            f"config.json names {len(names)} labels in id2label, but the head has {count} scores: they do not belong "
            "together."
        )
    return names


def placeholders(count: int) -> tuple[str, ...]:
    """Return the names that transformers gives to labels without names."""
    return tuple(f"LABEL_{index}" for index in range(count))


def numbered_names(stored: object) -> tuple[str, ...]:
    """Return the names in ``id2label``, ordered by their numbers."""
    if not isinstance(stored, Mapping) or not all(str(key).isdecimal() and len(str(key)) < 10 for key in stored):
        raise CorruptCheckpoint(f"id2label in config.json must map numbers to labels, but it is {stored!r:.200}.")
    return tuple(str(stored[key]) for key in sorted(stored, key=int))


def different_names(stored: object) -> tuple[str, ...]:
    """Return the names in ``id2label``, ordered by their numbers; raise InvalidInput if two are equal."""
    names = numbered_names(stored)
    for number, name in enumerate(names):
        if (first := names.index(name)) < number:
            raise InvalidInput(
                f"id2label in config.json gives the outputs {first} and {number} the same name, {name!r}. Pass "
                "labels=[...] (--labels) with a name of its own for each output, in their order."
            )
    return names


def label_settings(names: tuple[str, ...]) -> dict[str, object]:
    """Return the settings of ``config.json`` for labels."""
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
