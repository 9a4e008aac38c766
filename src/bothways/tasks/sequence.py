"""What `TextClassifier` and `PairClassifier` share: one answer for each text, or pair of texts.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import numpy as np

from bothways.data import Example, Row, Source, read_examples
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import Temperature
from bothways.families import HeadName
from bothways.inference import TextRows
from bothways.tasks import predictions
from bothways.tasks.calibrated import chosen_temperature
from bothways.tasks.card import DataUsed, written_card
from bothways.tasks.columns import PairColumns, TextColumns, stored_columns
from bothways.tasks.fitting import FitPlan, undone_on_failure
from bothways.tasks.merging import Merge, check_merge, merge_windows
from bothways.tasks.objective import HeadModel, LabelledWindows, TextAnswers, WindowObjective, predict_logits
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Prediction
from bothways.tasks.saving import save_task
from bothways.tasks.splits import hold_out
from bothways.tasks.stored import stored_choice, stored_temperature
from bothways.tasks.target_settings import stored_target, target_settings
from bothways.tasks.targets import Logits, Report, Target, TargetKind, Truth, converter, target_of
from bothways.text import Overflow
from bothways.text.texts import Text
from bothways.training.objective import Validation
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "sequence"

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
                (``"weighted_mean"``, the default), their plain ``"mean"``, the ``"max"`` of each output, or those of
                the ``"first"`` window.
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
            made._open_head(target, checkpoint.build_score_head(HEAD))
            made.temperature = stored_temperature(extras)
            card = extras.get("card")
            made.card = dict(card) if isinstance(card, Mapping) else {}
            made.columns = stored_columns(made.card, cls.usual_columns) if ours else cls.usual_columns
        elif labels is not None:
            raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
        return made

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
        return self._target().report(logits_NC, truth, temperature, resamples=resamples, seed=seed)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in `columns`."""
        return self._predicted(map(self.columns.inputs.read, rows), show_progress=show_progress)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        return {
            "labels": list(self._target().labels),
            "temperature": None if self.temperature is None else asdict(self.temperature),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        target = self._target()
        extras = {
            "task": self.task,
            "target": target.kind,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "merge": self.merge,
            "card": self.card,
        }
        labels = target_settings(target)
        save_task(folder, self._opened, self._fitted(), HEAD, labels=labels, extras=extras, overwrite=overwrite)

    def _fit(
        self,
        train_data: Source,
        validation: Source | None,
        columns: ColumnsT,
        kind: TargetKind,
        plan: FitPlan,
    ) -> TrainingRecord:
        variant = converter(kind)
        examples = read_examples(train_data, text=columns.inputs, label=columns.label, convert=variant.convert)
        if validation is None:
            examples, held_out = hold_out(examples, 0.1, plan.seed, variant.names)
        else:
            held_out = read_examples(validation, text=columns.inputs, label=columns.label, convert=variant.convert)
        target = target_of(kind, examples)
        training, held = self._labelled(target, examples), self._labelled(target, held_out)
        with undone_on_failure(self, "_module", "target", "temperature"):
            self._start(target, plan.seed)
            record = plan.train(self._objective(target, training, held, plan), self.model)
        logits_NC = predict_logits(self._fitted(), held.store, self._opened.batch_tokens, self.merge)
        self.temperature = target.fit_temperature(logits_NC, held.truth) if plan.settings.calibrate else None
        self.columns = columns
        used = DataUsed(columns, len(examples), len(held_out), split=validation is None)
        self.card = written_card(self.model, record, used)
        return record

    def _objective(
        self, target: Target, training: LabelledWindows, held: LabelledWindows, plan: FitPlan
    ) -> WindowObjective:
        module, tokens = self._fitted(), plan.settings.tokens

        def validate() -> Validation:
            return Validation(*target.validate(predict_logits(module, held.store, tokens, self.merge), held.truth))

        return WindowObjective(
            module,
            training.store,
            TextAnswers(target, training.truth, training.store),
            validate,
            batch_size=plan.batch_size,
            tokens=tokens,
            seed=plan.seed,
            identity={"validation data": held.digest, "target": target.kind, "merge": self.merge},
        )

    def _predicted(
        self,
        texts: Iterable[Text],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        target, temperature = self._target(), self._temperature(calibrated)
        for answer in self._run(texts, "predicting", total, show_progress):
            reading = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
            yield target.predict(self._merged(answer), temperature, reading)

    def _logits(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth]:
        target = self._target()
        examples = read_examples(data, text=columns.inputs, label=columns.label, convert=target.convert)
        truth = target.encode(examples)
        texts = (example.text for example in examples)
        answers = self._run(texts, "evaluating", len(examples), show_progress)
        return np.stack([self._merged(answer) for answer in answers]), truth

    def _run(
        self, texts: Iterable[Text], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[TextRows]:
        return self._opened.engine(self._fitted()).run(
            texts, total=total, description=description, show_progress=show_progress
        )

    def _labelled(self, target: Target, examples: Sequence[Example[Any]]) -> LabelledWindows:
        return LabelledWindows(self._opened.stored([example.text for example in examples]), target.encode(examples))

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

    def _merged(self, answer: TextRows) -> Logits:
        lengths_W = np.asarray(answer.lengths)
        text_W = np.zeros(len(lengths_W), dtype=np.int64)
        return merge_windows(answer.rows_WK, lengths_W, text_W, self.merge).reshape(-1)

    def _temperature(self, calibrated: bool | None) -> Temperature | None:
        return chosen_temperature(self.temperature, calibrated, self.model.name)

    def _fitted(self) -> HeadModel:
        if self._module is None:
            raise NotFitted(f"{self.model.name!r} has no trained classification head yet: call fit first.")
        return self._module

    def _target(self) -> Target:
        self._fitted()
        if self.target is None:
            raise NotFitted(f"{self.model.name!r} has no labels yet: call fit first.")
        return self.target
