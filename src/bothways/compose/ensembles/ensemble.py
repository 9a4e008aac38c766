"""Several trained models of one task that answer together, also such of different families."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredEnsemble, damaged
from bothways.choices import EnsembleMethod
from bothways.compose.ensembles.combining import Combination, Mean, Stacked, Vote, check_method
from bothways.compose.ensembles.files import (
    asked_reading,
    combination_settings,
    member_fingerprint,
    read_ensemble,
    stored_combination,
    write_ensemble,
)
from bothways.compose.ensembles.stacking import fit_combination
from bothways.compose.ensembles.trained import (
    EnsembleColumns,
    EnsembleOutputs,
    EnsemblePrediction,
    Member,
    TogetherScores,
    TrainedEnsemble,
)
from bothways.data import Source
from bothways.errors import InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import Temperature
from bothways.tasks.card import NOTICES_NOTHING, Part, Worth, unmeasured, worth_card
from bothways.tasks.columns import column_settings, renamed, stored_columns
from bothways.tasks.opening import OpenOptions
from bothways.tasks.predictor import Predictor, column_names
from bothways.tasks.registry import SPECS, stored_task, task_class, task_of_heads
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec, chosen
from bothways.tasks.task import Task
from bothways.tasks.together import CombinableOutputs

# What a reader of the card of an ensemble has to know that was not calibrated.
UNCALIBRATED = (
    unmeasured("no rows were given to calibrate with"),
    "The combined probabilities are not calibrated, though those of the members may be.",
)

ENSEMBLE = "ensemble"


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model that may become a member, and where it is."""

    folder: Path
    model: Task[Any, Any, Any]

    @property
    def outputs(self) -> CombinableOutputs[Any, Any]:
        outputs: CombinableOutputs[Any, Any] = self.model.outputs
        return outputs

    @property
    def kind(self) -> str:
        """What members have in common: what they read, and what they say of it."""
        kind = f" ({self.outputs.kind})" if self.outputs.kind else ""
        # However they were trained, models that read and say the same are asked alike.
        return f"{_like(self.model)}{kind}"


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
        members: Sequence[Task[Any, Any, Any]],
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
        method: EnsembleMethod = "mean",
        calibrate: Source | None = None,
        columns: Mapping[str, object] | None = None,
        show_progress: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Combine saved models.

        Args:
            members: Folders of two or more models of one task.
            method: ``"mean"`` of the probabilities (or numbers), ``"vote"``, or ``"stacked"``, which is fitted on the
                calibration data; numbers have the mean only, and answers to questions no stacking.
            calibrate: Held-out labelled rows that none of the members was trained on; a file, or rows.
            columns: Where parts of a row stand that all members are to read alike, as `with_columns` takes them.
            show_progress: Force the progress bar on or off.
            options: Where the members run, and how they read texts, where that is not to be their own way; see
                `bothways.tasks.opening.OpenOptions`. How they read is saved with the ensemble.

        Raises:
            InvalidInput: The models do not belong together, the method does not fit them, or the data are not usable.
            UnreadColumn: The members read no part of a row that ``columns`` names.
            NotFitted: One is no trained model.
        """
        if len(members) < 2:
            raise InvalidInput(f"an ensemble has two members or more, but got {len(members)}.")
        opened = [open_member(folder, options) for folder in members]
        fitted = gathered(opened, Vote() if method == "vote" else Mean())
        own = fitted.outputs.own
        check_method(method, own.row_target)
        if method == "stacked" and not own.stackable:
            raise InvalidInput(
                "models that answer questions are combined by 'mean' or 'vote', not by 'stacked': a stacking weighs "
                "outputs that are the same for every row, but the answers to choose from are other ones in every text."
            )
        if method == "stacked" and calibrate is None:
            raise InvalidInput("stacking is fitted on held-out rows: give some to calibrate with.")
        fitted = replace(fitted, columns=fitted.columns.reading(**(columns or {})))
        models = [each.model for each in opened]
        made = cls([each.folder for each in opened], models, fitted, asked_reading(options))
        if calibrate is None:
            worth = Worth(None, (*UNCALIBRATED, *_blindness(models)))
            card = _card(method, [{"member": member.name} for member in fitted.members], worth)
            made._fitted = replace(fitted, card=card)
        else:
            made._fitted = made._calibrated(calibrate, method, show_progress)
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
        opened = [open_member(member, {**options, **asked}) for member in folders]
        fitted = gathered(opened, Mean())
        own = fitted.outputs.own
        combination = stored_combination(stored, len(folders), own.size if own.stackable else 0)
        if isinstance(combination, Stacked) and not own.stackable:
            raise damaged("method", "'mean' or 'vote' of models that answer questions", "stacked")
        outputs = replace(fitted.outputs, own=own.restored_together(stored), combination=combination)
        fitted = replace(fitted, outputs=outputs, columns=_stored_columns(fitted.columns, stored), card=stored.card)
        return cls(folders, [each.model for each in opened], fitted, asked)

    @property
    def name(self) -> str:
        """The names of the members."""
        return " + ".join(member.name for member in self.fitted.members)

    @property
    def spec(self) -> TaskSpec:  # type: ignore[override]
        """That of the first member."""
        spec: TaskSpec = self.members[0].spec
        return spec

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the task's own)
        """Where the parts of a row stand for the first member, which also says where the labels are."""
        return self.fitted.columns.columns[0]

    @property
    def combination(self) -> Combination:
        """How the answers of the members become one."""
        return self.fitted.outputs.combination

    @property
    def temperature(self) -> Temperature | None:
        """What calibrates the result; None without."""
        return self.fitted.outputs.temperature

    def with_columns(self, **names: object) -> Self:
        """Return the same ensemble, in which all members read parts of a row from the same columns.

        Raises:
            UnreadColumn: The members read no such part.
        """
        return self._with(replace(self.fitted, columns=self.fitted.columns.reading(**names)))

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
            **combination_settings(outputs.combination, outputs.temperature),
            **outputs.own.stored_together(),
            "columns": [column_settings(columns) for columns in fitted.columns.columns],
            "reading": self._asked_reading,
            "card": dict(fitted.card),
        }
        fingerprints = [member_fingerprint(member) for member in self.folders]
        write_ensemble(folder, self.folders, fingerprints, extras, overwrite=overwrite)

    def _columns(self) -> Any:  # noqa: ANN401 (of all members)
        return self.fitted.columns

    def _not_fitted(self) -> NotFitted:
        return NotFitted("this ensemble has no members: make one with Ensemble.of.")

    def _options(self, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 (the task's own)
        if options.get("coverage") is not None and "coverage" not in column_names(self.spec.predict_options):
            raise NotCalibrated(
                "a coverage was asked for, but it is promised of labels and of numbers for whole texts, not by models "
                f"for {self.spec.name}."
            )
        known = {name: value for name, value in options.items() if name != "coverage" or value is not None}
        return chosen(self.spec.predict_options, known, "Ensemble.predict()", known=("show_progress",))

    def _calibrated(self, data: Source, method: EnsembleMethod, show_progress: bool | None) -> TrainedEnsemble:
        """Fit the stacking where one is wanted, and what calibrates the result; write the card."""
        fitted = self.fitted
        outputs, own = fitted.outputs, fitted.outputs.own
        examples = outputs.read(data, fitted.columns)
        truth, inputs = outputs.encode(examples), [example.text for example in examples]
        scores = list(fitted.scores(inputs, description="evaluating", total=len(inputs), show_progress=show_progress))
        unseen: Sequence[Scores[Any]] = scores
        learnt: dict[str, object] = {}
        if method == "stacked":
            rows_MRC = np.concatenate([own.rows(each.members) for each in scores], axis=1)
            fit = fit_combination(own.row_target, method, outputs.combination, rows_MRC, *own.flat(truth))
            learnt, outputs = fit.card, replace(outputs, combination=fit.combination)
            # What the fit says of its own rows would look better than it is.
            ends = np.cumsum([len(each.logits_RC) for each in scores])[:-1]
            parts = zip(scores, np.split(fit.unseen_NC, ends), strict=True)
            unseen = [replace(each, logits_RC=part) for each, part in parts]
        outputs = replace(outputs, own=own.calibrated_on(unseen, truth))
        combined: list[TogetherScores] = [outputs.joined(each.members) for each in scores]
        report = outputs.own.outcomes(combined, truth).report(seed=0)
        members = [{"member": name, **alone} for name, alone in outputs.alone(combined, truth)]
        chose = "how the ensemble is calibrated and, where it is stacked, weighed"
        limits = (*outputs.own.limits_together(chose), *_blindness(self.members))
        part = outputs.own.part_together([each[0] for each in inputs], truth)
        card = {**_card(method, members, Worth(report, limits), part), **learnt, **outputs.own.card_together()}
        return replace(fitted, outputs=outputs, card=card)


def open_member(folder: str | Path, options: OpenOptions) -> _Opened:
    """Open a model that may become a member.

    Raises:
        InvalidInput: It is no folder, or no model that an ensemble can be made of.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InvalidInput(f"a member of an ensemble is the folder of a trained model, but {str(folder)!r} is none.")
    # Of a folder that says nothing of itself a classifier can tell best what is not there.
    task = stored_task(path) or task_of_heads(path) or "classification"
    model = task_class(SPECS[task]).from_pretrained(path, **options) if task in SPECS else None
    if model is None or (model._fitted is not None and not isinstance(model.outputs, CombinableOutputs)):
        raise InvalidInput(
            "ensembles are made of models that label texts or pairs of texts, tag words, or answer questions, but "
            f"{str(folder)!r} is one for {task}."
        )
    return _Opened(path, model)


