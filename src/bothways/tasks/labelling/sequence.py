"""What `TextClassifier` and `PairClassifier` share: one answer for each text, or pair of texts.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import numpy as np
from torch import Tensor

from bothways.checkpoints.save import head_tensors
from bothways.data import Row, Source, read_examples, read_rows
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import (
    Calibration,
    Evidence,
    OutOfDomainReport,
    Temperature,
    TextsRead,
    method_of,
    out_of_domain_report,
)
from bothways.families import HeadName
from bothways.inference import TextRows
from bothways.storage import new_folder
from bothways.tasks import predictions
from bothways.tasks.calibrated import wants_calibration
from bothways.tasks.card import trust_card, written_card
from bothways.tasks.columns import PairColumns, TextColumns, stored_columns
from bothways.tasks.fitting import FitPlan, Preparation, undone_on_failure
from bothways.tasks.labelling.judging import (
    MOST_TRAINING,
    FeatureModel,
    evidence_of,
    forward_of,
    judged,
    learn_trust,
    needs_features,
    promise_of,
)
from bothways.tasks.labelling.target_settings import stored_target, target_settings
from bothways.tasks.labelling.training import LabelledData, read_labelled, text_objective
from bothways.tasks.labelling.trust import Border, Trust, stored_trust, write_trust
from bothways.tasks.labelling.window_attention import (
    AttentiveModel,
    WindowAttention,
    check_long,
    fit_attention,
    read_attention,
    write_attention,
)
from bothways.tasks.merging import Merge, check_merge, merge_windows
from bothways.tasks.objective import HeadModel, LabelledWindows, Scoring, WindowObjective, predict_logits
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Prediction
from bothways.tasks.saving import write_task
from bothways.tasks.stored import Extras, stored_choice
from bothways.tasks.targets import Logits, Report, SingleLabel, Target, TargetKind, Truth
from bothways.text import Overflow
from bothways.text.texts import Text
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "sequence"

# What a failed fit puts back.
STATE = ("_module", "target", "trust", "_attention")

ColumnsT = TypeVar("ColumnsT", TextColumns, PairColumns)


class SequenceTask(Generic[ColumnsT]):
    """An encoder with a head that answers each text, or pair of texts, with a label, several labels, or a number.

    Attributes:
        model: The encoder and its tokenizer.
        target: What is predicted; None before there is a trained head.
        trust: What it learnt on held-out rows: calibration, coverage, and the border of its domain.
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
        self.target: Target | None = None
        self.trust = Trust()
        self.card: dict[str, Any] = {}
        self.columns: ColumnsT = self.usual_columns
        self._module: HeadModel | None = None
        self._attention: WindowAttention | None = None

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
        opened = open_model(name_or_path, **options)
        extras, checkpoint = opened.extras, opened.checkpoint
        ours = extras.get("task") == cls.task
        chosen = check_merge(
            merge or (stored_choice(extras, "merge", check_merge) if ours else None) or "weighted_mean"
        )
        made = cls(opened, chosen)
        classes = checkpoint.score_count(HEAD)
        if classes is not None:
            target = stored_target(checkpoint.settings, labels, classes, named=ours)
            made.take_head(target, checkpoint.build_score_head(HEAD), extras if ours else {}, checkpoint.folder)
            made._attention = read_attention(opened) if ours else None
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
        self._open_head(target, head)
        self.trust = stored_trust(stored, folder, target.outputs)
        card = stored.get("card")
        self.card = dict(card) if isinstance(card, Mapping) else {}
        self.columns = stored_columns(self.card, self.usual_columns)

    @property
    def module(self) -> HeadModel:
        """The encoder with the trained head.

        Raises:
            NotFitted: There is no trained head yet.
        """
        return self._fitted()

    @property
    def max_length(self) -> int:
        """Most tokens read at once."""
        return self._opened.reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._opened.reading.on_overflow

    @property
    def fitted_target(self) -> Target:
        """What is predicted.

        Raises:
            NotFitted: There is no trained head yet.
        """
        return self._target()

    @property
    def calibration(self) -> Calibration | None:
        """What makes probabilities of logits; None where they are taken as they are."""
        return self.trust.calibration

    def report(
        self,
        logits_NC: Logits,
        truth: Truth,
        *,
        calibrated: bool | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Report:
        """Metrics of logits that `logits` gave, with this model's calibration or without."""
        calibration = self._calibration(calibrated)
        return self._target().report(logits_NC, truth, calibration, resamples=resamples, seed=seed)

    def predict_rows(
        self, rows: Iterable[Row], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`, coverage as in `predict`."""
        return self._predicted(map(self.columns.inputs.read, rows), coverage=coverage, show_progress=show_progress)

    def evidence(self, data: Source, *, show_progress: bool | None = None) -> tuple[Evidence, Truth, TextsRead]:
        """Of labelled rows: uncalibrated logits and what the detector reads, the encoded labels, how texts were read.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        rows_NK, truth, read = self._rows(self._judging(), data, self.columns, show_progress)
        return evidence_of(rows_NK, self._target().outputs), truth, read

    def stated(self, data: Source, *, show_progress: bool | None = None) -> tuple[Logits, Truth]:
        """Calibrated probabilities (N, C) of labelled rows, or numbers (N, 1), and the encoded labels."""
        logits_NC, truth = self._logits(data, self.columns, show_progress)
        return self._target().probabilities(logits_NC, self.calibration), truth

    def tell_from(self, others: Source, *, show_progress: bool | None = None) -> None:
        """Move the border of the domain to where it tells held-out texts of it best from these others.

        Args:
            others: Rows from elsewhere, in the columns of the training; their labels are not read.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.
        """
        border = self._border()
        self.trust = replace(self.trust, border=border.between(self._evidence_of_texts(others, show_progress)))
        if "trust" in self.card:
            self.card["trust"] = self.trust.to_card()

    def out_of_domain(
        self,
        inside: Evidence,
        others: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> OutOfDomainReport:
        """How well the model tells texts of its domain from others.

        Args:
            inside: What `evidence` gave for texts of the domain.
            others: Rows from elsewhere; their labels are not read.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.
        """
        border = self._border()
        outside = self._evidence_of_texts(others, show_progress)
        scores = border.detector.score(inside), border.detector.score(outside)
        return out_of_domain_report(*scores, threshold=border.threshold, resamples=resamples, seed=seed)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        calibration = self.calibration
        numbers = asdict(calibration) if isinstance(calibration, Temperature) else {}
        return {
            "labels": list(self._target().labels),
            "calibration": None if calibration is None else {"method": method_of(calibration), **numbers},
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        reader, target = self._reader(), self._target()
        with new_folder(folder, overwrite=overwrite) as new:
            write_attention(new, reader)
            extras = {"task": self.task, "merge": self.merge, **self.stored_head(new)}
            write_task(new, self._opened, self.module, HEAD, settings=target_settings(target), extras=extras)

    def stored_head(self, folder: Path) -> dict[str, object]:
        """Write the arrays that belong to the trained head, and return what ``bothways.json`` is to say of it."""
        return {"target": self._target().kind, **write_trust(folder, self.trust), "card": self.card}

    def head_tensors(self) -> dict[str, Tensor]:
        """The trained head's weights under the family's names."""
        rows = self.model.family.head(HEAD, self.model.settings).rows
        return head_tensors(rows, self.model.config, self.module.head)

    def prepare(
        self,
        train_data: Source,
        validation: Source | None,
        columns: ColumnsT,
        kind: TargetKind,
        plan: FitPlan,
    ) -> Preparation[WindowObjective]:
        """Read the data and begin a head, or go on with the one there is where the target is the same.

        Raises:
            InvalidInput: The data are not usable; the message names the row.
        """
        data = read_labelled(self._opened, train_data, validation, columns, kind, plan.seed)
        if self.merge == "attention":
            check_long(data.training, "training texts")
            check_long(data.held, "validation texts")
        self._start(data.target, plan.seed)

        def finish(record: TrainingRecord) -> None:
            logits_NC = self._learn_trust(data, plan)
            self.columns = columns
            self.card = {
                **written_card(self.model, record, data.used),
                **trust_card(data.training.part, data.held.part, self.report(logits_NC, data.held.truth), self.trust),
            }

        return Preparation(text_objective(self.module, data, self.merge, plan), finish, data.unit)

    def _fit(
        self,
        train_data: Source,
        validation: Source | None,
        columns: ColumnsT,
        kind: TargetKind,
        plan: FitPlan,
    ) -> TrainingRecord:
        with undone_on_failure(self, *STATE):
            ready = self.prepare(train_data, validation, columns, kind, plan)
            record = plan.train(ready.objective, self.model)
        ready.finish(record)
        return record

    def _learn_trust(self, data: LabelledData, plan: FitPlan) -> Logits:
        """Learn how windows count, and from the held-out rows how far to trust the model; their logits (N, C)."""
        target, tokens, settings = data.target, self._opened.batch_tokens, plan.settings
        module = self._fitted()
        if self.merge == "attention":
            self._attention = fit_attention(module, target, data.training, data.held, tokens=tokens, seed=plan.seed)
        if settings.detector is not None and needs_features(settings.detector) and isinstance(target, SingleLabel):
            module = FeatureModel(module.encoder, module.head).eval()
        reader = self._attending(module)

        def rows_of(part: LabelledWindows) -> tuple[Logits, Truth]:
            return predict_logits(reader, part.store, tokens, self.merge), part.truth

        held_out_NK, truth = rows_of(data.held)
        some = data.training.some(MOST_TRAINING, plan.seed)
        self.trust = learn_trust(target, held_out_NK, truth, settings, plan.seed, lambda: rows_of(some))
        return held_out_NK[:, : target.outputs]

    def _predicted(
        self,
        texts: Iterable[Text],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        judge = self.judge(calibrated=calibrated, coverage=coverage)
        for answer in self._run(self._judging(), texts, "predicting", total, show_progress):
            yield judge(answer)

    def judge(
        self, *, calibrated: bool | None = None, coverage: float | None = None
    ) -> Callable[[TextRows], Prediction]:
        """What makes a prediction of what the model says of a text (and, for a detector, of its features).

        Raises:
            NotCalibrated: Calibrated probabilities or a coverage are asked for, and the model has none.
            InvalidInput: A coverage is asked for together with probabilities that are not calibrated.
        """
        target, calibration = self._target(), self._calibration(calibrated)
        promise, border = promise_of(self.trust, coverage), self.trust.border
        if coverage is not None and calibrated is False:
            raise InvalidInput("a coverage is promised of calibrated probabilities: leave calibrated out.")

        def predicted(answer: TextRows) -> Prediction:
            reading = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
            row_K = self.merged(answer)
            prediction = target.predict(row_K[: target.outputs], calibration, reading)
            return judged(prediction, row_K, target.outputs, promise, border)

        return predicted

    def labelled(self, data: Source, columns: ColumnsT) -> tuple[list[Text], Truth]:
        """The texts, or pairs, of labelled data, and their encoded labels.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        target = self._target()
        examples = read_examples(data, text=columns.inputs, label=columns.label, convert=target.convert)
        return [example.text for example in examples], target.encode(examples)

    def run(
        self, texts: Iterable[Text], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[TextRows]:
        """What the head says of texts, or pairs, in order and in flat memory."""
        return self._run(self._reader(), texts, description, total, show_progress)

    def merged(self, answer: TextRows) -> Logits:
        """One text's uncalibrated logits (C), or those and its features (K)."""
        lengths_W = np.asarray(answer.lengths)
        text_W = np.zeros(len(lengths_W), dtype=np.int64)
        return merge_windows(answer.rows_WK, lengths_W, text_W, self.merge).reshape(-1)

    def _evaluated(
        self, data: Source, columns: ColumnsT, *, resamples: int, seed: int, show_progress: bool | None
    ) -> Report:
        logits_NC, truth, read = self._rows(self._reader(), data, columns, show_progress)
        return replace(self.report(logits_NC, truth, resamples=resamples, seed=seed), reading=read)

    def _logits(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth]:
        return self._rows(self._reader(), data, columns, show_progress)[:2]

    def _rows(
        self, module: Scoring, data: Source, columns: ColumnsT, show_progress: bool | None
    ) -> tuple[Logits, Truth, TextsRead]:
        """What a module says of labelled rows (N, K), the encoded labels, and how the texts were read."""
        texts, truth = self.labelled(data, columns)
        answers = list(self._run(module, texts, "evaluating", len(texts), show_progress))
        read = TextsRead.of([len(each.lengths) for each in answers], [each.dropped_tokens for each in answers])
        return np.stack([self.merged(answer) for answer in answers]), truth, read

    def _evidence_of_texts(self, rows: Source, show_progress: bool | None) -> Evidence:
        texts = [self.columns.inputs.read(row) for row in read_rows(rows)]
        answers = self._run(self._judging(), texts, "reading others", len(texts), show_progress)
        return evidence_of(np.stack([self.merged(answer) for answer in answers]), self._target().outputs)

    def _border(self) -> Border:
        self._fitted()
        if self.trust.border is None:
            raise NotCalibrated(
                f"{self.model.name!r} cannot tell texts of its domain from others: that takes a model with one label "
                "for each text that was fitted here, with a detector."
            )
        return self.trust.border

    def _reader(self) -> Scoring:
        """What gives the numbers that `merge` makes logits of."""
        return self._attending(self._fitted())

    def _judging(self) -> Scoring:
        """What has to be run for everything that the model says of a text."""
        return self._attending(forward_of(self._fitted(), self.trust))

    def _attending(self, module: HeadModel) -> Scoring:
        """A module, and what it has learnt of how much windows count, where that is how they are merged."""
        if self.merge != "attention":
            return module
        if self._attention is None:
            raise NotFitted(
                f"{self.model.name!r} has learnt no attention over windows: call fit, or choose another merge."
            )
        return AttentiveModel(module, self._attention, features=isinstance(module, FeatureModel))

    def _run(
        self, module: Scoring, texts: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[TextRows]:
        return self._opened.engine(module).run(texts, total=total, description=description, show_progress=show)

    def _start(self, target: Target, seed: int) -> None:
        """Continue with the trained head where the target is the same, else begin a new one."""
        if self.target != target or self._module is None:
            with seeded(seed):
                self._open_head(target, self._opened.checkpoint.new_score_head(HEAD, target.outputs))

    def _open_head(self, target: Target, head: ScoreHead) -> None:
        head = head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype)
        self._module = HeadModel(self.model.encoder, head).eval()
        self.target = target
        self.trust = Trust()
        self._attention = None

    def _calibration(self, calibrated: bool | None) -> Calibration | None:
        there = self.calibration is not None
        return self.calibration if wants_calibration(there, calibrated, self.model.name) else None

    def _fitted(self) -> HeadModel:
        if self._module is None:
            raise NotFitted(f"{self.model.name!r} has no trained classification head yet: call fit first.")
        return self._module

    def _target(self) -> Target:
        self._fitted()
        if self.target is None:
            raise NotFitted(f"{self.model.name!r} has no labels yet: call fit first.")
        return self.target
