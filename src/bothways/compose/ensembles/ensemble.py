"""Ensembles: several trained models of one task, of any family, whose predictions are combined."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Self, Unpack

import numpy as np
from typing_extensions import override

from bothways.checkpoints.golden import choose_inputs
from bothways.checkpoints.golden_check import check_folder
from bothways.checkpoints.schema import MAX_MEMBERS, StoredEnsemble, damaged
from bothways.choices import LabelValue, Shared, Unlabelled
from bothways.compose.ensembles.combining import (
    Combination,
    Mean,
    Method,
    Vote,
    check_method,
    fit_stacking,
    stored_combination,
)
from bothways.compose.ensembles.members import (
    combine_members,
    explicit_reading,
    open_members,
    read_ensemble,
)
from bothways.compose.ensembles.trained import EnsembleColumns, EnsemblePrediction, EnsembleScores, TrainedEnsemble
from bothways.data import Source
from bothways.errors import InvalidInput, RowsLeftOut, RowsShared
from bothways.evaluation.temperature import Temperature
from bothways.progress import reporting, stage
from bothways.tasks.backend import OpenOptions, check_requested
from bothways.tasks.card import NOTICES_NOTHING, CardMetrics, Part, metrics_card, unmeasured
from bothways.tasks.columns import AnyColumns, column_names, stored_columns
from bothways.tasks.opening import OpenArguments
from bothways.tasks.outputs import AnsweringTask, score_inputs
from bothways.tasks.registry import models_with
from bothways.tasks.scores import Scores
from bothways.tasks.spec import MeasuredData, TaskSpec
from bothways.tasks.task import AnyTask, Task

_FLATTERED = "metrics and calibration of the ensemble look better than they are"

# Limits in the card of an uncalibrated ensemble.
UNCALIBRATED = (
    unmeasured("no calibration rows were given"),
    "The combined probabilities are not calibrated, though those of the members may be.",
)


class Ensemble(Task[str | tuple[str, str], EnsemblePrediction, TrainedEnsemble]):
    """Several trained models of one task whose predictions are combined.

    All members must have a head for the same task, and the same kind of input and labels. Each classifier reads the
    columns that it was trained on; taggers and question answerers read the columns of the first member.

    >>> ensemble = Ensemble.of(["runs/a", "runs/b"], method="mean", calibrate="validation.jsonl")  # doctest: +SKIP
    >>> ensemble.predict("Lakers win in overtime").together.label  # doctest: +SKIP
    'sports'

    Attributes:
        members: The trained models, in the order of their folders.
    """

    def __init__(self, members: Sequence[AnyTask], fitted: TrainedEnsemble) -> None:
        super().__init__(fitted.backend, fitted)
        self.members = list(members)
        self.spec = self.members[0].spec

    @classmethod
    def of(
        cls,
        members: Sequence[str | Path],
        *,
        method: Method = "mean",
        calibrate: Source | None = None,
        columns: Mapping[str, object] | None = None,
        unlabelled: Unlabelled = "error",
        normalise_labels: bool | None = None,
        labels: Sequence[LabelValue] | None = None,
        shared: Shared = "keep",
        show_progress: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Combine saved models.

        Args:
            members: Folders of two or more models of one task.
            method: ``"mean"`` of the probabilities (or predicted values), ``"vote"``, or ``"stacked"``, which is fitted
                on the calibration data. Regression models allow only the mean; models whose outputs depend on the
                input, such as question answerers, cannot be stacked.
            calibrate: Held-out labelled rows, as a file or rows, that no member was trained on.
            columns: Names of columns for all members, as for `with_columns`.
            unlabelled: What to do with calibration rows that have no label: ``"error"`` refuses the data, ``"drop"``
                leaves such rows out.
            normalise_labels: Take labels of calibration rows that look alike as one label. Default: as in training.
            labels: The labels that numbers in the calibration rows stand for, as in `evaluate`.
            shared: Calibration rows that a member was trained on: ``"keep"`` them, with a note, or ``"drop"`` them.
            show_progress: Force the progress bar on or off.
            options: Device and precision of the members, and text options, which override those of every member and
                are saved with the ensemble; see `bothways.tasks.backend.OpenOptions`.

        Raises:
            InvalidInput: The models or the method do not fit together, or the data are not usable.
            UnreadColumn: ``columns`` has an argument that the members do not have.
            NotFitted: A member is not a trained model.
        """
        if not 2 <= len(members) <= MAX_MEMBERS:
            raise InvalidInput(f"expected 2 to {MAX_MEMBERS} members, got {len(members)}.")
        folders = list(map(Path, members))
        with reporting(show_progress), stage("opening the members"):
            models = open_members(folders, options)
        fitted = combine_members(folders, models, Vote() if method == "vote" else Mean(), explicit_reading(options))
        combiner = fitted.outputs.combiner
        check_method(method, combiner.outputs.row_target, stackable=combiner.stackable)
        if method == "stacked" and calibrate is None:
            raise InvalidInput("stacking is fitted on held-out rows: give a calibration file.")
        fitted = replace(fitted, columns=fitted.columns.renamed(columns or {}))
        made = cls(models, fitted)
        if calibrate is None:
            measured = CardMetrics(None, (*UNCALIBRATED, *_detector_limits(models)))
            card = _card(method, [{"member": member.name} for member in fitted.members], measured)
            made._fitted = replace(fitted, card=card)
        else:
            with reporting(show_progress):
                rules = {"normalise_labels": normalise_labels, "labels": labels}
                given = _data_options(made.spec, {"unlabelled": unlabelled, "shared": shared, **rules})
                made._fitted = made._calibrated(calibrate, method, given)
        return made

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenArguments]) -> Self:
        """Open a saved ensemble from its folder.

        Raises:
            UnknownModel: The folder of a member is missing.
            CorruptCheckpoint: The files of a member have changed, or ``bothways.json`` is damaged.
            AnswersChanged: With ``check=True``, the ensemble differs from its golden answers.
        """
        given: OpenOptions = options
        check = check_requested(options)
        given.pop("check", None)  # members have no answers of their own here
        stored, folders = read_ensemble(Path(name_or_path))
        read = stored.reading
        # Treat long texts as in the calibration, unless the caller gives other options.
        reading: OpenOptions = {"max_length": read.max_length, "on_overflow": read.on_overflow, "stride": read.stride}
        explicit: OpenOptions = {**explicit_reading(reading), **explicit_reading(given)}
        models = open_members(folders, {**given, **explicit})
        fitted = combine_members(folders, models, Mean(), explicit)
        combiner = fitted.outputs.combiner
        size = len(combiner.outputs.labels) if combiner.stackable else None
        combination = stored_combination(stored, len(folders), size)
        outputs = replace(fitted.outputs, combiner=combiner.restored(stored), combination=combination)
        fitted = replace(fitted, outputs=outputs, columns=_stored_columns(fitted.columns, stored), card=stored.card)
        made = cls(models, replace(fitted, folder=Path(name_or_path)))
        if check:
            check_folder(Path(name_or_path), str(name_or_path), made._answering, made._answering)
        return made

    @property
    def name(self) -> str:
        """The names of the members."""
        return " + ".join(member.name for member in self.fitted.members)

    @property
    def model(self) -> NoReturn:
        """Refuse: an ensemble has several encoders."""
        raise InvalidInput(f"expected a model with one encoder, got the ensemble {self.name!r}: use a member.")

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the members are trained one by one."""
        raise InvalidInput("an ensemble cannot be trained: train its members, then combine them with Ensemble.of.")

    @property
    def columns(self) -> AnyColumns:
        """Columns of the first member, including the label column."""
        return self.fitted.columns.columns[0]

    @property
    def combination(self) -> Combination:
        """The method of combining the members' predictions."""
        return self.fitted.outputs.combination

    @property
    def temperature(self) -> Temperature | None:
        """The temperature that calibrates the combined predictions; None if they are not calibrated."""
        return self.fitted.outputs.confidence.temperature

    def _calibrated(self, data: Source, method: Method, given: MeasuredData) -> TrainedEnsemble:
        """Fit the stacking, if chosen, and the calibration on held-out rows; return the new ensemble with its card.

        ``given`` says what to do with rows that have no label, or that a member was trained on.
        """
        fitted = self.fitted
        outputs, combiner = fitted.outputs, fitted.outputs.combiner
        with stage("reading the data"):
            examples = outputs.read(data, fitted.columns, given)
        examples, shared = fitted.known.compared(examples, given.shared, "calibration rows")
        notes = [note for each in shared.values() if (note := each.summary("calibration rows", _FLATTERED))]
        for note in notes:
            warnings.warn(note, RowsLeftOut if given.shared == "drop" else RowsShared, stacklevel=3)
        truth, inputs = outputs.encode(examples), [example.text for example in examples]
        found = score_inputs(fitted, inputs, description="evaluating")
        scores = [each for each in found if isinstance(each, EnsembleScores)]
        with stage("fitting the stacking and the calibration" if method == "stacked" else "calibrating"):
            unseen: Sequence[Scores[object]] = scores
            stacking: dict[str, object] = {}
            if method == "stacked":
                rows_MRC = np.concatenate([combiner.rows(each.members) for each in scores], axis=1)
                fit = fit_stacking(combiner.outputs.row_target, rows_MRC, *combiner.flat(truth))
                stacking, outputs = {"penalty": fit.penalty}, replace(outputs, combination=fit.combination)
                # Calibrate on out-of-fold scores; scores of fitted rows would be optimistic.
                ends = np.cumsum([len(each.logits_RC) for each in scores])[:-1]
                parts = zip(scores, np.split(fit.unseen_NC, ends), strict=True)
                unseen = [replace(each, logits_RC=part) for each, part in parts]
            outputs = replace(outputs, combiner=combiner.calibrated(unseen, truth))
        with stage("evaluating on the calibration rows"):
            combined = [outputs.combine(each.members) for each in scores]
            report = outputs.own.outcomes(combined, truth).report(seed=0)
            members = [{"member": name, **alone} for name, alone in outputs.metrics_of_members(combined, truth)]
        chose = "the calibration of the ensemble and, if it is stacked, the weights of its members"
        limits = (*outputs.combiner.limits(chose), *_detector_limits(self.members))
        part = outputs.combiner.data_facts([each[0] for each in inputs], truth)
        card = {
            **_card(method, members, CardMetrics(report, limits), part),
            **stacking,
            **outputs.combiner.card(),
            "notes": notes,
        }
        held_out = ((each.text[0], each.label) for each in examples if len(set(each.text)) == 1)
        return replace(fitted, outputs=outputs, card=card, golden_inputs=choose_inputs(held_out, (), seed=0))

    def _answering(self) -> AnsweringTask:
        return AnsweringEnsemble("ensemble", self.fitted)


