"""Tasks that a head above the encoder answers: a class is outputs, a spec and a docstring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar, cast

from bothways.checkpoints.schema import Stored
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.exported_head import ExportedHead
from bothways.tasks.head import TrainedHead, TrainingData, opened_head
from bothways.tasks.learning import Preparation
from bothways.tasks.opened import Opened, OpenedExport
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.task import Task
from bothways.training.options import TrainingOptions

if TYPE_CHECKING:
    from bothways.tasks.opening import OpenedModel

InputT = TypeVar("InputT")
PredictionT = TypeVar("PredictionT", covariant=True)

FittedHead: TypeAlias = TrainedHead | ExportedHead
"""A trained head, or the graph that was exported of one."""


class HeadTask(Task[InputT, PredictionT, FittedHead]):
    """A task that a head above the encoder answers.

    Attributes:
        outputs_type: What the head's outputs mean.
    """

    outputs_type: ClassVar[type[HeadOutputs[Any, Any]]]

    @classmethod
    def _open(cls, opened: Opened, options: Any) -> FittedHead | None:  # noqa: ANN401 (the task's own)
        kind, ours = cls.outputs_type, opened.trained_for == cls.spec.name
        # The head of another task may have the same shape and mean something else.
        size = opened.score_count(kind.head) if ours or opened.trained_for is None else None
        if size is None and isinstance(opened, OpenedExport):
            raise opened.not_fitted(cls.spec.name, kind.head_title)
        if size is None:
            if getattr(options, "labels", None) is not None:
                raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
            return None
        outputs = kind.open(opened, options, size, ours=ours)
        card = Stored.of(opened.extras).card if ours else {}
        if isinstance(opened, OpenedExport):
            return ExportedHead.of(cls.spec, opened, outputs, card)
        model = opened.weights("use")
        return opened_head(cls.spec, model, outputs, card, model.checkpoint.build_score_head(kind.head))

    @property
    def trained(self) -> TrainedHead:
        """The trained head with its weights.

        Raises:
            NotFitted: There is none.
            InvalidInput: The model is an ONNX export, which has no weights.
        """
        fitted = self.fitted
        if isinstance(fitted, ExportedHead):
            raise fitted.opened.exported.no_weights("use")
        return fitted

    def _prepare(
        self,
        opened: OpenedModel,
        before: FittedHead | None,
        data: TrainingData,
        columns: Any,  # noqa: ANN401 (the task's own)
        options: Any,  # noqa: ANN401 (the task's own)
        training: TrainingOptions,
    ) -> Preparation[Any, FittedHead]:
        from bothways.tasks.head_training import prepare_head

        start = cast("TrainedHead | None", before)  # an export is refused before
        return prepare_head(self.spec, self.outputs_type, opened, start, data, columns, options, training)

    def _for_training(self, opened: OpenedModel, before: FittedHead | None, *, resumed: bool) -> OpenedModel:
        """Let a classifier above a sentence embedder read what that does."""
        trained = opened.for_training(resumed=resumed)
        embeds = before is None and self.outputs_type.head == "sequence" and opened.embeds_mean
        return trained.above_embedder(pairs=False) if embeds else trained

    def with_card(self, **entries: object) -> Self:
        """Return the same model with more in its card, which `save` writes into ``bothways.json``."""
        fitted = self.fitted
        return self._with(replace(fitted, card={**fitted.card, **entries}))

    def _not_fitted(self) -> NotFitted:
        return self._state[0].not_fitted(self.spec.name, self.outputs_type.head_title)
