"""What `TextClassifier` and `PairClassifier` share: one answer for each text, or pair of texts.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import numpy as np
from torch import Tensor

from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.data import Row, Source, read_examples
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import Temperature, TextsRead
from bothways.families import HeadName
from bothways.inference import TextRows
from bothways.storage import new_folder
from bothways.tasks import predictions
from bothways.tasks.card import written_card
from bothways.tasks.columns import PairColumns, TextColumns, stored_columns
from bothways.tasks.fitting import FitPlan, Preparation, undone_on_failure
from bothways.tasks.merging import Merge, check_merge, merge_windows
from bothways.tasks.objective import HeadModel, Scoring, WindowObjective, predict_logits
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Prediction
from bothways.tasks.sequence_training import LabelledData, read_labelled, text_objective
from bothways.tasks.stored import Extras, stored_choice, stored_temperature
from bothways.tasks.target_settings import stored_target, target_settings
from bothways.tasks.targets import Logits, Report, Target, TargetKind, Truth
from bothways.tasks.window_attention import (
    AttentiveModel,
    WindowAttention,
    attention_files,
    check_long,
    fit_attention,
    read_attention,
)
from bothways.text import Overflow
from bothways.text.texts import Text
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "sequence"

# What a failed fit puts back.
STATE = ("_module", "target", "temperature", "_attention")

ColumnsT = TypeVar("ColumnsT", TextColumns, PairColumns)


class SequenceTask(Generic[ColumnsT]):
    """An encoder with a head that answers each text, or pair of texts, with a label, several labels, or a number.

    Attributes:
        model: The encoder and its tokenizer.
        target: What is predicted; None before there is a trained head.
        temperature: What calibrates its probabilities; None without.
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
        self.temperature: Temperature | None = None
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
                `bothways.tasks.window_attention`).
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
            made.take_head(target, checkpoint.build_score_head(HEAD), extras if ours else {})
            made._attention = read_attention(opened) if ours else None
        elif labels is not None:
            raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
        return made

    def take_head(self, target: Target, head: ScoreHead, stored: Extras) -> None:
        """Answer with a trained head; ``stored`` is what a saved model says of it.

        Raises:
            CorruptCheckpoint: A value in it cannot be what was saved.
        """
        self._open_head(target, head)
        self.temperature = stored_temperature(stored)
        card = stored.get("card")
        self.card = dict(card) if isinstance(card, Mapping) else {}
        self.columns = stored_columns(self.card, self.usual_columns)

    @property
    def module(self) -> HeadModel:
        """The encoder with the trained head.

        Raises:
            NotFitted: There is no trained head yet.
        """
        if self._module is None:
            raise NotFitted(f"{self.model.name!r} has no trained classification head yet: call fit first.")
        return self._module

    @property
    def max_length(self) -> int:
        """Most tokens read at once."""
        return self._opened.reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._opened.reading.on_overflow

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
        temperature = self._temperature(calibrated)
        return self.known_target().report(logits_NC, truth, temperature, resamples=resamples, seed=seed)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`."""
        return self._predicted(map(self.columns.inputs.read, rows), show_progress=show_progress)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        return {
            "labels": list(self.known_target().labels),
            "temperature": None if self.temperature is None else asdict(self.temperature),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        reader, family = self._reader(), self.model.family
        settings = {
            **self.model.settings,
            "architectures": [family.architecture([HEAD])],
            **target_settings(self.known_target()),
        }
        tensors = encoder_tensors(family, self.model.config, ("", self.module.encoder), prefix=family.prefix)
        extras = {"task": self.task, **self.stored_head(), **self._opened.stored_reading(), "merge": self.merge}
        with new_folder(folder, overwrite=overwrite) as new:
            write_model(new, settings, tensors | self.head_tensors(), extras, attention_files(reader))
            self.model.tokenizer.save(new)

    def stored_head(self) -> dict[str, object]:
        """What ``bothways.json`` says of the trained head."""
        return {
            "target": self.known_target().kind,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "card": self.card,
        }

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
            self._finish(data, plan)
            self.columns = columns
            self.card = written_card(self.model, record, data.used)

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

    def _finish(self, data: LabelledData, plan: FitPlan) -> None:
        """What follows the training of encoder and head: attention over windows, calibration."""
        tokens = self._opened.batch_tokens
        if self.merge == "attention":
            self._attention = fit_attention(
                self.module, data.target, data.training, data.held, tokens=tokens, seed=plan.seed
            )
        logits_NC = predict_logits(self._reader(), data.held.store, tokens, self.merge)
        self.temperature = data.target.fit_temperature(logits_NC, data.held.truth) if plan.settings.calibrate else None

    def _predicted(
        self,
        texts: Iterable[Text],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        for answer in self.run(texts, "predicting", total, show_progress):
            yield self.answered(answer, calibrated=calibrated)

    def answered(self, answer: TextRows, *, calibrated: bool | None = None) -> Prediction:
        """The prediction for what the model says of a text."""
        reading = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
        return self.known_target().predict(self.merged(answer), self._temperature(calibrated), reading)

    def labelled(self, data: Source, columns: ColumnsT) -> tuple[list[Text], Truth]:
        """The texts, or pairs, of labelled data, and their encoded labels.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        target = self.known_target()
        examples = read_examples(data, text=columns.inputs, label=columns.label, convert=target.convert)
        return [example.text for example in examples], target.encode(examples)

    def run(
        self, texts: Iterable[Text], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[TextRows]:
        """What the model says of texts, or pairs, in order and in flat memory."""
        engine = self._opened.engine(self._reader())
        return engine.run(texts, total=total, description=description, show_progress=show_progress)

    def merged(self, answer: TextRows) -> Logits:
        """One text's uncalibrated logits (C)."""
        lengths_W = np.asarray(answer.lengths)
        text_W = np.zeros(len(lengths_W), dtype=np.int64)
        return merge_windows(answer.rows_WK, lengths_W, text_W, self.merge).reshape(-1)

    def _evaluated(
        self, data: Source, columns: ColumnsT, *, resamples: int, seed: int, show_progress: bool | None
    ) -> Report:
        logits_NC, truth, read = self._answers(data, columns, show_progress)
        return replace(self.report(logits_NC, truth, resamples=resamples, seed=seed), reading=read)

    def _logits(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth]:
        return self._answers(data, columns, show_progress)[:2]

    def _answers(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth, TextsRead]:
        texts, truth = self.labelled(data, columns)
        answers = list(self.run(texts, "evaluating", len(texts), show_progress))
        read = TextsRead.of([len(each.lengths) for each in answers], [each.dropped_tokens for each in answers])
        return np.stack([self.merged(each) for each in answers]), truth, read

    def _start(self, target: Target, seed: int) -> None:
        """Continue with the trained head where the target is the same, else begin a new one."""
        if self.target != target or self._module is None:
            with seeded(seed):
                self._open_head(target, self._opened.checkpoint.new_score_head(HEAD, target.outputs))

    def _open_head(self, target: Target, head: ScoreHead) -> None:
        head = head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype)
        self._module = HeadModel(self.model.encoder, head).eval()
        self.target = target
        self.temperature = None
        self._attention = None

    def _reader(self) -> Scoring:
        """What gives the numbers that `merge` makes logits of."""
        if self.merge != "attention":
            return self.module
        module = self.module
        if self._attention is None:
            raise NotFitted(
                f"{self.model.name!r} has learnt no attention over windows: call fit, or choose another merge."
            )
        return AttentiveModel(module, self._attention)

    def _temperature(self, calibrated: bool | None) -> Temperature | None:
        if calibrated and self.temperature is None:
            raise NotCalibrated(
                f"calibrated probabilities were asked for, but {self.model.name!r} was not calibrated. Fit it with "
                "validation data, or leave calibrated out."
            )
        return None if calibrated is False else self.temperature

    def known_target(self) -> Target:
        """What is predicted.

        Raises:
            NotFitted: There is no trained head yet.
        """
        if self._module is None or self.target is None:
            raise NotFitted(f"{self.model.name!r} has no trained classification head yet: call fit first.")
        return self.target
