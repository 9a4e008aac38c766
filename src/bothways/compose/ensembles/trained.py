"""A trained ensemble, the inputs that its members read, and their combined scores.

Shapes: M members, R rows of an input, C outputs.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import sha256_of, write_json
from bothways.checkpoints.schema import FORMAT_VERSION, OURS
from bothways.choices import Shared
from bothways.compose.ensembles.combining import (
    Combination,
    Disagreement,
    Spread,
    combination_settings,
    disagreement,
)
from bothways.confidence.confidence import Confidence
from bothways.data import Example, Row, Source, read_rows
from bothways.data.known_rows import SharedRows, compared
from bothways.errors import InvalidInput, UnreadColumn
from bothways.evaluation.differences import LOWER_IS_BETTER
from bothways.evaluation.outcomes import Outcomes
from bothways.inference.texts import blocks
from bothways.lazy import imported
from bothways.tasks.backend import Backend, OpenOptions
from bothways.tasks.columns import AnyColumns, Card, JointColumns, column_names, column_settings, renamed
from bothways.tasks.evaluate import BinaryOutputs
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.heads.targets import Target
from bothways.tasks.outputs import AnyOutputs, TrainedHead
from bothways.tasks.scores import BaselineScores, ScoredRows, Scores
from bothways.text.files import TOKENIZER_FILES
from bothways.text.windows import Text

# The files that determine a member's predictions; other files may change.
_WEIGHTS = (".safetensors", ".bin")
_NAMES = ("config.json", OURS, "sentence_bert_config.json", *TOKENIZER_FILES)

BLOCK = 1024
"""Number of inputs that a member scores before the next member scores the same inputs."""

MemberInputs: TypeAlias = tuple[object, ...]
"""One input as each member reads it, in the order of the members."""

AnyCombiner: TypeAlias = Combiner[AnyOutputs, Any, Any, Any]


def combiner_of(fitted: TrainedHead) -> AnyCombiner:
    """Wrap the outputs of a model in the `Combiner` of its task."""
    combiner: AnyCombiner = imported(fitted.spec.combiner)(fitted.outputs)
    return combiner


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an ensemble."""

    folder: Path
    name: str  # path of the folder, relative to the working directory if the folder is inside it
    fitted: TrainedHead
    # Index in this member's labels of each of the first member's labels; None if outputs have no names.
    places_C: NDArray[np.int64] | None

    @property
    def combiner(self) -> AnyCombiner:
        """The member's outputs in the `Combiner` of its task."""
        return combiner_of(self.fitted)

    def scores(self, block: Sequence[object], options: object) -> list[Scores[object]]:
        """Return the calibrated scores of a block of inputs, with labels in the order of the first member."""
        found = []
        for scores in self.fitted.score_blocks(block, options):
            for each in map(self.combiner.calibrated_scores, scores):
                logits_RC = each.logits_RC if self.places_C is None else each.logits_RC[:, self.places_C]
                found.append(replace(each, logits_RC=logits_RC))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleScores(Scores[object]):
    """The combined scores, and the calibrated scores of each member."""

    members: tuple[Scores[object], ...] = ()


