"""Several trained models of one task that answer together, also such of different families.

Shapes: M members, N texts, C outputs.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.checkpoint import OURS
from bothways.checkpoints.files import read_json
from bothways.data import Row, Source, read_rows
from bothways.errors import InvalidInput
from bothways.evaluation import Temperature, TextsRead
from bothways.inference import TextRows
from bothways.tasks import predictions
from bothways.tasks.ensembles.combining import (
    Combination,
    Mean,
    Members,
    Method,
    Vote,
    calibrated_logits,
    check_method,
    disagreements,
    fitted_temperature,
)
from bothways.tasks.ensembles.files import member_fingerprint, read_ensemble, stored_combination, write_ensemble
from bothways.tasks.ensembles.results import EnsemblePrediction, EnsembleReport
from bothways.tasks.ensembles.stacking import fit_stacking
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.opening import OpenOptions
from bothways.tasks.stored import stored_card, stored_temperature
from bothways.tasks.targets import Logits, Regression, Target, Truth
from bothways.text.texts import Text

Member = TextClassifier | PairClassifier

# By the name that ``bothways.json`` gives a task.
MEMBERS: Mapping[str, Callable[..., Member]] = {
    TextClassifier.task: TextClassifier.from_pretrained,
    PairClassifier.task: PairClassifier.from_pretrained,
}


class Ensemble:
    """Several trained models of one task that answer together.

    >>> ensemble = Ensemble.of(["runs/a", "runs/b"], method="mean", calibrate="validation.jsonl")  # doctest: +SKIP
    >>> ensemble.predict_rows(rows)  # doctest: +SKIP

    Attributes:
        members: The models; what they read and how is their own.
        target: What they predict, with the labels in the order of the first member.
        combination: How their answers become one.
        temperature: What calibrates the result; None without.
        columns: Where the parts of a row stand; those of the first member's training unless told otherwise.
        card: What the ensemble says of its making.
    """

    task: ClassVar[str] = "ensemble"

    def __init__(self, members: Sequence[tuple[Path, Member]], combination: Combination) -> None:
        self.folders = [folder for folder, _ in members]
        self.members = [member for _, member in members]
        first = self.members[0]
        self.target: Target = first.labeller.target
        self._places = [_places(first, folder, member) for folder, member in members]
        self.combination = combination
        self.temperature: Temperature | None = None
        self.columns: Any = first.columns
        self.card: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        members: Sequence[str | Path],
        *,
        method: Method = "mean",
        calibrate: Source | None = None,
        show_progress: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Combine saved models.

        Args:
            members: Folders of two or more models of one task: `TextClassifier` or `PairClassifier`.
            method: ``"mean"`` of the probabilities (or numbers), ``"vote"``, or ``"stacked"``, which is fitted on the
                calibration data.
            calibrate: Held-out labelled rows that none of the members was trained on; a file, or a list of mappings.
            show_progress: Force the progress bar on or off.
            options: Where the members run, and how they read texts, where that is not to be their own way; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: The models do not belong together, the method does not fit them, or the data are not usable.
            NotFitted: One is no trained model.
        """
        if len(members) < 2:
            raise InvalidInput(f"an ensemble has two members or more, but got {len(members)}.")
        opened = [(Path(folder), _opened(folder, options)) for folder in members]
        target = opened[0][1].labeller.target
        check_method(method, target)
        if method == "stacked" and calibrate is None:
            raise InvalidInput("stacking is fitted on held-out rows: give some to calibrate with.")
        made = cls(opened, Vote() if method == "vote" else Mean())
        if calibrate is not None:
            made._calibrate(calibrate, method, show_progress)
        return made

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Unpack[OpenOptions]) -> Self:
        """Open a saved ensemble.

        Raises:
            UnknownModel: A member is not where it was.
            CorruptCheckpoint: A member is no longer what it was, or the file is damaged.
        """
        stored, folders = read_ensemble(Path(folder))
        opened = [(member, _opened(member, options)) for member in folders]
        combination = stored_combination(stored, len(opened), opened[0][1].labeller.target.outputs)
        made = cls(opened, combination)
        made.temperature = stored_temperature(stored)
        made.card = stored_card(stored)
        return made

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[EnsemblePrediction]:
        """What the members say together of each row, in order and in flat memory."""
        texts = map(self.columns.inputs.read, rows)
        for answers in self._run(texts, "predicting", None, show_progress):
            logits_M1C = np.stack([logits_C[None] for logits_C, _ in answers])
            combined_1C = self.combination.combine(self.target, logits_M1C)
            together = self.target.predict(combined_1C[0], self.temperature, _most([read for _, read in answers]))
            yield EnsemblePrediction(together, disagreements(self.target, logits_M1C, combined_1C)[0])

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Rows as they would stand in a file, of texts that were typed in."""
        return self.members[0].rows_of(texts)

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> EnsembleReport:
        """Metrics on labelled data, of the ensemble with 95 % bootstrap intervals and of each member.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        logits_MNC, truth, read = self._logits(data, show_progress)
        combined_NC = self.combination.combine(self.target, logits_MNC)
        report = self.target.report(combined_NC, truth, self.temperature, resamples=resamples, seed=seed)
        apart = [each.to_dict() for each in disagreements(self.target, logits_MNC, combined_NC)]
        means = {name: float(np.mean([np.float64(str(each[name])) for each in apart])) for name in apart[0]}
        alone = [self.target.validate(logits_NC, truth)[0] for logits_NC in logits_MNC]
        names = [str(folder) for folder in self.folders]
        return EnsembleReport(replace(report, reading=read), means, list(zip(names, alone, strict=True)))

    def facts(self) -> dict[str, object]:
        """Members, method, labels and calibration, as JSON values."""
        return {
            "members": [str(folder) for folder in self.folders],
            **self._method(),
            "labels": list(self.target.labels),
            "temperature": None if self.temperature is None else asdict(self.temperature),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a small folder that points to the members, whole or not at all; see `bothways.tasks.ensembles.files`.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        extras = {
            "task": self.task,
            **self._method(),
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "card": self.card,
        }
        fingerprints = [member_fingerprint(member) for member in self.folders]
        write_ensemble(folder, self.folders, fingerprints, extras, overwrite=overwrite)

    def _calibrate(self, data: Source, method: Method, show_progress: bool | None) -> None:
        """Fit the stacking where one is wanted, and the temperature of the result."""
        logits_MNC, truth, _ = self._logits(data, show_progress)
        if method == "stacked":
            fit = fit_stacking(self.target, logits_MNC, truth)
            # What the fit says of its own rows would look better than it is.
            self.combination, logits_NC = fit.combination, fit.unseen_NC
            self.card["penalty"] = fit.penalty
        else:
            logits_NC = self.combination.combine(self.target, logits_MNC)
        self.temperature = fitted_temperature(self.target, logits_NC, truth)
        self.card["calibration_rows"] = len(truth)

    def _method(self) -> dict[str, object]:
        weights = asdict(self.combination)
        return {"method": self.combination.kind, **{name: list(values) for name, values in weights.items()}}

    def _logits(self, data: Source, show_progress: bool | None) -> tuple[Members, Truth, TextsRead]:
        """Calibrated logits of each member (M, N, C) in the order of the first one's labels, and the encoded labels."""
        texts, truth = self.members[0].labeller.labelled(list(read_rows(data)), self.columns)
        answers = list(self._run(texts, "evaluating", len(texts), show_progress))
        logits_MNC = np.stack([[logits_C for logits_C, _ in each] for each in answers], axis=1)
        most = [_most([read for _, read in each]) for each in answers]
        read = TextsRead.of([each.windows for each in most], [each.dropped_tokens for each in most])
        return logits_MNC, truth, read

    def _run(
        self, texts: Iterable[Text], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[list[tuple[Logits, predictions.Reading]]]:
        """For each text the calibrated logits (C) of each member, and how it was read."""
        copies = itertools.tee(texts, len(self.members))
        labellers = [member.labeller for member in self.members]
        streams = [
            each.run(each.reader(), copy, f"{description} {number}/{len(labellers)}", total, show_progress)
            for number, (each, copy) in enumerate(zip(labellers, copies, strict=True), start=1)
        ]
        for answers in zip(*streams, strict=True):
            yield [
                self._said(member, places, answer)
                for member, places, answer in zip(self.members, self._places, answers, strict=True)
            ]

    def _said(self, member: Member, places: NDArray[np.int64], answer: TextRows) -> tuple[Logits, predictions.Reading]:
        logits_1C = calibrated_logits(self.target, member.labeller.merged(answer)[None], member.calibration)
        return logits_1C[0, places], predictions.Reading(len(answer.lengths), answer.dropped_tokens)


def _opened(folder: str | Path, options: OpenOptions) -> Member:
    path = Path(folder)
    if not path.is_dir():
        raise InvalidInput(f"a member of an ensemble is the folder of a trained model, but {str(folder)!r} is none.")
    # A model that was trained elsewhere has no such file, and can only be a classifier.
    task = read_json(path / OURS).get("task") if (path / OURS).is_file() else TextClassifier.task
    if task not in MEMBERS:
        raise InvalidInput(
            f"ensembles are made of models that label texts or pairs of texts, but {str(folder)!r} is one for {task}."
        )
    return MEMBERS[str(task)](path, **options)


def _places(first: Member, folder: Path, member: Member) -> NDArray[np.int64]:
    """Where a member has the labels of the first one.

    Raises:
        InvalidInput: It is of another task, or has other labels.
    """
    ours, theirs = first.labeller.target, member.labeller.target
    kinds = (f"{first.task} ({ours.kind})", f"{member.task} ({theirs.kind})")
    if kinds[0] != kinds[1]:
        raise InvalidInput(
            f"members of an ensemble are models of one task, but {first.model.name!r} is one for {kinds[0]} and "
            f"{str(folder)!r} one for {kinds[1]}."
        )
    lacking, more = sorted(set(ours.labels) - set(theirs.labels)), sorted(set(theirs.labels) - set(ours.labels))
    if lacking or more:
        differences = [f"lacks {', '.join(map(repr, lacking))}"] * bool(lacking)
        differences += [f"has {', '.join(map(repr, more))} besides"] * bool(more)
        raise InvalidInput(
            f"members of an ensemble have the same labels, but {str(folder)!r} {' and '.join(differences)}, against "
            f"those of {first.model.name!r}."
        )
    if isinstance(ours, Regression):
        return np.zeros(1, dtype=np.int64)
    return np.array([theirs.labels.index(label) for label in ours.labels], dtype=np.int64)


def _most(readings: Sequence[predictions.Reading]) -> predictions.Reading:
    return predictions.Reading(max(each.windows for each in readings), max(each.dropped_tokens for each in readings))
