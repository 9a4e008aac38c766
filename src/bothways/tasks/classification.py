"""Text classification: one label, several labels, or a number for each text.

Shapes: N texts, W windows of one text, C outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint, pretrained
from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.data import Example, Source, read_examples
from bothways.data.windows import WindowStore
from bothways.encoder import ScoreHead
from bothways.errors import BothwaysError, InvalidInput, NotCalibrated, NotFitted, TrainingDiverged
from bothways.evaluation import Temperature
from bothways.families import HeadName
from bothways.inference import InferenceEngine, Reading, TextRows
from bothways.inference.engine import CPU_TOKENS, GPU_TOKENS
from bothways.storage import new_folder
from bothways.tasks import predictions
from bothways.tasks.card import Columns, DataUsed, stored_columns, written_card
from bothways.tasks.objective import LabelledWindows, SequenceModel, SequenceObjective, merge_windows, predict_logits
from bothways.tasks.predictions import Prediction
from bothways.tasks.settings import FitSettings
from bothways.tasks.splits import hold_out
from bothways.tasks.stored import stored_length, stored_overflow, stored_temperature
from bothways.tasks.target_settings import stored_target, target_settings
from bothways.tasks.targets import Logits, Report, Target, TargetKind, Truth, converter, target_of
from bothways.text import Overflow, check_overflow
from bothways.training.loop import train
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

TASK = "classification"
HEAD: HeadName = "sequence"

# Texts tokenised at a time, so that only the compact form of all of them is in memory.
BLOCK = 1024


class TextClassifier:
    """Fine-tunes an encoder to label texts, and labels them.

    >>> classifier = TextClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> classifier.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> classifier.predict("Lakers win in overtime").label  # doctest: +SKIP
    'sports'
    """

    def __init__(
        self, checkpoint: Checkpoint, model: PretrainedEncoder, max_length: int, on_overflow: Overflow
    ) -> None:
        self._checkpoint = checkpoint
        self.model = model
        self.max_length = max_length
        self.on_overflow: Overflow = on_overflow
        self.target: Target | None = None
        self.temperature: Temperature | None = None
        self.card: dict[str, Any] = {}
        self.columns = Columns()
        self._module: SequenceModel | None = None

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        labels: Sequence[str] | None = None,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "TextClassifier":
        """Open an encoder to fine-tune, or a trained classifier to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            labels: Names of a trained head's outputs, for checkpoints that do not carry them.
            max_length: Most tokens read at once; as many as the model can, when left out.
            on_overflow: Longer texts are read in overlapping windows (``"window"``, the default), or refused, or cut.
            revision: The commit that a hub name is pinned to.
            device: ``"auto"`` takes a GPU where there is one.
            dtype: Precision of the weights.
            download: Whether the hub may be asked for it.
            allow_pickle: Whether a ``.bin`` file may be read, after a scan.

        Raises:
            InvalidInput: A setting is out of range, or a trained head's labels are not known.
            CorruptCheckpoint: A file is damaged.
        """
        checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
        model = pretrained(checkpoint, device=device, dtype=dtype)
        extras = checkpoint.extras
        limit = model.config.max_length or 512
        if max_length is not None and not 1 <= max_length <= limit:
            raise InvalidInput(f"max_length must lie between 1 and the model's {limit}, but it is {max_length}.")
        length = max_length or stored_length(extras, limit) or limit
        overflow = check_overflow(on_overflow or stored_overflow(extras) or "window")
        classifier = cls(checkpoint, model, length, overflow)
        classes = checkpoint.score_count(HEAD)
        if classes is not None:
            ours = extras.get("task") == TASK
            target = stored_target(checkpoint.settings, labels, classes, named=ours)
            classifier._open_head(target, checkpoint.build_score_head(HEAD))
            classifier.temperature = stored_temperature(extras)
            card = extras.get("card")
            classifier.card = dict(card) if isinstance(card, Mapping) else {}
            classifier.columns = stored_columns(classifier.card)
        elif labels is not None:
            raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
        return classifier

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        text: str | tuple[str, ...] = "text",
        label: str = "label",
        target: TargetKind = "single",
        epochs: int = 3,
        learning_rate: float | None = None,
        batch_size: int = 32,
        seed: int = 0,
        settings: FitSettings | None = None,
        log: str | Path | None = None,
        checkpoints: str | Path | None = None,
        resume: bool = False,
        show_progress: bool | None = None,
    ) -> TrainingRecord:
        """Fine-tune on labelled texts, keep the best epoch, and calibrate on the validation data.

        Args:
            train_data: A file, or a list of mappings.
            validation: Held-out data; a tenth of the training data, drawn with ``seed``, when left out.
            text: Column of the texts; several are joined by a space.
            label: Column of the labels.
            target: ``"single"`` label, ``"multi"`` (lists of labels), or ``"regression"`` (numbers).
            epochs: Passes over the training data.
            learning_rate: Peak of the schedule; 1e-4 for encoders up to 512 wide and 3e-5 for wider ones when left out.
            batch_size: Texts in one update.
            seed: Of the new head, the order of the texts, and dropout.
            settings: The finer settings.
            log: JSON Lines file for the course of the training.
            checkpoints: Folder for checkpoints that training can be resumed from.
            resume: Continue from the newest checkpoint.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        fine = settings or FitSettings()
        usual_rate = 1e-4 if self.model.config.hidden <= 512 else 3e-5
        rate = usual_rate if learning_rate is None else learning_rate
        training_settings = fine.training(epochs, rate, seed, self.model.device)
        variant = converter(target)
        examples = read_examples(train_data, text=text, label=label, convert=variant.convert)
        if validation is None:
            examples, held_out = hold_out(examples, 0.1, seed, variant.names)
        else:
            held_out = read_examples(validation, text=text, label=label, convert=variant.convert)
        chosen = target_of(target, examples)
        training, held = self._labelled(chosen, examples), self._labelled(chosen, held_out)
        with self._started(chosen, seed) as module:
            objective = SequenceObjective(
                module, chosen, training, held, batch_size=batch_size, tokens=fine.tokens, seed=seed
            )
            record = train(
                objective,
                training_settings,
                log=None if log is None else Path(log),
                checkpoints=None if checkpoints is None else Path(checkpoints),
                resume=resume,
                show_progress=show_progress,
            )
        logits_NC = predict_logits(self._fitted(), held.store, self._tokens())
        self.temperature = self._target().fit_temperature(logits_NC, held.truth) if fine.calibrate else None
        self.columns = Columns.of(text, label)
        used = DataUsed(self.columns, len(examples), len(held_out), split=validation is None)
        self.card = written_card(self.model, record, used)
        return record

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self, texts: str, *, calibrated: bool | None = ..., show_progress: bool | None = ...
    ) -> Prediction: ...

    @overload
    def predict(
        self, texts: Sequence[str], *, calibrated: bool | None = ..., show_progress: bool | None = ...
    ) -> list[Prediction]: ...

    def predict(
        self, texts: str | Sequence[str], *, calibrated: bool | None = None, show_progress: bool | None = None
    ) -> Prediction | list[Prediction]:
        """Predictions for texts, in order; one prediction for a single string.

        Args:
            texts: One text or many.
            calibrated: True insists on calibrated probabilities, False wants those of the head as it is; when left
                out they are calibrated where the model is.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: Calibrated probabilities were insisted on and the model has no calibration.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        stream = self.predict_stream(listed, calibrated=calibrated, total=len(listed), show_progress=show_progress)
        answers = list(stream)
        return answers[0] if isinstance(texts, str) else answers

    def predict_stream(
        self,
        texts: Iterable[str],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        target, temperature = self._target(), self._temperature(calibrated)
        for answer in self._run(texts, "predicting", total, show_progress):
            reading = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
            yield target.predict(_merged(answer), temperature, reading)

    def evaluate(
        self,
        data: Source,
        *,
        text: str | tuple[str, ...] | None = None,
        label: str | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Metrics on labelled texts, with 95 % bootstrap intervals; probabilities are calibrated where the model is.

        Args:
            data: A file, or a list of mappings.
            text: Column of the texts, or several; those that it was trained on when left out.
            label: Column of the labels; the one that it was trained on when left out.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        logits_NC, truth = self.logits(data, text=text, label=label, show_progress=show_progress)
        return self.report(logits_NC, truth, resamples=resamples, seed=seed)

    def logits(
        self,
        data: Source,
        *,
        text: str | tuple[str, ...] | None = None,
        label: str | None = None,
        show_progress: bool | None = None,
    ) -> tuple[Logits, Truth]:
        """Uncalibrated logits (N, C) of labelled texts, and their encoded labels."""
        target = self._target()
        columns = Columns.of(text or self.columns.text, label or self.columns.label)
        examples = read_examples(data, text=columns.text, label=columns.label, convert=target.convert)
        truth = target.encode(examples)
        texts = (example.text for example in examples)
        rows = [_merged(answer) for answer in self._run(texts, "evaluating", len(examples), show_progress)]
        return np.stack(rows), truth

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

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the classifier in the ecosystem's layout, whole or not at all.

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
            "task": TASK,
            "target": target.kind,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "max_length": self.max_length,
            "on_overflow": self.on_overflow,
            "card": self.card,
        }
        with new_folder(folder, overwrite=overwrite) as new:
            write_model(new, settings, tensors, extras)
            self.model.tokenizer.save(new, types=config.reads_types)

    def _run(
        self, texts: Iterable[str], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[TextRows]:
        engine = InferenceEngine(
            self.model.tokenizer, self._fitted(), self.model.device, Reading(self.max_length, self.on_overflow)
        )
        return engine.run(texts, total=total, description=description, show_progress=show_progress)

    def _labelled(self, target: Target, examples: Sequence[Example[Any]]) -> LabelledWindows:
        encoded = (
            text
            for start in range(0, len(examples), BLOCK)
            for text in self.model.tokenizer.encode(
                [example.text for example in examples[start : start + BLOCK]],
                max_length=self.max_length,
                on_overflow=self.on_overflow,
                first=start,
            )
        )
        return LabelledWindows(WindowStore.of(encoded), target.encode(examples))

    @contextmanager
    def _started(self, target: Target, seed: int) -> Iterator[SequenceModel]:
        """Take ``target`` up: continue with the trained head where it is the same, else begin a new one."""
        before = self._module, self.target, self.temperature
        if self.target != target or self._module is None:
            with seeded(seed):
                self._open_head(target, self._checkpoint.new_score_head(HEAD, target.outputs))
        try:
            yield self._fitted()
        except BothwaysError as error:
            # A new head that learnt nothing must not pass for a trained one.
            if not (isinstance(error, TrainingDiverged) and error.best_epoch):
                self._module, self.target, self.temperature = before
            raise

    def _open_head(self, target: Target, head: ScoreHead) -> None:
        head = head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype)
        self._module = SequenceModel(self.model.encoder, head).eval()
        self.target = target
        self.temperature = None

    def _temperature(self, calibrated: bool | None) -> Temperature | None:
        if calibrated and self.temperature is None:
            raise NotCalibrated(
                f"calibrated probabilities were asked for, but {self.model.name!r} was not calibrated. Fit it with "
                "validation data, or leave calibrated out."
            )
        return None if calibrated is False else self.temperature

    def _tokens(self) -> int:
        return CPU_TOKENS if self.model.device.type == "cpu" else GPU_TOKENS

    def _fitted(self) -> SequenceModel:
        if self._module is None:
            raise NotFitted(f"{self._checkpoint.name!r} has no trained classification head yet: call fit first.")
        return self._module

    def _target(self) -> Target:
        self._fitted()
        if self.target is None:
            raise NotFitted(f"{self._checkpoint.name!r} has no labels yet: call fit first.")
        return self.target


def _merged(answer: TextRows) -> Logits:
    lengths_W = np.asarray(answer.lengths)
    logits_1C = merge_windows(answer.rows_WK, lengths_W, np.zeros(len(lengths_W), dtype=np.int64))
    return logits_1C.reshape(-1)