class AnsweringEnsemble(AnsweringTask):
    """An ensemble as its golden answers see it; all members read the same input."""

    __slots__ = ()

    fitted: TrainedEnsemble

    @property
    @override
    def opened_from(self) -> Path | None:
        return self.fitted.folder

    @property
    @override
    def columns(self) -> AnyColumns:
        return self.fitted.columns.columns[0]


def _data_options(spec: TaskSpec, given: Mapping[str, object]) -> MeasuredData:
    """Return the task's options for reading calibration rows; options that are None are not given."""
    chosen, known = {name: value for name, value in given.items() if value is not None}, column_names(spec.data_options)
    for name in chosen:
        if name not in known:
            raise InvalidInput(f"{name} can be given for {models_with('data_options', name)}: leave it out.")
    options: MeasuredData = spec.data_options(**chosen)
    return options


def _stored_columns(columns: EnsembleColumns, stored: StoredEnsemble) -> EnsembleColumns:
    listed = stored.columns
    if len(listed) != len(columns.columns):
        raise damaged("columns", f"names for each of {len(columns.columns)} members", listed)
    own = zip(listed, columns.columns, strict=True)
    return replace(columns, columns=tuple(stored_columns({"columns": names}, usual) for names, usual in own))


def _detector_limits(models: Sequence[AnyTask]) -> tuple[str, ...]:
    """Return the limit that the card states if no member has an out-of-domain detector; else an empty tuple."""
    return () if any(model.confidence.out_of_domain is not None for model in models) else (NOTICES_NOTHING,)


def _card(
    method: Method, members: Sequence[Mapping[str, object]], measured: CardMetrics, calibration: Part | None = None
) -> dict[str, object]:
    """Return the card of an ensemble; the training data are in the cards of the members."""
    return {
        "method": method,
        "members": [dict(member) for member in members],
        "calibration_rows": 0 if calibration is None else calibration["rows"],
        "data": {} if calibration is None else {"calibration": dict(calibration)},
        **metrics_card(measured, "the calibration rows"),
    }