def gathered(opened: Sequence[_Opened], combination: Combination) -> TrainedEnsemble:
    """Gather models that belong together.

    Raises:
        InvalidInput: They are of different tasks, or have different labels.
        NotFitted: One is no trained model.
    """
    first = opened[0]
    for each in opened[1:]:
        if each.kind != first.kind:
            raise InvalidInput(
                f"members of an ensemble are models of one task, but {str(first.folder)!r} is one for {first.kind} "
                f"and {str(each.folder)!r} one for {each.kind}."
            )
    members = tuple(Member(_shown(each.folder), each.model.fitted, _places(first, each)) for each in opened)
    own = first.outputs.together([each.outputs for each in opened])
    shared = first.outputs.shares_inputs
    columns = tuple((first if shared else each).model.columns for each in opened)
    names = tuple(member.name for member in members)
    return TrainedEnsemble(EnsembleOutputs(own, combination, members), EnsembleColumns(names, columns))


def _places(first: _Opened, member: _Opened) -> NDArray[np.int64] | None:
    """Where a member has the labels of the first one.

    Raises:
        InvalidInput: It has other labels.
    """
    ours, theirs = first.outputs.labels, member.outputs.labels
    lacking, more = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if lacking or more:
        differences = [f"lacks {', '.join(map(repr, lacking))}"] * bool(lacking)
        differences += [f"has {', '.join(map(repr, more))} besides"] * bool(more)
        raise InvalidInput(
            f"members of an ensemble have the same labels, but {str(member.folder)!r} {' and '.join(differences)}, "
            f"against those of {first.model.name!r}."
        )
    return np.array([list(theirs).index(label) for label in ours], dtype=np.int64) if ours else None


