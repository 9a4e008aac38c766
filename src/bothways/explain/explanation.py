"""Explanations of one input: the words that a prediction depends on, and the attention of all heads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bothways.checkpoints import PretrainedEncoder
from bothways.choices import AttributionMethod
from bothways.compose.ensembles.trained import TrainedEnsemble
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain.attention import Head, TextAttention, attention_of, illustrative_head, rollout
from bothways.explain.attribution import STEPS, Attribution, attribute
from bothways.explain.scoring import explain_targets
from bothways.explain.targets import Target
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.task import AnyTask
from bothways.text.windows import Text


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Attribution and attention of a model on one input."""

    model: str  # the model's name
    attribution: Attribution | None  # contributions of words; None for an encoder without a task
    # The attention of all heads; None for a text of several windows, and for an ensemble.
    attention: TextAttention | None
    notes: tuple[str, ...] = ()  # missing parts of the explanation, with the reason

    @property
    def head(self) -> Head | None:
        """The head to inspect first, see `illustrative_head`; None without attention."""
        if self.attention is None:
            return None
        try:
            return illustrative_head(self.attention)
        except InvalidInput:  # no distant words: use the first head
            return Head(len(self.attention.weights_LNSS) - 1, 0)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, with the attention rollout but without attention weights, which `arrays` returns."""
        values: dict[str, object] = {"model": self.model, "notes": list(self.notes)}
        if self.attribution is not None:
            values["attribution"] = self.attribution.to_dict()
        if self.attention is not None:
            values["tokens"] = list(self.attention.tokens)
            values["rollout"] = rollout(self.attention).round(6).tolist()
        return values

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return arrays by name: words, their contributions, tokens, attention (L, N, S, S) and rollout (S, S)."""
        found: dict[str, npt.NDArray[np.generic]] = {}
        if self.attribution is not None:
            found["words"] = np.array([each.text for each in self.attribution.words], dtype=np.str_)
            found["word_weights"] = self.attribution.weights_W
        if self.attention is not None:
            found["tokens"] = np.array(self.attention.tokens, dtype=np.str_)
            found["attention"] = self.attention.weights_LNSS
            found["rollout"] = rollout(self.attention)
        return found


def explain(
    model: AnyTask,
    value: object,
    method: AttributionMethod = "integrated-gradients",
    *,
    target: Target | None = None,
    steps: int = STEPS,
) -> Explanation:
    """Explain the prediction of one input: attribution to words, and attention.

    Args:
        model: A trained model of one task.
        value: The input, in a form that ``predict`` of the model takes.
        method: Method of attribution.
        target: The score to explain. Default: that of the model's own prediction.
        steps: Number of points at which integrated gradients are computed.

    Raises:
        The errors of `bothways.explain.attribute`.
    """
    (found,) = attribute(model, [value], method, target=target, steps=steps)
    (explained,) = explain_targets(model, [value], target)
    if isinstance(model.fitted, TrainedEnsemble):
        return Explanation(model.name, found, None, ("attention, since an ensemble has several encoders.",))
    fitted = model.fitted
    shown = fitted.backend.reading.given(explained.shown) if isinstance(fitted, TrainedHead) else explained.shown
    try:
        return Explanation(model.name, found, attention_of(model.model, shown))
    except TextTooLong:
        return Explanation(model.name, found, None, ("attention, since the text has several windows.",))


def explain_attention(model: PretrainedEncoder, text: Text) -> Explanation:
    """Return the attention of an encoder alone, without a prediction.

    Raises:
        InvalidInput: ``text`` is neither a string nor a pair of strings.
        TextTooLong: The text does not fit into one window.
    """
    return Explanation(model.name, None, attention_of(model, text))
