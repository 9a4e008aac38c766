"""The card of a saved model: its data, training, metrics with intervals, and limits; and its baseline.

The baseline is the model before the training: a linear model of the frozen encoder's hidden states, a further trained
head, or an embedder. Only its head is saved, in ``baseline/head.safetensors`` (a few kilobytes for a linear head), with
the name of the base model; an evaluation opens the base model again. If it is not on this machine any more, and if the
model is its own baseline, the baseline is the best constant prediction. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bothways.checkpoints.files import fingerprint, read_arrays, write_arrays
from bothways.checkpoints.hub import LocatedModel, locate
from bothways.checkpoints.schema import StoredBase, StoredBaseline
from bothways.choices import TargetKind
from bothways.errors import BothwaysError
from bothways.evaluation.report import flat_estimates
from bothways.tasks.columns import AnyColumns, Card, column_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bothways.checkpoints import PretrainedEncoder
    from bothways.confidence.confidence import Confidence
    from bothways.data.windows import WindowStore
    from bothways.evaluation.report import Report
    from bothways.training.state import TrainingRecord

VALIDATION = "the validation rows"

# Card entries for a set of rows: their number, and checksums of their contents.
Part = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DataUsed:
    """The data that a model was trained on; ``split`` is True if held-out rows were drawn from the training data."""

    columns: AnyColumns
    training: Part
    validation: Part | None
    split: bool


@dataclass(frozen=True, slots=True)
class TrainingBaseline:
    """The baseline of a training, and its metrics on the held-out rows."""

    name: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CardMetrics:
    """Metrics on held-out rows (None if they were not computed), and sentences on their limits."""

    metrics: Report | None
    limits: tuple[str, ...]


def data_part(rows: int, store: WindowStore) -> dict[str, object]:
    """Return the card's entries for tokenised rows: their number, and the SHA-256 of their tokens."""
    return {"rows": rows, "tokens_sha256": store.digest}


def written_card(
    model: PretrainedEncoder, record: TrainingRecord, data: DataUsed, measured: CardMetrics, of: str = VALIDATION
) -> dict[str, object]:
    """Return the card of a model that was just trained; ``of`` is the noun phrase for the evaluated rows.

    ``trained_before`` in the card counts earlier trainings of the base model, whose data are unknown.
    """
    summary = {name: value for name, value in record.to_dict().items() if name != "losses"}
    parts = {"training": data.training} | ({} if data.validation is None else {"validation": data.validation})
    given = "none" if data.validation is None else "a tenth of the training data" if data.split else "given"
    return {
        "base_model": model.name,
        "revision": model.revision,
        **({"trained_before": model.trainings - 1} if model.trainings > 1 else {}),
        "columns": column_settings(data.columns),
        "training_rows": data.training["rows"],
        "validation_rows": 0 if data.validation is None else data.validation["rows"],
        "validation": given,
        "data": {name: dict(part) for name, part in parts.items()},
        "training": summary,
        **metrics_card(measured, of),
    }


def metrics_card(measured: CardMetrics, of: str = VALIDATION) -> dict[str, object]:
    """Return the card's metrics and limits; ``of`` is the noun phrase for the evaluated rows."""
    metrics = measured.metrics
    numbers = None if metrics is None else {"of": of, "n": metrics.n, **flat_estimates(metrics.estimates)}
    return {"metrics": numbers, "limits": list(measured.limits)}


def training_baseline(card: Mapping[str, object]) -> TrainingBaseline | None:
    """Return the baseline of a training and its metrics; None if the card has none.

    The baseline was measured on the held-out rows, as epoch 0, or by cross-validation if no rows were held out.
    Edited cards and cards of other versions may lack any part of it.
    """
    match card:
        case {"baseline": {"name": name, "metrics": {**metrics}}} if name:
            pass
        case {"baseline": Mapping()}:
            return None
        case {"training": {"baseline": name, "validations": [{"metrics": {**metrics}}, *_]}} if name:
            pass
        case _:
            return None
    return TrainingBaseline(
        str(name), {str(key): each for key, each in metrics.items() if isinstance(each, int | float)}
    )


def optimistic(rows: str, chose: str) -> str:
    """Return a warning that metrics are optimistic, since the same rows decided something in the training.

    ``rows`` is the noun for the rows (texts, questions, rows), and ``chose`` names the decision, such as "the epoch".
    """
    return (
        f"The metrics are slightly optimistic, since the same {rows} also decided {chose}. Evaluate the model on "
        f"{rows} that it has never seen."
    )


def unmeasured(why: str) -> str:
    """Return a sentence that explains why the card has no metrics."""
    return f"The card has no metrics: {why}. Evaluate the model on rows that it has never seen."


EPOCH_AND_CALIBRATION = "the epoch to keep and the calibration"
LIKE_THESE = "Metrics and probabilities hold for texts like the held-out rows."
COVERAGE_IS_APPROXIMATE = (
    "Coverage is approximate, since it was fitted on the rows that also decided the epoch to keep and the calibration: "
    "new rows may be covered slightly less often than requested."
)
BALANCED = (
    "All labels had the same weight in training, so rare labels are predicted too often, and their probabilities are "
    "too high unless the calibration corrects that."
)
NOTICES_NOTHING = "The model does not detect texts that are unlike its training texts."
OUT_OF_DOMAIN_LIMIT = "The out-of-domain threshold was fitted to"

