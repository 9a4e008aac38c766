"""Compare a model with golden answers: what differs, by cause.

Shapes: S kept numbers of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from bothways.checkpoints.golden import (
    ENCODER,
    KEPT,
    MAX_GOLDEN,
    Answering,
    GoldenInputs,
    Json,
    row_of,
    settings_of,
    tolerance_of,
    versions,
    weights_of,
)
from bothways.checkpoints.schema import GOLDEN_FILE
from bothways.errors import AnswersChanged, BothwaysError, CorruptCheckpoint, InvalidInput, UnsupportedConfig, shown
from bothways.reading import parse_json, read_bytes

Cause: TypeAlias = Literal["tokenizer", "weights", "settings", "arithmetic", "answers"]

# Calibration and softmax may steepen the numbers of the head on their way to a prediction.
_STEEPER = 10

# Largest share of the inputs whose prediction may be another one while all its numbers are equal: two candidates have
# the same score, and the last bits decide.
_MOST_TIES = 1 / 8

# Differences of one cause that are described.
_SHOWN = 3
_TEXT = 40  # characters of an input

_STRICT = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Numbers = Annotated[list[float], Field(max_length=KEPT)]


class GoldenAnswer(BaseModel):
    """One input of a golden file, its tokens, and the answer."""

    model_config = _STRICT

    input: str | list[object]
    tokens: Annotated[list[str], Field(max_length=KEPT)]
    ids: Annotated[list[int], Field(max_length=KEPT)]
    token_count: int = Field(ge=0)
    ids_sha256: _Sha256
    size: int = Field(ge=0)
    numbers: _Numbers
    answer_size: int = Field(ge=0)
    answer_numbers: _Numbers
    answer_words: Annotated[list[str], Field(max_length=KEPT)]
    answer_sha256: _Sha256

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        kept = (len(self.numbers), self.size), (len(self.answer_numbers), self.answer_size)
        if len(self.tokens) != len(self.ids) or any(length != min(size, KEPT) for length, size in kept):
            raise ValueError("the lengths of its lists do not agree")
        return self


class GoldenOrigin(BaseModel):
    """The precision, the device and the versions that computed golden answers."""

    model_config = _STRICT

    precision: str
    device: str
    versions: dict[str, str]


class GoldenFile(BaseModel):
    """The content of a golden file."""

    model_config = _STRICT

    format_version: int
    task: str
    inputs: str
    architecture: dict[str, object]
    made: GoldenOrigin
    tolerance: float = Field(gt=0, le=1)
    weights: dict[str, str]
    settings: dict[str, object]
    answers: list[GoldenAnswer] = Field(min_length=1, max_length=1000)

    @classmethod
    def read(cls, path: Path, model: str) -> Self:
        """Read a golden file of a model, whose name is in the message if there is none.

        Raises:
            InvalidInput: There is no such file.
            CorruptCheckpoint: The file is damaged.
            UnsupportedConfig: A newer version of the package wrote the file.
        """
        try:
            content = parse_json(read_bytes(path, MAX_GOLDEN))
        except FileNotFoundError as error:
            raise InvalidInput(_absent(path, model)) from error
        except ValueError as error:
            raise CorruptCheckpoint(f"{str(path)!r} must be a JSON file: {error}. {_AGAIN}") from error
        match content:
            case {"format_version": int(number)} if number != 1:
                raise UnsupportedConfig(
                    f"{str(path)!r} has the format version {number}, but this version of bothways reads 1: "
                    "check the model with the version that recorded it."
                )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise CorruptCheckpoint(
                f"{str(path)!r} is not a file of golden answers: {place}: {first['msg']}, got "
                f"{shown(first['input'])}. {_AGAIN}"
            ) from error


_AGAIN = "Record the answers again with --record."


def _absent(path: Path, model: str) -> str:
    if path.name != GOLDEN_FILE:
        return f"expected a file of golden answers, but {str(path)!r} does not exist: record it with --record."
    if path.parent == Path(model):
        return f"{model!r} has no golden answers: record them with bothways check {model} --record {path}."
    return (
        f"{model!r} has no golden answers: record them in a file with bothways check {model} --record FILE, and "
        "compare with --against FILE."
    )


# --- comparing ---


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the golden answers.

    Attributes:
        cause: ``tokenizer``, ``weights`` or ``settings``; ``answers`` if the answers differ as well, and
            ``arithmetic`` if nothing but the answers does.
        detail: The difference in a sentence.
    """

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """A comparison of a model with its golden answers.

    Attributes:
        model: Name of the model.
        task: Its task, or ``encoder``.
        inputs: Number of inputs that were compared.
        source: Where the inputs come from: ``validation``, ``neutral`` or ``given``.
        recorded: Precision, device and versions that the golden answers were computed with.
        now: Precision, device and versions of the comparison.
        tolerance: Largest difference between numbers that counts as equal, relative to the largest number.
        largest_difference: Largest difference that was found; None if the answers have no equal number of numbers.
        ties: Number of inputs with another prediction, such as another span, of an equal score.
        differences: All differences; empty if the model answers as recorded.
    """

    model: str
    task: str
    inputs: int
    source: str
    recorded: Mapping[str, object]
    now: Mapping[str, object]
    tolerance: float
    largest_difference: float | None
    ties: int
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: the attributes, ``ok``, and the ``causes`` of the differences."""
        causes = list(dict.fromkeys(each.cause for each in self.differences))
        return {"ok": self.ok, "causes": causes, **asdict(self)}

    def check(self) -> None:
        """Raise `AnswersChanged`, which lists the differences, unless there are none."""
        if self.differences:
            listed = "\n".join(f"  {each.cause}: {each.detail}" for each in self.differences)
            raise AnswersChanged(
                f"{self.model!r} differs from its golden answers:\n{listed}\nIf this is wanted, record them again with "
                "bothways check --record."
            )


def compare_golden(golden: GoldenFile, model: Answering, folder: Path, name: str) -> GoldenReport:
    """Compare a model in a folder with golden answers.

    Raises:
        InvalidInput: The golden answers belong to another model: of another task or architecture.
    """
    _check_same_model(golden, model, name)
    precision, device = model.arithmetic
    tolerance = golden.tolerance
    if precision != golden.made.precision:
        tolerance = max(tolerance, tolerance_of(precision))
    differences = [*_weights(golden, folder), *_settings(golden, folder)]
    largest, ties = None, list[str]()
    try:
        inputs = model.inputs_of([each.input for each in golden.answers])
        now = [row_of(probe) for probe in model.answers(inputs)]
    except BothwaysError as error:
        differences.append(Difference("answers", f"the model no longer answers these inputs: {error}"))
    else:
        rows = [GoldenAnswer.model_validate({"input": "", **row}) for row in now]
        differences[:0] = _tokenizer(golden.answers, rows)
        largest, details, ties = _answers(golden.answers, rows, tolerance)
        if len(ties) > _MOST_TIES * len(rows):
            details, ties = details + ties, []
        cause: Cause = "answers" if differences else "arithmetic"
        differences += [Difference(cause, detail) for detail in _first(details, len(rows), "answers to")]
    made = {"precision": precision, "device": device, "versions": versions(model.runtime)}
    return GoldenReport(
        name, golden.task, len(golden.answers), golden.inputs, golden.made.model_dump(), made,
        tolerance, largest, len(ties), tuple(differences),
    )  # fmt: skip


def check_folder(folder: Path, name: str, task: Callable[[], Answering], encoder: Callable[[], Answering]) -> None:
    """Raise `AnswersChanged` if a model differs from the golden answers in its folder.

    ``encoder`` returns the model without its task, to be compared if the folder was saved as an encoder.
    """
    golden = GoldenFile.read(folder / GOLDEN_FILE, name)
    compare_golden(golden, encoder() if golden.task == ENCODER else task(), folder, name).check()


def _check_same_model(golden: GoldenFile, model: Answering, name: str) -> None:
    ours, theirs = dict(model.architecture), golden.architecture
    if golden.task != model.task:
        found, expected = f"those of a model for {golden.task}", f"those of a model for {model.task}"
    elif theirs != ours:
        found, expected = _listed(theirs), _listed(ours)
    else:
        return
    raise InvalidInput(
        f"the golden answers belong to another model than {name!r}: expected {expected}, got {found}. Give the file "
        "that was recorded from this model, or record one with --record."
    )


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _tokenizer(golden: Sequence[GoldenAnswer], rows: Sequence[GoldenAnswer]) -> Iterator[Difference]:
    details = [
        f"{_named(number, one)}: {_first_token(one, other)}"
        for number, (one, other) in enumerate(zip(golden, rows, strict=True), start=1)
        if one.ids_sha256 != other.ids_sha256
    ]
    for detail in _first(details, len(rows), "token ids of"):
        yield Difference("tokenizer", detail)


def _named(number: int, answer: GoldenAnswer) -> str:
    """Return the number of an input and the beginning of its text."""
    text = answer.input if isinstance(answer.input, str) else json.dumps(answer.input, ensure_ascii=False)
    return f"input {number}, {text[:_TEXT]!r}{'...' if len(text) > _TEXT else ''}"


def _first_token(one: GoldenAnswer, other: GoldenAnswer) -> str:
    """Describe the first token that differs."""
    then, now = (list(zip(each.tokens, each.ids, strict=True)) for each in (one, other))
    for place in range(max(len(then), len(now))):
        was, is_ = (_spelt(each[place : place + 1]) for each in (then, now))
        if was != is_:
            return f"token {place + 1} was {was}, is {is_}"
    counts = f"{one.token_count} tokens then, {other.token_count} now"
    return f"its first {len(then)} tokens are equal, but later tokens or their windows differ ({counts})"


def _spelt(tokens: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{token!r} ({number})" for token, number in tokens) or "missing"


def _weights(golden: GoldenFile, folder: Path) -> Iterator[Difference]:
    for name, was, now in _changed(golden.weights, weights_of(folder)):
        if was is None or now is None:
            yield Difference("weights", f"{name} {'is new' if was is None else 'is missing'}")
        else:
            yield Difference("weights", f"the SHA-256 of {name} was {str(was)[:12]}..., is {str(now)[:12]}...")


def _settings(golden: GoldenFile, folder: Path) -> Iterator[Difference]:
    for name, was, now in _changed(golden.settings, settings_of(folder)):
        yield Difference("settings", f"{name} was {shown(was)}, is {shown(now)}")


def _changed(then: Mapping[str, object], now: Mapping[str, object]) -> list[tuple[str, Json, Json]]:
    names = dict.fromkeys((*then, *now))
    return [(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]


def _answers(
    golden: Sequence[GoldenAnswer], rows: Sequence[GoldenAnswer], tolerance: float
) -> tuple[float, list[str], list[str]]:
    """Return the largest relative difference of numbers, and descriptions of other answers and of ties."""
    largest, details, ties = 0.0, list[str](), list[str]()
    scale = max([1e-12, *(abs(value) for row in golden for value in row.numbers)])
    steep = max([1.0, *(abs(value) for row in golden for value in row.answer_numbers)]) * _STEEPER
    for number, (one, other) in enumerate(zip(golden, rows, strict=True), start=1):
        where = f"{_named(number, one)}: "
        if (one.size, one.answer_size) != (other.size, other.answer_size):
            counts = [f"{each.size + each.answer_size} numbers" for each in (one, other)]
            details.append(f"{where}the answer had {counts[0]}, has {counts[1]}")
            continue
        apart = max(
            _largest(one.numbers, other.numbers) / scale, _largest(one.answer_numbers, other.answer_numbers) / steep
        )
        largest = max(largest, apart)
        if apart > tolerance:
            words = f"; {_first_word(one, other)}" if one.answer_sha256 != other.answer_sha256 else ""
            details.append(f"{where}numbers differ by {apart:.1e} of the largest{words}")
        elif one.answer_sha256 != other.answer_sha256:
            ties.append(f"{where}{_first_word(one, other)}")
    return largest, details, ties


def _first(details: Sequence[str], count: int, what: str) -> list[str]:
    """Return the first descriptions, and how many there are."""
    more = [f"the {what} {len(details)} of {count} inputs differ"] if len(details) > _SHOWN else []
    return [*details[:_SHOWN], *more]


def _first_word(one: GoldenAnswer, other: GoldenAnswer) -> str:
    """Describe the first word of a prediction, such as a label, that differs."""
    for was, now in zip(one.answer_words, other.answer_words, strict=False):
        if was != now:
            return f"the prediction was {shown(was, 40)}, is {shown(now, 40)}"
    return "the prediction has other words"


def _largest(then: Sequence[float], now: Sequence[float]) -> float:
    return float(np.abs(np.subtract(then, now)).max()) if then else 0.0


def given_inputs(values: Sequence[object]) -> GoldenInputs:
    """Return the user's own inputs of golden answers."""
    return GoldenInputs("given", values)
