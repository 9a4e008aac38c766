"""Multiple choice models as members of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from bothways.data.windows import digest_of, digest_of_texts
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.multiple_choice.learner import ChoiceLearner, with_temperature
from bothways.tasks.multiple_choice.outputs import ChoiceOutputs, Choices, RightChoices
from bothways.tasks.scores import Scores


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceCombiner(Combiner[ChoiceOutputs, Choices, RightChoices, Choices]):
    """Combines the scores of several multiple choice models."""

    stackable: ClassVar = False

    def calibrated(self, scores: Sequence[Scores[Choices]], truth: RightChoices) -> Self:
        """Return the outputs with a fitted temperature."""
        return replace(self, outputs=with_temperature(self.outputs, scores, truth))

    def metrics(self, scores: Sequence[Scores[Choices]], truth: RightChoices) -> Mapping[str, float]:
        """Return accuracy and negative log-likelihood of one member's calibrated scores."""
        return ChoiceLearner(self.outputs).validate(scores, truth).metrics

    def names(self) -> dict[str, object]:
        """Return an empty dict: choices have no label names."""
        return {}

    def data_facts(self, inputs: Sequence[Choices], truth: RightChoices) -> dict[str, object]:
        """Return the number of contexts, SHA-256 of the texts, and SHA-256 of the right choices."""
        texts = digest_of_texts([context, *choices] for context, choices in inputs)
        return {"rows": len(inputs), "texts_sha256": texts, "labels_sha256": digest_of(truth)}