# Limits of metrics from cross-validation, and of a model of few texts without it.
FOLDS_LIMITS = (
    "The model was trained on all rows, as there are few. Metrics, calibration, coverage and the out-of-domain "
    "threshold come from cross-validation, with models trained on three quarters of the rows, so they are approximate.",
)
FOLDS_UNMEASURED = (
    unmeasured("all rows were used for training, and the training or its cross-validation did not finish"),
    "Probabilities are not calibrated.",
    NOTICES_NOTHING,
)


def card_with_threshold(card: Card, confidence: Confidence, rows: int) -> dict[str, object]:
    """Return the card with an out-of-domain threshold that was fitted on this number of out-of-domain rows."""
    if "confidence" not in card:
        return dict(card)
    fitted = {name: confidence.to_card()[name] for name in ("out_of_domain", "out_of_domain_threshold")}
    limits = [limit for limit in card.get("limits", ()) if not limit.startswith(OUT_OF_DOMAIN_LIMIT)]
    limit = f"{OUT_OF_DOMAIN_LIMIT} {rows:,} out-of-domain rows: metrics on the same rows are optimistic."
    learnt = {**card["confidence"], **fitted, "out_of_domain_rows": rows}
    return {**card, "confidence": learnt, "limits": [*limits, limit]}


# --- the baseline ---

BASELINE_HEAD = Path("baseline/head.safetensors")

CONSTANTS: Mapping[TargetKind, str] = {
    "single": "always the most frequent label of the training rows",
    "multi": "always the label frequencies of the training rows",
    "regression": "always the mean of the training rows",
}
"""Names of constant predictions, by the kind of target."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that a training started from.

    Attributes:
        name: Its name or path, as the user gave it.
        revision: Its commit on the hub.
        sha256: The checksum of the weights in its folder; empty for a model of the hub or of a package.
        places: Folders in which it may be.
    """

    name: str
    revision: str | None = None
    sha256: str = ""
    places: tuple[Path, ...] = ()

    @classmethod
    def of(cls, model: PretrainedEncoder) -> Self | None:
        """Return the model whose copy is being trained; None if its weights are in memory only."""
        if model.trainings > 1:
            return None
        if model.revision is None and Path(model.name).is_dir():
            return cls(model.name, None, fingerprint(model.folder), (model.folder.resolve(),))
        return cls(model.name, model.revision)

    @classmethod
    def stored(cls, stored: StoredBase, folder: Path) -> Self:
        """Return the base model of the model in a folder; a relative path may be relative to a folder above it."""
        places = (Path(stored.name), *(parent / stored.name for parent in folder.resolve().parents))
        return cls(stored.name, stored.revision, stored.sha256, places if stored.sha256 else ())

    def located(self) -> LocatedModel | None:
        """Find the model; None if it is not on this machine, or its weights have changed."""
        if self.sha256:
            there = (each for each in self.places if each.is_dir() and fingerprint(each) == self.sha256)
            return next((LocatedModel(each, self.name) for each in there), None)
        try:
            return None if Path(self.name).is_dir() else locate(self.name, revision=self.revision)
        except BothwaysError:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class SavedBaseline:
    """The baseline of a training, without the base model's weights.

    Attributes:
        name: The kind of baseline.
        constant: Logits of the best constant prediction; empty if the task has none.
        base: The base model; None if the only baseline is the constant.
        config: Entries for the base model's ``config.json`` that describe the head.
        outputs: Settings of the head's outputs, such as their calibration.
        head: Weights of the head under the family's names; empty for an embedder.
    """

    name: str
    constant: tuple[float, ...] = ()
    base: BaseModel | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    outputs: Mapping[str, object] = field(default_factory=dict)
    head: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)

    def as_constant(self) -> Self:
        """Return the best constant prediction only, for a model that is its own baseline."""
        return replace(self, base=None, config={}, outputs={}, head={})

    def write(self, folder: Path) -> dict[str, object]:
        """Write the head into the folder of a model, and return the entry for ``bothways.json``."""
        if self.head:
            (folder / BASELINE_HEAD).parent.mkdir()
            write_arrays(folder / BASELINE_HEAD, self.head)
        found = self.base
        base = None if found is None else {"name": found.name, "revision": found.revision, "sha256": found.sha256}
        own = {"constant": list(self.constant), "config": dict(self.config), "outputs": dict(self.outputs)}
        return {"baseline": {"name": self.name, "base": base, **own}}

    @classmethod
    def read(cls, stored: StoredBaseline, folder: Path) -> Self:
        """Read the baseline of the model in a folder."""
        constant = cls(stored.name, tuple(stored.constant))
        # Exports have no weights beside their own.
        if stored.base is None or (stored.outputs and not (folder / BASELINE_HEAD).is_file()):
            return constant
        head = read_arrays(folder / BASELINE_HEAD) if stored.outputs else {}
        base = BaseModel.stored(stored.base, folder)
        return replace(constant, base=base, config=stored.config, outputs=stored.outputs, head=head)
