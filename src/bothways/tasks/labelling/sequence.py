"""What `TextClassifier` and `PairClassifier` share: one answer for each text, or pair of texts.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from bothways.data import Row, Source
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput
from bothways.evaluation import (
    Calibration,
    Evidence,
    Outcomes,
    Report,
    TextsRead,
)
from bothways.storage import new_folder
from bothways.tasks.card import Worth, written_card
from bothways.tasks.columns import PairColumns, TextColumns, stored_columns
from bothways.tasks.fitting import FitPlan, Preparation, undone_on_failure
from bothways.tasks.labelling.judging import check_calibration
from bothways.tasks.labelling.labeller import HEAD, Labeller
from bothways.tasks.labelling.target_settings import stored_target, target_settings
from bothways.tasks.labelling.training import read_labelled, text_objective
from bothways.tasks.labelling.trust import Trust, stored_trust
from bothways.tasks.labelling.trusted import Trusted
from bothways.tasks.labelling.trusting import TrustingTask
from bothways.tasks.labelling.window_attention import check_long, read_attention, write_attention
from bothways.tasks.merging import Merge, check_merge
from bothways.tasks.objective import WindowObjective
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Prediction, Reading
from bothways.tasks.saving import write_task
from bothways.tasks.stored import Extras, stored_card, stored_choice
from bothways.tasks.targets import Logits, Target, TargetKind, Truth
from bothways.text import Overflow
from bothways.text.texts import Text
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

ColumnsT = TypeVar("ColumnsT", TextColumns, PairColumns)


class SequenceTask(TrustingTask, Generic[ColumnsT]):
    """An encoder with a head that answers each text, or pair of texts, with a label, several labels, or a number.

    Attributes:
        model: The encoder and its tokenizer.
        merge: How the answers of a long text's windows become one.
        columns: Where texts and labels stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str]
    usual_columns: ColumnsT

    def __init__(self, opened: OpenedModel, merge: Merge = "weighted_mean") -> None:
        self._opened = opened
        self.model = opened.model
        self.merge: Merge = merge
        self.card: dict[str, Any] = {}
        self.columns: ColumnsT = self.usual_columns
        self._labeller: Labeller | None = None

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        labels: Sequence[str] | None = None,
        merge: Merge | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            labels: Names of a trained head's outputs, for checkpoints that do not carry them.
            merge: How the logits of a long text's windows become one: their mean weighted with the windows' lengths
                (``"weighted_mean"``, the default), their plain ``"mean"``, the ``"max"`` of each output, those of the
                ``"first"`` window, or their mean weighted as ``fit`` learns to (``"attention"``, see
                `bothways.tasks.labelling.window_attention`).
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: A setting is out of range, or a trained head's labels are not known.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, cls.task, **options)
        extras, checkpoint = opened.extras, opened.checkpoint
        ours = opened.trained_for == cls.task
        chosen = check_merge(
            merge or (stored_choice(extras, "merge", check_merge) if ours else None) or "weighted_mean"
        )
        made = cls(opened, chosen)
        # The head of another task may have the same shape and say something else.
        classes = checkpoint.score_count(HEAD) if ours or opened.trained_for is None else None
        if classes is not None:
            target = stored_target(checkpoint.settings, labels, classes, named=ours)
            made.take_head(target, checkpoint.build_score_head(HEAD), extras if ours else {}, checkpoint.folder)
            made.labeller.attention = read_attention(opened) if ours else None
        elif labels is not None:
            raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
        return made

    def take_head(self, target: Target, head: ScoreHead, stored: Extras, folder: Path) -> None:
        """Answer with a trained head.

        Args:
            target: What it predicts.
            head: The head.
            stored: What was saved with it: calibration and the like, and its card.
            folder: Where the arrays of that lie.

        Raises:
            CorruptCheckpoint: What was saved with it is damaged.
        """
        self._labeller = Labeller.of(self._opened, target, head, self.merge)
        self._labeller.trust = stored_trust(stored, folder, target.outputs)
        self.card = stored_card(stored)
        self.columns = stored_columns(self.card, self.usual_columns)

    @property
    def labeller(self) -> Labeller:
        """The trained head, and everything that was learnt about its answers.

        Raises:
            NotFitted: There is no trained head yet.
        """
        if self._labeller is None:
            raise self._opened.not_fitted(self.task, "classification head")
        return self._labeller

    @property
    def trusted(self) -> Trusted:
        """What is predicted, and how far to trust it."""
        return self.labeller.trusted

    @property
    def target(self) -> Target | None:
        """What is predicted; None before there is a trained head."""
        return None if self._labeller is None else self._labeller.target

    @property
    def trust(self) -> Trust:
        """What it learnt on held-out rows: calibration, coverage, and the border of its domain."""
        return Trust() if self._labeller is None else self._labeller.trust

    @property
    def max_length(self) -> int:
        """Most tokens read at once."""
        return self._opened.reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._opened.reading.on_overflow

    @property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of logits; None where they are taken as they are."""
        return self.trust.calibration

    def predict_rows(
        self, rows: Iterable[Row], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`, coverage as in `predict`."""
        return self._predicted(map(self.columns.inputs.read, rows), coverage=coverage, show_progress=show_progress)

    def said(
        self, texts: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[tuple[Logits, Reading]]:
        """Of each text, or pair: uncalibrated logits and what the detector reads, (K,), and how much of it was read."""
        labeller = self.labeller
        yield from map(labeller.read, labeller.run(labeller.judging(), texts, description, total, show))

    def evidence(self, data: Source, *, show_progress: bool | None = None) -> tuple[Evidence, Truth, TextsRead]:
        """Of labelled rows: uncalibrated logits and what the detector reads, the encoded labels, how texts were read.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        labeller = self.labeller
        rows_NK, truth, read = labeller.rows(labeller.judging(), data, self.columns, show_progress)
        return labeller.trusted.evidence(rows_NK), truth, read

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the results on labelled rows, with calibrated probabilities, to compare with another model's."""
        logits_NC, truth, read = self._rows(data, self.columns, show_progress)
        return replace(self.labeller.target.outcomes(logits_NC, truth, self.calibration), tokens_read=read)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        labeller = self.labeller
        reader, settings = labeller.reader(), target_settings(labeller.target)
        with new_folder(folder, overwrite=overwrite) as new:
            write_attention(new, reader)
            extras = {"task": self.task, "merge": self.merge, **self.stored_head(new)}
            write_task(new, self._opened, labeller.module, HEAD, settings=settings, extras=extras)

    def stored_head(self, folder: Path) -> dict[str, object]:
        """Write the arrays that belong to the trained head, and return what ``bothways.json`` is to say of it."""
        return {**self.labeller.stored(folder), "card": self.card}

    def prepare(
        self,
        train_data: Source,
        validation: Source | None,
        columns: ColumnsT,
        kind: TargetKind,
        plan: FitPlan,
    ) -> Preparation[WindowObjective]:
        """Read the data and begin a head, or go on with the one there is where the target is the same.

        What was learnt before, and its card, do not hold for the weights to come; ``finish`` makes new ones.

        Raises:
            InvalidInput: The data are not usable, and the message names the row; or a setting does not go with them.
        """
        before = None if self._labeller is None else self._labeller.target
        data = read_labelled(self._opened, train_data, validation, columns, kind, plan.seed, before)
        check_calibration(data.target, plan.settings.calibration, data.held.truth)
        if self.merge == "attention":
            check_long(data.training, "training texts")
            check_long(data.held, "validation texts")
        labeller = self._started(data.target, plan.seed)
        self.columns, self.card = columns, {}

        def finish(record: TrainingRecord) -> None:
            logits_NC = labeller.learn(data, plan)
            metrics = labeller.trusted.report(logits_NC, data.held.truth)
            self.card = {
                **written_card(self.model, record, data.used, Worth(metrics, labeller.trust.limits)),
                "trust": labeller.trust.to_card(),
            }

        return Preparation(text_objective(labeller.module, data, self.merge, plan), finish, data.unit)

    def _fit(
        self,
        train_data: Source,
        validation: Source | None,
        columns: ColumnsT,
        kind: TargetKind,
        plan: FitPlan,
    ) -> TrainingRecord:
        with undone_on_failure(self, "_labeller", "columns", "card") as attempt:
            ready = self.prepare(train_data, validation, columns, kind, plan)
            record = attempt.train(plan, ready.objective, self.model)
        if record.came_to_nothing:
            return record
        ready.finish(record)
        return record

    def _predicted(
        self,
        texts: Iterable[Text],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        judge = self.trusted.judge(calibrated=calibrated, coverage=coverage)
        for row_K, reading in self.said(texts, "predicting", total, show_progress):
            yield judge(row_K, reading)

    def _evaluated(
        self, data: Source, columns: ColumnsT, *, resamples: int, seed: int, show_progress: bool | None
    ) -> Report:
        logits_NC, truth, read = self._rows(data, columns, show_progress)
        return replace(self.report(logits_NC, truth, resamples=resamples, seed=seed), tokens_read=read)

    def _logits(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth]:
        return self._rows(data, columns, show_progress)[:2]

    def _rows(self, data: Source, columns: ColumnsT, show: bool | None) -> tuple[Logits, Truth, TextsRead]:
        return self.labeller.rows(self.labeller.reader(), data, columns, show)

    def _evidence_of(self, texts: list[Text], show_progress: bool | None) -> tuple[Evidence, TextsRead]:
        return self.labeller.evidence_of(texts, show_progress)

    def _set_trust(self, trust: Trust) -> None:
        self.labeller.trust = trust

    def _started(self, target: Target, seed: int) -> Labeller:
        """The trained head where the target is the same, to go on with it; else a new one. Neither is calibrated."""
        before = self._labeller
        if before is not None and before.target == target:
            head = before.module.head
        else:
            with seeded(seed):
                head = self._opened.checkpoint.new_score_head(HEAD, target.outputs)
        self._labeller = Labeller.of(self._opened, target, head, self.merge)
        return self._labeller