def _like(model: Task[Any, Any, Any]) -> str:
    """The name of the first task that reads and says the same as this one."""
    outputs, one = type(model.outputs), model.columns.one
    for spec in SPECS.values():
        if spec.name == model.spec.name or (
            spec.columns.one == one and getattr(task_class(spec), "outputs_type", None) is outputs
        ):
            return spec.name
    return model.spec.name


def _stored_columns(columns: EnsembleColumns, stored: StoredEnsemble) -> EnsembleColumns:
    """What the members read when they were combined.

    Raises:
        CorruptCheckpoint: Those are not names of columns, or not those of as many members.
    """
    listed = stored.columns
    if listed is None:  # saved when all members read what the first one did
        names = column_settings(columns.columns[0])
        return replace(columns, columns=tuple(renamed(each, names) for each in columns.columns))
    if len(listed) != len(columns.columns):
        raise damaged("columns", f"names for each of {len(columns.columns)} members", listed)
    own = zip(listed, columns.columns, strict=True)
    return replace(columns, columns=tuple(stored_columns({"columns": names}, usual) for names, usual in own))


def _blindness(models: Sequence[Task[Any, Any, Any]]) -> tuple[str, ...]:
    """The limit of an ensemble of which no member tells texts from elsewhere."""
    return () if any(model.confidence.out_of_domain is not None for model in models) else (NOTICES_NOTHING,)


def _shown(folder: Path) -> str:
    """A member's folder as its user would write it: by its path from where they are, if it lies below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _card(
    method: EnsembleMethod, members: Sequence[Mapping[str, object]], worth: Worth, calibration: Part | None = None
) -> dict[str, Any]:
    """What an ensemble says of its making; what its members were trained on, their own cards say."""
    return {
        "method": method,
        "members": [dict(member) for member in members],
        "calibration_rows": 0 if calibration is None else calibration["rows"],
        "data": {} if calibration is None else {"calibration": dict(calibration)},
        **worth_card(worth, "the calibration rows"),
    }
