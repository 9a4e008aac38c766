"""What `TextClassifier` and `PairClassifier` share: one answer for each text, or pair of texts.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import numpy as np

from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.data import Example, Row, Source, read_examples, read_rows
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotCalibrated, NotFitted
from bothways.evaluation import (
    Calibration,
    Evidence,
    OutOfDomainReport,
    Temperature,
    method_of,
    out_of_domain_report,
)
from bothways.families import HeadName
from bothways.inference import TextRows
from bothways.storage import new_folder
from bothways.tasks import predictions
from bothways.tasks.card import DataUsed, trust_card, written_card
from bothways.tasks.columns import PairColumns, TextColumns, stored_columns
from bothways.tasks.fitting import FitPlan, undone_on_failure
from bothways.tasks.judging import (
    MOST_TRAINING,
    FeatureModel,
    evidence_of,
    forward_of,
    judged,
    learn_trust,
    needs_features,
    promise_of,
)
from bothways.tasks.merging import Merge, check_merge, merge_windows
from bothways.tasks.objective import HeadModel, LabelledWindows, TextAnswers, WindowObjective, predict_logits
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Prediction
from bothways.tasks.splits import hold_out
from bothways.tasks.stored import stored_choice
from bothways.tasks.target_settings import stored_target, target_settings
from bothways.tasks.targets import Logits, Report, SingleLabel, Target, TargetKind, Truth, converter, target_of
from bothways.tasks.trust import Border, Trust, stored_trust, write_trust
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
            made.trust = stored_trust(extras, checkpoint.folder, classes) if ours else Trust()
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

    def evidence(self, data: Source, *, show_progress: bool | None = None) -> tuple[Evidence, Truth]:
        """Uncalibrated logits of labelled rows, what the model's detector reads beside them, and the encoded labels.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        rows_NK, truth = self._rows(self._judging(), data, self.columns, show_progress)
        return evidence_of(rows_NK, self._target().outputs), truth

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
        module, target, family, config = self._fitted(), self._target(), self.model.family, self.model.config
        settings = {
            **self.model.settings,
            "architectures": [family.architecture([HEAD])],
            **target_settings(target),
        }
        tensors = encoder_tensors(family, config, ("", module.encoder), prefix=family.prefix)
        tensors |= head_tensors(family.head(HEAD, settings).rows, config, module.head)
        extras = {
            "task": self.task,
            "target": target.kind,
            **self._opened.stored_reading(),
            "merge": self.merge,
            "card": self.card,
        }
        with new_folder(folder, overwrite=overwrite) as new:
            write_model(new, settings, tensors, {**extras, **write_trust(new, self.trust)})
            self.model.tokenizer.save(new, types=config.reads_types)

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
        with undone_on_failure(self, "_module", "target", "trust"):
            self._start(target, plan.seed)
            record = plan.train(self._objective(target, training, held, plan), self.model)
        logits_NC = self._learn_trust(target, training, held, plan)
        self.columns = columns
        used = DataUsed(columns, len(examples), len(held_out), split=validation is None)
        trust = trust_card(training.part, held.part, self.report(logits_NC, held.truth), self.trust)
        self.card = {**written_card(self.model, record, used), **trust}
        return record

    def _learn_trust(self, target: Target, training: LabelledWindows, held: LabelledWindows, plan: FitPlan) -> Logits:
        """Learn from the held-out rows how far the model can be trusted, and return their logits (N, C)."""
        module, settings = self._fitted(), plan.settings
        if settings.detector is not None and needs_features(settings.detector) and isinstance(target, SingleLabel):
            module = FeatureModel(module.encoder, module.head).eval()

        def rows_of(part: LabelledWindows) -> tuple[Logits, Truth]:
            return predict_logits(module, part.store, self._opened.batch_tokens, self.merge), part.truth

        held_out_NK, truth = rows_of(held)
        some = training.some(MOST_TRAINING, plan.seed)
        self.trust = learn_trust(target, held_out_NK, truth, settings, plan.seed, lambda: rows_of(some))
        return held_out_NK[:, : target.outputs]

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
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        target, calibration = self._target(), self._calibration(calibrated)
        promise, border = promise_of(self.trust, coverage), self.trust.border
        if coverage is not None and calibrated is False:
            raise InvalidInput("a coverage is promised of calibrated probabilities: leave calibrated out.")
        for answer in self._run(self._judging(), texts, "predicting", total, show_progress):
            reading = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
            row_K = self._merged(answer)
            prediction = target.predict(row_K[: target.outputs], calibration, reading)
            yield judged(prediction, row_K, target.outputs, promise, border)

    def _logits(self, data: Source, columns: ColumnsT, show_progress: bool | None) -> tuple[Logits, Truth]:
        return self._rows(self._fitted(), data, columns, show_progress)

    def _rows(
        self, module: HeadModel, data: Source, columns: ColumnsT, show_progress: bool | None
    ) -> tuple[Logits, Truth]:
        """What a module says of labelled rows (N, K), and the encoded labels."""
        target = self._target()
        examples = read_examples(data, text=columns.inputs, label=columns.label, convert=target.convert)
        truth = target.encode(examples)
        texts = (example.text for example in examples)
        answers = self._run(module, texts, "evaluating", len(examples), show_progress)
        return np.stack([self._merged(answer) for answer in answers]), truth

    def _evidence_of_texts(self, rows: Source, show_progress: bool | None) -> Evidence:
        texts = [self.columns.inputs.read(row) for row in read_rows(rows)]
        answers = self._run(self._judging(), texts, "reading others", len(texts), show_progress)
        return evidence_of(np.stack([self._merged(answer) for answer in answers]), self._target().outputs)

    def _border(self) -> Border:
        self._fitted()
        if self.trust.border is None:
            raise NotCalibrated(
                f"{self.model.name!r} cannot tell texts of its domain from others: that takes a model with one label "
                "for each text that was fitted here, with a detector."
            )
        return self.trust.border

    def _judging(self) -> HeadModel:
        """What has to be run for everything that the model says of a text."""
        return forward_of(self._fitted(), self.trust)

    def _run(
        self, module: HeadModel, texts: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[TextRows]:
        return self._opened.engine(module).run(texts, total=total, description=description, show_progress=show)

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
        self.trust = Trust()

    def _merged(self, answer: TextRows) -> Logits:
        lengths_W = np.asarray(answer.lengths)
        text_W = np.zeros(len(lengths_W), dtype=np.int64)
        return merge_windows(answer.rows_WK, lengths_W, text_W, self.merge).reshape(-1)

    def _calibration(self, calibrated: bool | None) -> Calibration | None:
        if calibrated and self.calibration is None:
            raise NotCalibrated(
                f"calibrated probabilities were asked for, but {self.model.name!r} was not calibrated. Fit it with "
                "validation data, or leave calibrated out."
            )
        return None if calibrated is False else self.calibration

    def _fitted(self) -> HeadModel:
        if self._module is None:
            raise NotFitted(f"{self.model.name!r} has no trained classification head yet: call fit first.")
        return self._module

    def _target(self) -> Target:
        self._fitted()
        if self.target is None:
            raise NotFitted(f"{self.model.name!r} has no labels yet: call fit first.")
        return self.target
