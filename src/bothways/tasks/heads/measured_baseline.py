"""The baseline of a training with a head: the model before the first update, measured on the held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bothways.checkpoints.hub import LocatedModel
from bothways.evaluation.report import Validation
from bothways.progress import stage
from bothways.tasks.heads.baseline import BaseModel, SavedBaseline
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.objective import StoredInputs
from bothways.tasks.heads.target_training import unstandardize
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import AnyOutputs, TrainedHead, outputs_type
from bothways.tasks.scores import Scores
from bothways.tasks.torch_backend import TorchBackend, head_config, opened_beside, stored_head


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBaseline:
    """A baseline and its metrics on the held-out rows, with probabilities that are calibrated on the same rows.

    ``validation`` has its uncalibrated metrics and its score, for comparisons with the epochs of the training.
    """

    saved: SavedBaseline
    metrics: Mapping[str, float]
    validation: Validation

    @classmethod
    def of(
        cls, name: str, backend: TorchBackend, learner: AnyLearner, held: StoredInputs, tokens: int
    ) -> MeasuredBaseline:
        """Measure a head before its training, which may change it in place."""
        head = deepcopy(backend.head_model.head)
        own = backend.with_head(head)
        learner = learner.with_target(unstandardize(learner.outputs.row_target, head))
        scores = held.scores(learner.outputs, own.head_model, tokens, "evaluating the baseline")
        return cls.scored(name, own, learner, scores, held.truth)

    @classmethod
    def scored(
        cls,
        name: str,
        backend: TorchBackend,
        learner: AnyLearner,
        scores: Sequence[Scores[object]],
        truth: object,
    ) -> MeasuredBaseline:
        """Calibrate a head on its scores for held-out rows, and compute its metrics."""
        validation = learner.validate(scores, truth)
        with stage("calibrating the baseline"):
            outputs: AnyOutputs = learner.calibrated(scores, truth)
        values = outputs.outcomes(scores, truth).values()
        # Validations have the likelihood of uncalibrated probabilities, and a threshold for all labels.
        own = {key: value for key, value in validation.metrics.items() if key not in ("nll", "threshold")}
        metrics = own | {key: value for key, value in values.items() if key in validation.metrics}
        saved = SavedBaseline(
            name,
            (),
            BaseModel.of(backend.model),
            head_config(backend, outputs.head, outputs.settings()),
            outputs.write(Path()),
            {key: value.float().cpu().numpy().copy() for key, value in stored_head(backend, outputs.head).items()},
        )
        return cls(saved if saved.base is not None else saved.as_constant(), metrics, validation)

    def card(self, name: str | None = None) -> dict[str, object]:
        """Return the entry for the card; the name may tell more than that of the saved baseline."""
        return {"baseline": {"name": name or self.saved.name, "metrics": dict(self.metrics)}}


def saved_baseline(found: MeasuredBaseline | None, constant: tuple[float, ...]) -> SavedBaseline:
    """Return the baseline to save with a model: the one found, else the best constant prediction."""
    return replace(SavedBaseline("") if found is None else found.saved, constant=constant)


def open_baseline(saved: SavedBaseline, located: LocatedModel, model: TrainedHead) -> TrainedHead:
    """Open the base model with the saved head; it reads texts as the trained model does, on the same device."""
    spec, like = model.spec, with_weights(model.backend, "evaluate")
    backend = opened_beside(like, located)
    tensors = {name: torch.from_numpy(value) for name, value in saved.head.items()}
    settings = {**backend.files.settings, **saved.config}
    files = replace(backend.files, settings=settings, extras=dict(saved.outputs), tensors=tensors)
    kind = outputs_type(spec)
    head = files.build_score_head(kind.head)
    outputs = kind.open(replace(backend, files=files), head.output.out_features, ours=True)
    return TrainedHead(spec, backend.with_head(head), outputs, model.columns)