@dataclass(frozen=True, slots=True)
class EnsemblePrediction:
    """The combined prediction, and the members' disagreement.

    Attributes:
        together: The combined prediction. ``tokens_read`` has the maximum windows and dropped tokens of any member.
        disagreement: The members' disagreement; for regression, the spread of their values.
    """

    together: Any  # a prediction of the members' task
    disagreement: Any  # Disagreement, or Spread for regression

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: the fields of the prediction and of the disagreement in one object."""
        return {**self.together.to_dict(), **self.disagreement.to_dict()}


@dataclass(frozen=True, slots=True)
class EnsembleColumns(JointColumns):
    """The columns of each member."""

    members: tuple[str, ...]
    columns: tuple[AnyColumns, ...]

    @property
    def one(self) -> str:
        """Noun phrase for a single input in messages, such as "a text"."""
        return self.columns[0].one

    def read(self, row: Row) -> MemberInputs:
        """Return the input of a row for each member; errors name the member, if not the first, that cannot read it."""
        first = self.columns[0].read(row)
        return (
            first,
            *(first if columns == self.columns[0] else self.read_own(number, row) for number, columns in self.others),
        )

    @property
    def others(self) -> list[tuple[int, AnyColumns]]:
        """Index and columns of each member but the first."""
        return list(enumerate(self.columns))[1:]

    def read_own(self, number: int, row: Row) -> object:
        """Return the input of a row for the member with index ``number``."""
        try:
            return self.columns[number].read(row)
        except InvalidInput as error:
            raise InvalidInput(
                f"{error} The member {self.members[number]!r} was trained on that column: name one column for all "
                "members, with with_columns or an option such as --text."
            ) from error

    def check(self, number: int, value: object) -> MemberInputs:
        """Validate an input given by a caller, and return it once for each member."""
        return (self.columns[0].check(number, value),) * len(self.columns)

    def is_one(self, value: object) -> bool:
        """Return True for a single input, False for a batch."""
        return self.columns[0].is_one(value)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return texts from a command line as rows, with the texts in the input columns of every member."""
        own = [columns.rows_of(texts) for columns in self.columns]
        if all(columns == self.columns[0] for columns in self.columns):
            return own[0]
        rows = [_joined(same) for same in zip(*own, strict=True)]
        for columns, expected in zip(self.columns, own, strict=True):
            if list(map(columns.read, read_rows(rows))) != list(map(columns.read, read_rows(expected))):
                raise InvalidInput(
                    "the members cannot read the same text, since they were trained on columns that overlap: name one "
                    "column for all members, with with_columns or an option such as --text."
                )
        return rows

    def labelled_row(self, value: MemberInputs, label: object) -> dict[str, object]:
        """Return the row of an input and its label, in the columns of the first member."""
        return self.columns[0].labelled_row(value[0], label)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column arguments, such as ``text`` and ``label``."""
        return column_names(self.columns[0])

    def renamed(self, names: Mapping[str, object]) -> "EnsembleColumns":
        """Return the columns with new values of some column arguments, for all members."""
        for name in names:
            if name not in self.names:
                raise UnreadColumn(f"the members have no column argument {name!r}. They have: {', '.join(self.names)}.")
        return replace(self, columns=tuple(renamed(columns, names) for columns in self.columns))


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleOutputs:
    """The outputs of an ensemble: predictions and outcomes of the combined scores."""

    combiner: AnyCombiner  # outputs of the first member, with the confidence of the ensemble
    combination: Combination  # the method that combines the members' scores
    members: tuple[Member, ...]

    @property
    def own(self) -> AnyOutputs:
        """The outputs that turn the combined scores into predictions and reports."""
        return self.combiner.outputs

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of the first member."""
        return self.own.labels

    @property
    def comparable(self) -> tuple[str, ...]:
        """All labels that predictions can have; two models are comparable only if these are the same."""
        return self.own.comparable

    @property
    def confidence(self) -> Confidence:
        """The confidence of the combined predictions, fitted on held-out rows."""
        return self.own.confidence

    @property
    def two_classes(self) -> tuple[str, ...]:
        """Names of the two classes of a binary classifier; empty for other models."""
        return self.own.two_classes if isinstance(self.own, BinaryOutputs) else ()

    @property
    def row_target(self) -> Target:
        """The target of one row of scores, such as the label of a text or the tag of a word."""
        return self.own.row_target

    def combine(self, members: Sequence[Scores[object]], options: object = None) -> EnsembleScores:
        """Combine the members' scores for one input."""
        combined_RC = self.combination.combine(self.row_target, self.combiner.rows(members))
        found = self.combiner.combine(members, combined_RC, options)
        return EnsembleScores(found.logits_RC, found.places, found.read, None, found.votes, tuple(members))

    def decide(self, scores: Sequence[EnsembleScores], options: object = None) -> list[EnsemblePrediction]:
        """Return the predictions of the ensemble, with the members' disagreement."""
        predictions = self.own.decide(scores, options)
        return [
            EnsemblePrediction(prediction, self.disagreement(each, prediction))
            for each, prediction in zip(scores, predictions, strict=True)
        ]

    def disagreement(self, scores: EnsembleScores, prediction: object) -> Disagreement | Spread:
        """Return the members' disagreement on one input, averaged over its rows."""
        own = [self.combiner.disagrees(each, prediction) for each in scores.members]
        differing = [each for each in own if each is not None]
        rows_MRC = self.combiner.rows(scores.members)
        return disagreement(self.row_target, rows_MRC, scores.logits_RC, differing)

    def outcomes(
        self,
        scores: Sequence[EnsembleScores],
        truth: object,
        *,
        calibrated: bool | None = None,
    ) -> Outcomes:
        """Return the ensemble's results on labelled inputs, with the members' metrics and mean disagreement."""
        found = self.own.outcomes(scores, truth, calibrated=calibrated)
        apart = [each.disagreement.to_dict() for each in self.decide(scores)]
        means = {name: float(np.array([each[name] for each in apart], dtype=np.float64).mean()) for name in apart[0]}
        frame = replace(found.frame, disagreement=means, members=tuple(self.metrics_of_members(scores, truth)))
        return replace(found, frame=frame)

    def metrics_of_members(
        self,
        scores: Sequence[EnsembleScores],
        truth: object,
    ) -> list[tuple[str, Mapping[str, float]]]:
        """Return the name and the metrics of each member."""
        by_member = zip(*(each.members for each in scores), strict=True)
        return [
            (member.name, self.combiner.metrics(own, truth))
            for member, own in zip(self.members, by_member, strict=True)
        ]

    def best_member(self, rows: ScoredRows) -> BaselineScores:
        """Return the scores of the member with the best first metric on these rows."""
        # The calibration of the members is in their scores.
        outputs = self.own.with_confidence(Confidence())
        found: list[tuple[float, BaselineScores]] = []
        own = (each.members for each in rows.scores if isinstance(each, EnsembleScores))
        for member, scores in zip(self.members, zip(*own, strict=True), strict=True):
            outcomes = outputs.outcomes(scores, rows.truth)
            metric = outcomes.compared[0]
            value = outcomes.values()[metric]
            name = f"best member on these rows, {member.name!r}"
            gain = -value if metric in LOWER_IS_BETTER else value
            found.append((gain, BaselineScores(name, partial(outputs.outcomes, scores, rows.truth))))
        return max(found, key=lambda each: each[0])[1]

    def read(self, data: Source, columns: EnsembleColumns, options: object = None) -> list[Example[object]]:
        """Return labelled inputs, as each member reads them; the label comes from the first member's label column."""
        rows = [replace(row, number=number) for number, row in enumerate(read_rows(data), start=1)]
        examples = self.own.read(rows, columns.columns[0], options)
        rows = [rows[example.row - 1] for example in examples]  # others, without a label, were dropped
        inputs = [[example.text for example in examples]]
        for number, own in columns.others:
            inputs.append(inputs[0] if own == columns.columns[0] else [columns.read_own(number, row) for row in rows])
        return [replace(example, text=each) for example, each in zip(examples, zip(*inputs, strict=True), strict=True)]

    def encode(self, examples: Sequence[Example[object]]) -> object:
        """Return the encoded labels of labelled inputs."""
        return self.own.encode(examples)


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfMembers:
    """The training rows of all members."""

    members: tuple[Member, ...]

    def compared(
        self, rows: Sequence[Example[object]], shared: Shared, called: str = "rows"
    ) -> tuple[list[Example[object]], dict[str, SharedRows]]:
        """Compare rows with the training rows of all members, see `bothways.data.known_rows.compared`."""
        found = [
            known.find([replace(row, text=row.text[number]) for row in rows])
            for number, member in enumerate(self.members)
            if (known := member.fitted.known.rows()) is not None
        ]
        if not found:
            return list(rows), {}
        kept, counts = compared(np.max(found, axis=0), rows, shared, called)
        return kept, {"": counts}

    def write(self, folder: Path) -> None:
        """Write nothing: the folders of the members have the checksums."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedEnsemble:
    """Several trained models combined: an immutable value."""

    outputs: EnsembleOutputs
    columns: EnsembleColumns
    reading: OpenOptions  # explicit options for long texts, for all members
    card: Card = field(default_factory=dict)
    golden_inputs: tuple[object, ...] = ()  # calibration rows for golden answers
    folder: Path | None = None  # the folder that it was opened from

    @property
    def backend(self) -> Backend:
        """The opened model of the first member."""
        return self.members[0].fitted.backend

    @property
    def members(self) -> tuple[Member, ...]:
        """The members."""
        return self.outputs.members

    def read_texts(self, value: object) -> Iterable[tuple[Backend, Sequence[Text]]]:
        """Return the backend of each member with the texts that it reads of an input."""
        own = value if isinstance(value, tuple) else (value,) * len(self.members)
        members = zip(self.members, own, strict=True)
        return [found for member, each in members for found in member.fitted.read_texts(each)]

    def score_blocks(self, inputs: Iterable[MemberInputs], options: object = None) -> Iterator[list[EnsembleScores]]:
        """Yield the combined scores in blocks; the members score a block one after the other."""
        for block in blocks(inputs, BLOCK):
            own = [
                member.scores([each[number] for each in block], options) for number, member in enumerate(self.members)
            ]
            yield [self.outputs.combine(members, options) for members in zip(*own, strict=True)]

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> dict[str, BaselineScores]:
        """Return the scores of the best member, under the name ``""``."""
        del show_progress
        return {"": self.outputs.best_member(rows)}

    @property
    def known(self) -> RowsOfMembers:
        """The training rows of all members."""
        return RowsOfMembers(self.members)

    def facts(self) -> dict[str, object]:
        """Return members, method, calibration and labels, as JSON values."""
        outputs = self.outputs
        settings = combination_settings(outputs.combination, outputs.confidence.temperature)
        return {"members": [member.name for member in self.members], **settings, **outputs.combiner.names()}

    def write(self, folder: Path) -> None:
        """Write ``bothways.json``, with the paths and checksums of the members."""
        outputs = self.outputs
        stored = [
            {
                "path": Path(os.path.relpath(member.folder.resolve(), folder.resolve())).as_posix(),
                "fingerprint": member_fingerprint(member.folder),
            }
            for member in self.members
        ]
        content = {
            "format_version": FORMAT_VERSION,
            "task": "ensemble",
            **combination_settings(outputs.combination, outputs.confidence.temperature),
            **outputs.combiner.state(),
            "columns": [column_settings(columns) for columns in self.columns.columns],
            "reading": self.reading,
            "card": dict(self.card),
            "members": stored,
        }
        write_json(folder / OURS, content)


def member_fingerprint(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of the files that determine a model's predictions."""
    content = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if (path.suffix in _WEIGHTS or path.name in _NAMES) and path.is_file():
            content.update(f"{path.name} {sha256_of(path)}\n".encode())
    return content.hexdigest()


def _joined(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Merge rows; for each column, keep the last value that is not empty."""
    joined: dict[str, object] = {}
    for row in rows:
        joined |= {name: value for name, value in row.items() if value or name not in joined}
    return joined
