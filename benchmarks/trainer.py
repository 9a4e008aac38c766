"""transformers' Trainer as a peer: what every task on it shares.

It is used as its documentation shows, with our settings, and keeps the epoch that our rule chooses where there are
validation rows. Its predictions are made by a plain loop here, because the Trainer's ``predict`` returns the rows out
of order when lengths are grouped.

Shapes: B rows or windows of a batch.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embedders import batches_of
from benchmarks.harness import minilm_folder
from benchmarks.tasks import SCORED, TaskData, average_precisions, correlation
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import installed, set_torch_threads
from bothways.evaluation.intervals import correlation_error, mean_error, share_error

BATCH, LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 32, 1e-4, 0.1, 0.01

Settings = Callable[[int], dict[str, Any]]


def quiet_settings(folder: str, seed: int) -> dict[str, Any]:
    """Return the settings of a Trainer that saves and reports nothing."""
    off = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
    return {"output_dir": folder, "seed": seed, "disable_tqdm": True, **off}


def common_settings(epochs: int) -> dict[str, Any]:
    """Return our settings in the Trainer's words; the rows come in random order."""
    rate = {"learning_rate": LEARNING_RATE, "lr_scheduler_type": "linear", "weight_decay": WEIGHT_DECAY}
    # Below 1 the warm-up is a share of all steps.
    return {**rate, "num_train_epochs": epochs, "per_device_train_batch_size": BATCH, "warmup_steps": WARM_UP}


def grouped_settings(epochs: int) -> dict[str, Any]:
    """Return the same with rows of like lengths in a batch, which is faster."""
    return {**common_settings(epochs), "train_sampling_strategy": "group_by_length"}


class EpochChoice:
    """Validates a model after each epoch and holds the weights of the one to keep.

    The rule is ours: the latest epoch whose score is within a standard error of the best. The peers' own trainers keep
    the last epoch. ``validate`` returns the score of the module as it is, and its standard error.
    """

    def __init__(self, module: Any, validate: Callable[[], tuple[float, float]]) -> None:  # noqa: ANN401
        self._module, self._validate = module, validate
        self._weights: dict[str, Any] = {}
        self.validations: list[Any] = []

    def judge(self, epoch: int) -> None:
        """Validate after an epoch; 0 is the model before the training, whose score has no allowance."""
        from bothways.training.state import EpochValidation, kept_of

        score, error = self._validate()
        score = score if math.isfinite(score) else -math.inf
        found = EpochValidation(epoch, 0, score, {}, standard_error=error if epoch else 0.0)
        self.validations.append(found)
        if kept_of(self.validations) is found:
            self._weights = {name: value.detach().clone() for name, value in self._module.state_dict().items()}

    def callback(self, transformers: Any) -> Any:  # noqa: ANN401
        """Return a callback of transformers' Trainer that judges each epoch."""

        class AfterEpoch(transformers.TrainerCallback):  # type: ignore[misc]
            def on_epoch_end(_, *__: object, **___: object) -> None:  # noqa: N805
                self.judge(self.validations[-1].epoch + 1 if self.validations else 1)

        return AfterEpoch()

    def restore(self) -> int:
        """Give the module the weights to keep and return their epoch."""
        from bothways.training.state import kept_of

        kept = kept_of(self.validations)
        if kept is None:
            raise ValueError("expected a validated epoch, got none")
        self._module.load_state_dict(self._weights)
        return kept.epoch


def validation_score(data: TaskData, answers: Sequence[Any]) -> tuple[float, float]:
    """Return the score that ours would choose by for these answers to the validation rows, and its standard error."""
    rows = data.validation
    if data.kind == SCORED:
        errors_N = (np.array([row["score"] for row in rows]) - np.array(answers)) ** 2
        return -float(errors_N.mean()), mean_error(errors_N)
    if data.kind == "embedding":
        score = correlation(rows, answers)["Spearman"]
        return score, correlation_error(score, len(rows))
    if data.kind == "ranking":
        precisions = average_precisions(rows, answers)[0]
        return float(np.mean(precisions)), float(np.std(precisions, ddof=1) / math.sqrt(len(precisions)))
    score = next(iter(data.score(rows, answers).values()))
    if data.kind != "tagging":
        return score, share_error(score, len(rows))
    # Spans: the mean of the true and the predicted ones; without spans, words.
    truth = [row["tags"] for row in rows]
    spans = [sum(tag.startswith("B-") for tags in each for tag in tags) for each in (truth, answers)]
    return score, share_error(score, sum(spans) / 2 if spans[0] else sum(map(len, truth)))


class TransformersPeer:
    """A model of transformers, by default MiniLM, on its Trainer, whose ``settings`` follow from the epochs.

    Each task has its ``answers``, in the form that the task's metrics read.
    """

    def __init__(
        self, threads: int, device: str, checkpoint: Path | None = None, settings: Settings = common_settings
    ) -> None:
        _, self.transformers = installed("accelerate"), installed("transformers")  # its Trainer needs the first
        set_torch_threads(threads)
        self.transformers.utils.logging.set_verbosity_error()
        self.transformers.utils.logging.disable_progress_bar()
        self.device, self.settings = device, settings
        self.checkpoint = checkpoint or minilm_folder()
        self.tokenizer = self.transformers.AutoTokenizer.from_pretrained(self.checkpoint, model_max_length=MAX_TOKENS)
        self.model: Any = None
        self.notes: dict[str, Any] = {}

    def validate(self, data: TaskData) -> tuple[float, float]:
        """Return the validation score of the model as it is, and its standard error."""
        return validation_score(data, self.answers(data.validation))

    def train(self, model: Any, rows: list[Any], collator: Any, data: TaskData, seed: int) -> None:  # noqa: ANN401
        """Train a model on tokenised rows, and keep the epoch that the validation rows choose."""
        self.model = model
        choice = EpochChoice(model, lambda: self.validate(data))
        chosen = bool(data.validation) and data.epochs > 1
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = self.transformers.Trainer(
                model=model,
                args=self.transformers.TrainingArguments(
                    **quiet_settings(folder, seed),
                    use_cpu=self.device == "cpu",
                    dataloader_pin_memory=self.device != "cpu",
                    **self.settings(data.epochs),
                ),
                train_dataset=rows,
                data_collator=collator,
                processing_class=self.tokenizer,
                callbacks=[choice.callback(self.transformers)] if chosen else None,
            )
            trainer.remove_callback(self.transformers.PrinterCallback)
            trainer.train()
        if chosen:
            self.notes = {"kept epoch": choice.restore()}

    def outputs(self, encoded: Any) -> list[Any]:  # noqa: ANN401
        """Return the model's outputs of tokenised rows in their order; they are computed sorted by length."""
        import torch

        keys = [key for key in ("input_ids", "token_type_ids", "attention_mask") if key in encoded]
        found: list[Any] = [None] * len(encoded["input_ids"])
        self.model.eval()
        with torch.inference_mode():
            for rows in batches_of(encoded["input_ids"], BATCH):
                batch = self.tokenizer.pad(
                    {key: [encoded[key][row] for row in rows] for key in keys}, return_tensors="pt"
                )
                given = self.model(**batch.to(self.model.device))
                if "start_logits" in given:
                    scores = torch.stack([given.start_logits, given.end_logits], -1).cpu().numpy()
                else:
                    scores = given["logits" if "logits" in given else "last_hidden_state"].cpu().numpy()
                for row, each in zip(rows, scores, strict=True):
                    found[row] = each
        return found
