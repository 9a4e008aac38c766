"""Several trained models of one task that answer together, also such of different families."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from bothways.checkpoints.schema import MAX_MEMBERS, StoredEnsemble, damaged
from bothways.compose.ensembles.combining import Combination, Mean, Method, Vote, check_method
from bothways.compose.ensembles.files import (
    asked_reading,
    combination_settings,
    read_ensemble,
    stored_combination,
    write_ensemble,
)
from bothways.compose.ensembles.members import gathered, open_members
from bothways.compose.ensembles.stacking import fit_stacking
from bothways.compose.ensembles.trained import EnsembleColumns, EnsemblePrediction, TogetherScores, TrainedEnsemble
from bothways.data import Source
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation.temperature import Temperature
from bothways.progress import phase, reporting
from bothways.tasks.backend import OpenOptions
from bothways.tasks.card import NOTICES_NOTHING, CardMetrics, Part, metrics_card, unmeasured
from bothways.tasks.columns import column_settings, stored_columns
from bothways.tasks.outputs import score_inputs
from bothways.tasks.predict import Predictor
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.tasks.task import AnyTask

# What a reader of the card of an ensemble has to know that was not calibrated.
UNCALIBRATED = (
    unmeasured("no rows were given to calibrate with"),
    "The combined probabilities are not calibrated, though those of the members may be.",
)

ENSEMBLE = "ensemble"


class Ensemble(Predictor[str | tuple[str, str], EnsemblePrediction, TrainedEnsemble]):
    """Several trained models of one task that answer together.

    Members are models of any task on a head, also of a few examples: they read the same kind of input and have the same
    labels. Those that label whole texts or pairs read each the columns of its own training; where rows of the scores
    are parts of the input (words, spans), all read what the first one does.

    >>> ensemble = Ensemble.of(["runs/a", "runs/b"], method="mean", calibrate="validation.jsonl")  # doctest: +SKIP
    >>> ensemble.predict("Lakers win in overtime").together.label  # doctest: +SKIP
    'sports'

    Attributes:
        folders: Where the members are.
        members: The members.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        members: Sequence[AnyTask],
        fitted: TrainedEnsemble,
        reading: OpenOptions,
    ) -> None:
        self.folders = list(folders)
        self.members = list(members)
        self._fitted: TrainedEnsemble | None = fitted
        # How all members were asked to read texts, where that was not to be their own way.
        self._asked_reading = reading

    @classmethod
    def of(
        cls,
        members: Sequence[str | Path],
        *,
        method: Method = "mean",
        calibrate: Source | None = None,
        columns: Mapping[str, object] | None = None,
        show_progress: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Combine saved models.

        Args:
            members: Folders of two or more models of one task.
            method: ``"mean"`` of the probabilities (or numbers), ``"vote"``, or ``"stacked"``, which is fitted on the
                calibration data; numbers have the mean only, and outputs that are other ones for every input
                cannot be stacked.
            calibrate: Held-out labelled rows that none of the members was trained on; a file, or rows.
            columns: Where parts of a row stand that all members are to read alike, as `with_columns` takes them.
            show_progress: Force the progress bar on or off.
            options: Where the members run, and how they read texts, where that is not to be their own way; see
                `bothways.tasks.backend.OpenOptions`. How they read is saved with the ensemble.

        Raises:
            InvalidInput: The models do not belong together, the method does not fit them, or the data are not usable.
            UnreadColumn: The members read no part of a row that ``columns`` names.
            NotFitted: One is no trained model.
        """
        if not 2 <= len(members) <= MAX_MEMBERS:
            raise InvalidInput(f"an ensemble has from 2 to {MAX_MEMBERS} members, but got {len(members)}.")
        folders = list(map(Path, members))
        models = open_members(folders, options)
        fitted = gathered(folders, models, Vote() if method == "vote" else Mean())
        combiner = fitted.outputs.combiner
        check_method(method, combiner.row_target, stackable=combiner.stackable)
        if method == "stacked" and calibrate is None:
            raise InvalidInput("stacking is fitted on held-out rows: give some to calibrate with.")
        fitted = replace(fitted, columns=fitted.columns.renamed(columns or {}))
        made = cls(folders, models, fitted, asked_reading(options))
        if calibrate is None:
            measured = CardMetrics(None, (*UNCALIBRATED, *_blindness(models)))
            card = _card(method, [{"member": member.name} for member in fitted.members], measured)
            made._fitted = replace(fitted, card=card)
        else:
            with reporting(show_progress):
                made._fitted = made._calibrated(calibrate, method)
        return made

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Unpack[OpenOptions]) -> Self:
        """Open a saved ensemble.

        Raises:
            UnknownModel: A member is not where it was.
            CorruptCheckpoint: A member is no longer what it was, or the file is damaged.
        """
        stored, folders = read_ensemble(Path(folder))
        read = stored.reading
        # What calibrates them was learnt of texts that were read so.
        reading: OpenOptions = {"max_length": read.max_length, "on_overflow": read.on_overflow, "stride": read.stride}
        asked: OpenOptions = {**asked_reading(reading), **asked_reading(options)}
        models = open_members(folders, {**options, **asked})
        fitted = gathered(folders, models, Mean())
        combiner = fitted.outputs.combiner
        size = combiner.outputs.size if combiner.stackable else None
        combination = stored_combination(stored, len(folders), size)
        outputs = replace(fitted.outputs, combiner=combiner.restored(stored), combination=combination)
        fitted = replace(fitted, outputs=outputs, columns=_stored_columns(fitted.columns, stored), card=stored.card)
        return cls(folders, models, fitted, asked)

    @property
    def name(self) -> str:
        """The names of the members."""
        return " + ".join(member.name for member in self.fitted.members)

    @property
    def spec(self) -> TaskSpec:  # type: ignore[override]
        """The kind of target of the first member."""
        spec: TaskSpec = self.members[0].spec
        return spec

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Columns of the first member, which also name the column of the labels."""
        return self.fitted.columns.columns[0]

    @property
    def combination(self) -> Combination:
        """The method of combining the members' predictions."""
        return self.fitted.outputs.combination

    @property
    def temperature(self) -> Temperature | None:
        """The calibration of the combined predictions; None without one."""
        return self.fitted.outputs.confidence.temperature

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a small folder that points to the members, whole or not at all; see `files`.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        fitted = self.fitted
        outputs = fitted.outputs
        extras = {
            "task": ENSEMBLE,
            **combination_settings(outputs.combination, outputs.confidence.temperature),
            **outputs.combiner.state(),
            "columns": [column_settings(columns) for columns in fitted.columns.columns],
            "reading": self._asked_reading,
            "card": dict(fitted.card),
        }
        write_ensemble(folder, self.folders, self.spec, extras, overwrite=overwrite)

    def _not_fitted(self) -> NotFitted:
        return NotFitted("this ensemble has no members: make one with Ensemble.of.")

    def _calibrated(self, data: Source, method: Method) -> TrainedEnsemble:
        """Fit the stacking where one is wanted, and what calibrates the result; write the card."""
        fitted = self.fitted
        outputs, combiner = fitted.outputs, fitted.outputs.combiner
        examples = outputs.read(data, fitted.columns)
        truth, inputs = outputs.encode(examples), [example.text for example in examples]
        scores: list[TogetherScores] = score_inputs(fitted, inputs, description="evaluating")  # type: ignore[assignment]
        phase("weighing the members, and calibrating" if method == "stacked" else "calibrating")
        unseen: Sequence[Scores[Any]] = scores
        learnt: dict[str, object] = {}
        if method == "stacked":
            rows_MRC = np.concatenate([combiner.rows(each.members) for each in scores], axis=1)
            fit = fit_stacking(combiner.row_target, rows_MRC, *combiner.flat(truth))
            learnt, outputs = {"penalty": fit.penalty}, replace(outputs, combination=fit.combination)
            # The scores of the rows that the fit has seen would be too good.
            ends = np.cumsum([len(each.logits_RC) for each in scores])[:-1]
            parts = zip(scores, np.split(fit.unseen_NC, ends), strict=True)
            unseen = [replace(each, logits_RC=part) for each, part in parts]
        outputs = replace(outputs, combiner=combiner.calibrated(unseen, truth))
        combined = [outputs.combine(each.members) for each in scores]
        report = outputs.own.outcomes(combined, truth).report(seed=0)
        members = [{"member": name, **alone} for name, alone in outputs.metrics_of_members(combined, truth)]
        chose = "how the ensemble is calibrated and, where it is stacked, weighed"
        limits = (*outputs.combiner.limits(chose), *_blindness(self.members))
        part = outputs.combiner.data_facts([each[0] for each in inputs], truth)
        card = {**_card(method, members, CardMetrics(report, limits), part), **learnt, **outputs.combiner.card()}
        return replace(fitted, outputs=outputs, card=card)


def _stored_columns(columns: EnsembleColumns, stored: StoredEnsemble) -> EnsembleColumns:
    """Return what the members read when they were combined.

    Raises:
        CorruptCheckpoint: Those are not names of columns, or not those of as many members.
    """
    listed = stored.columns
    if len(listed) != len(columns.columns):
        raise damaged("columns", f"names for each of {len(columns.columns)} members", listed)
    own = zip(listed, columns.columns, strict=True)
    return replace(columns, columns=tuple(stored_columns({"columns": names}, usual) for names, usual in own))


def _blindness(models: Sequence[AnyTask]) -> tuple[str, ...]:
    """Return the limit of an ensemble of which no member tells texts from elsewhere."""
    return () if any(model.confidence.out_of_domain is not None for model in models) else (NOTICES_NOTHING,)


def _card(
    method: Method, members: Sequence[Mapping[str, object]], measured: CardMetrics, calibration: Part | None = None
) -> dict[str, Any]:
    """Return what an ensemble says of its making; what its members were trained on, their own cards say."""
    return {
        "method": method,
        "members": [dict(member) for member in members],
        "calibration_rows": 0 if calibration is None else calibration["rows"],
        "data": {} if calibration is None else {"calibration": dict(calibration)},
        **metrics_card(measured, "the calibration rows"),
    }
