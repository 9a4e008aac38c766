"""A judge: predicts the probability that a (query, passage, answer) triple is good on one dimension.

Shapes: N triples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.choices import (
    CalibrationChoice,
    ClassWeights,
    DetectorChoice,
    GoldenSource,
    JudgeDimension,
    Merge,
    Negatives,
    Shared,
)
from bothways.data import Example
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.judging.labels import JudgeReport, judge_report
from bothways.judging.training_rows import prepare
from bothways.judging.triples import DIMENSIONS, Dimension, Triple, TripleColumns, find_dimension, read_triples
from bothways.tasks import PairClassifier
from bothways.tasks.columns import column_settings, stored_columns
from bothways.tasks.heads.targets import Prediction

if TYPE_CHECKING:
    from bothways.data.known_rows import SharedRows
    from bothways.judging.triples import Rows
    from bothways.tasks.backend import OpenOptions
    from bothways.tasks.outputs import TrainedHead
    from bothways.training.options import TrainingArguments
    from bothways.training.state import TrainingRecord

CARD = "judge"
"""Key in the card of ``bothways.json`` that marks a pair classifier as a judge."""

GOOD = "1"
MERGE: Merge = "maxp"
"""A long passage is as relevant as its most relevant window."""


class ConfidenceArguments(TypedDict, total=False):
    """Options of `PairClassifier.fit` for calibration, out-of-domain detection and class weights."""

    calibration: CalibrationChoice | None
    detector: DetectorChoice | None
    in_domain_share: float
    class_weights: ClassWeights | None


class Judge:
    """A cross-encoder that predicts whether (query, passage, answer) triples are good on one dimension.

    >>> judge = Judge.train("sentence-transformers/all-MiniLM-L6-v2", "triples.jsonl", "context_relevance")
    ... # doctest: +SKIP
    >>> judge.save("runs/judge")  # doctest: +SKIP
    >>> Judge.open("runs/judge").probabilities([Triple("Who won?", "The Broncos won.")])  # doctest: +SKIP
    array([0.98])

    Attributes:
        classifier: The pair classifier; `PairClassifier.from_pretrained` can open a saved judge too.
        dimension: The dimension, see `DIMENSIONS`.
        good: The classifier's label for good triples.
        record: The training record; None for a judge opened from a folder.
    """

    def __init__(
        self,
        classifier: PairClassifier[Prediction],
        dimension: Dimension | JudgeDimension,
        *,
        good: str = GOOD,
        record: "TrainingRecord | None" = None,
    ) -> None:
        self.classifier = classifier
        self.dimension = dimension if isinstance(dimension, Dimension) else find_dimension(dimension)
        self.good = good
        self.record = record
        untrained = record is not None and record.finished_no_epoch
        labels = () if untrained else classifier.fitted.outputs.labels
        if not untrained and good not in labels:
            raise InvalidInput(
                f"expected a pair classifier with the label {good!r}, got one with {', '.join(labels)}. "
                "Name the label of good triples (good=)."
            )

    @classmethod
    def train(
        cls,
        model: str | Path,
        train: "Rows",
        dimension: JudgeDimension,
        *,
        validation: "Rows | None" = None,
        columns: TripleColumns | None = None,
        negatives: Negatives | None = None,
        opening: "OpenOptions | None" = None,
        merge: Merge = MERGE,
        confidence: ConfidenceArguments | None = None,
        **options: "Unpack[TrainingArguments]",
    ) -> Self:
        """Fine-tune an encoder to judge triples, and calibrate it on held-out rows.

        Args:
            model: Folder or name of the encoder to fine-tune, see `bothways.load`.
            train: Triples with labels 0 and 1. If no triple has a label, all count as good and negatives are made.
            dimension: The dimension to judge.
            validation: Held-out triples. Default: about a tenth of ``train``, if possible without queries, passages
                and documents of the rest.
            columns: Names of the columns.
            negatives: Kind of negatives to make, see `bothways.judging.training_rows`.
            opening: Options for opening the model and reading texts.
            merge: Rule that merges the windows of a long passage, see `bothways.tasks.outputs`.
            confidence: Options for calibration and out-of-domain detection.
            options: Training options, see `bothways.training.options.TrainingOptions`.

        Raises:
            InvalidInput: All labels are 0, the labels are not both 0 and 1 and ``negatives`` is ``"none"``, or an
                option is out of range.
        """
        found, seed = find_dimension(dimension), options.get("seed", 0)
        data = prepare(train, found, validation=validation, columns=columns, negatives=negatives, seed=seed)
        classifier = PairClassifier.from_pretrained(model, merge=merge, **(opening or {}))
        record = classifier.fit(
            data.training,
            validation=data.validation,
            text_a=data.columns.text_a,
            text_b=data.columns.text_b,
            label=data.columns.label,
            **(confidence or {}),
            **options,
        )
        if record.finished_no_epoch:
            return cls(classifier, found, record=record)
        stored: dict[str, object] = {"dimension": found.name, "question": found.question, "made_negatives": data.made}
        stored["columns"] = column_settings(columns or TripleColumns())
        notes = [*classifier.card.get("notes", []), *data.notes]
        fitted = replace(classifier.fitted, card={**classifier.card, CARD: stored, "notes": notes})
        return cls(PairClassifier(fitted.backend, fitted), found, record=record)

    @classmethod
    def open(
        cls, folder: str | Path, dimension: JudgeDimension | None = None, **opening: "Unpack[OpenOptions]"
    ) -> Self:
        """Open a saved judge, or one of several judges in a folder.

        Args:
            folder: A folder written by `save`, or a folder with one such subfolder per dimension.
            dimension: The dimension; needed if the folder holds several judges.
            opening: Options for opening the model and reading texts.

        Raises:
            InvalidInput: The folder has no judge, none of this dimension, or several while ``dimension`` is None.
        """
        path = _judge_folder(Path(folder), dimension)
        classifier = PairClassifier.from_pretrained(path, **opening)
        stored = classifier.card.get(CARD)
        name = stored.get("dimension") if isinstance(stored, Mapping) else None
        if name is None:
            raise InvalidInput(
                f"expected a judge in {str(folder)!r}, got a model that was not trained to judge. Train one "
                "with bothways judge train."
            )
        if name not in DIMENSIONS:
            raise CorruptCheckpoint(
                f"bothways.json in {str(folder)!r}: expected the judge's dimension to be one of "
                f"{', '.join(DIMENSIONS)}, got {name!r}. Get the model again from where it came."
            )
        if dimension not in (None, name):
            raise InvalidInput(
                f"expected a judge of {dimension}, got {str(folder)!r}, which judges {name}. Choose {name}, or train "
                f"one with bothways judge train --dimension {dimension}."
            )
        return cls(classifier, DIMENSIONS[name])

    def _with_card(self, **entries: object) -> "Judge":
        """Return a copy of the judge with more entries in the card of its model, as JSON values."""
        return Judge(self.classifier._with_card(**entries), self.dimension, good=self.good, record=self.record)

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Save the judge atomically, like `PairClassifier.save`.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing is left behind.
        """
        self.classifier.save(folder, overwrite=overwrite, golden=golden)

    def probabilities(self, triples: Sequence[Triple], *, show_progress: bool | None = None) -> NDArray[np.float64]:
        """Return the probability (N) that each triple is good, calibrated if the judge has a calibration.

        Raises:
            InvalidInput: A text that the judge reads is empty.
        """
        pairs = [self.dimension.pair(each) for each in triples]
        place = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        unique_UC = self.classifier.predict_proba(list(place), show_progress=show_progress)
        column = self.classifier.fitted.outputs.labels.index(self.good)
        probability_N: NDArray[np.float64] = unique_UC[[place[pair] for pair in pairs], column]
        return probability_N

    def evaluate(
        self,
        data: "Rows",
        *,
        columns: TripleColumns | None = None,
        shared: Shared = "keep",
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> JudgeReport:
        """Compare the judge with human labels: accuracy, AUROC, calibration, and the ranking of systems.

        Args:
            data: Labelled triples; rows without a label are left out.
            columns: Names of the columns. Default: as in training.
            shared: Rows that the judge was trained on: ``"keep"`` them, with a note, or ``"drop"`` them.
            resamples: Bootstrap resamples for the intervals.
            seed: Seed of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: No row has a label, or all are training rows and to be dropped.
        """
        named = columns or self.columns
        labelled = read_triples(data, self.dimension, named).labelled
        if not labelled:
            raise InvalidInput(
                f"expected labels in the column {named.label(self.dimension)!r}, got none. Name another column."
            )
        places, counts = self.compared(labelled, shared)
        rows = [labelled[place] for place in places]
        probability_N = self.probabilities(rows, show_progress=show_progress)
        found = judge_report(rows, probability_N, resamples=resamples, seed=seed)
        return replace(found, report=replace(found.report, shared=counts))

    def compared(self, triples: Sequence[Triple], shared: Shared) -> "tuple[list[int], SharedRows | None]":
        """Compare triples with the judge's training rows.

        Return the indices of all triples, or with ``shared="drop"`` of those that are none, and the number of training
        rows among them; None if the training rows are not known.
        """
        others = [name for name in self.classifier.fitted.outputs.labels if name != self.good]
        names = {1: self.good, 0: others[0] if len(others) == 1 else None, None: None}
        rows = [
            Example(self.dimension.pair(each), names[each.label], place, each.where)
            for place, each in enumerate(triples)
        ]
        kept, counts = self.classifier.fitted.known.compared(rows, shared)
        return [each.row for each in kept], counts.get("")

    @property
    def columns(self) -> TripleColumns:
        """The columns of the training, else the defaults."""
        stored = self.classifier.card.get(CARD)
        return stored_columns(stored if isinstance(stored, Mapping) else {}, TripleColumns())

    # --- for the commands that train ---

    @property
    def fitted(self) -> "TrainedHead":
        """The trained encoder and head of the classifier."""
        return self.classifier.fitted

    def facts(self) -> dict[str, object]:
        """Return a description of the judge as JSON values."""
        return {"dimension": self.dimension.name, **self.classifier.facts()}

    def __repr__(self) -> str:
        return f"Judge({self.classifier.name!r}, {self.dimension.name!r})"


def judges_in(folder: Path) -> list[JudgeDimension]:
    """Return the dimensions for which a folder has a judge, in a subfolder named after the dimension."""
    return [name for name in DIMENSIONS if (folder / name / "config.json").is_file()]


def _judge_folder(folder: Path, dimension: JudgeDimension | None) -> Path:
    if (folder / "config.json").is_file() or not folder.is_dir():
        return folder
    there = judges_in(folder)
    chosen = there[0] if dimension is None and len(there) == 1 else dimension
    if chosen is not None and chosen in there:
        return folder / chosen
    if there:
        got = "no dimension" if dimension is None else dimension
        raise InvalidInput(
            f"expected a dimension that {str(folder)!r} has a judge for ({', '.join(there)}), got {got}. Name one of "
            "them (--dimension)."
        )
    return folder
