"""The training of taggers: data, loss, temperature, diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bothways.choices import Scheme
from bothways.confidence.confidence import Confidence
from bothways.data import Example
from bothways.data.windows import digest_of
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.classification import negative_log_likelihood
from bothways.evaluation.metrics.tagging import span_counts
from bothways.evaluation.report import Validation
from bothways.evaluation.tag_schemes import check_scheme
from bothways.evaluation.temperature import Temperature, apply_temperature, fit_temperature
from bothways.tasks.heads.diagnostics import LabelIssue, diagnostics_of_words
from bothways.tasks.heads.inputs import StoredInputs
from bothways.tasks.heads.learner import Identity, TemperatureLearner
from bothways.tasks.heads.linear_start import STRENGTH
from bothways.tasks.heads.objective import LabelLoss, LossUnits
from bothways.tasks.splits import TrainingData, hold_out
from bothways.tasks.tagging.outputs import (
    TagExample,
    TagOutputs,
    TrueTags,
    WordScores,
    read_in_scheme,
    scores_of_words,
    tagged_examples,
)
from bothways.tasks.tagging.spec import TagColumns, TagFitting
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.tagging.word_windows import WordLoss, WordWindows
from bothways.tasks.torch_backend import TorchBackend
from bothways.text import ReadWords, Words


@dataclass(frozen=True, slots=True, eq=False)
class TagLearner(TemperatureLearner[TagOutputs, TrueTags, Words]):
    """The training side of tags of words.

    Attributes:
        outputs: The outputs.
        calibrates: Whether to fit a temperature.
    """

    outputs: TagOutputs
    calibrates: bool = True

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: TagColumns,
        options: TagFitting,
        seed: int,
        before: TagOutputs | None,
    ) -> tuple[Self, list[TagExample], list[TagExample]]:
        """Read tagged words, converting IOB1 to BIO. Equal texts are held out together."""
        del backend
        examples = tagged_examples(data.train, columns)
        found = data_scheme(examples, check_scheme(options.scheme) if options.scheme else None)
        scheme: Scheme = "BIO" if found == "IOB1" else found
        examples = tagged_in(examples, found, scheme)
        if data.validation is None:
            examples, held_out = hold_out(
                examples, 0.1, seed, lambda tags: tuple(set(tags)), "tag", group=lambda each: each.text.text
            )
        else:
            held_out = read_in_scheme(data.validation, columns, options.scheme, scheme)
        tag_set = TagSet.of_rows(examples, scheme).continued(None if before is None else before.tag_set)
        return cls(TagOutputs(tag_set), options.calibration is not None), examples, held_out

    def check_data(self, training: StoredInputs, held: StoredInputs) -> list[int]:
        """Leave out texts without any tokens."""
        del held
        return _windows(training).unread

    def is_compatible_with(self, before: TagOutputs) -> bool:
        """Return True if the tags and their scheme are the same."""
        return self.outputs.tag_set == before.tag_set

    @property
    def start_strength(self) -> float:
        """The inverse penalty of scikit-learn's classifiers."""
        return STRENGTH

    def loss(self, stored: StoredInputs) -> LabelLoss:
        """Return the tags of the words in each window as targets."""
        return WordLoss(_windows(stored), stored.truth)

    def validate(self, scores: Sequence[WordScores], truth: TrueTags) -> Validation:
        """Return metrics on held-out texts; the score is span F1, or accuracy for plain tags."""
        tag_set = self.outputs.tag_set
        scores_MC, truth_M, lengths = scores_of_words(scores), np.concatenate(truth), [len(each) for each in truth]
        predicted_M = tag_set.decode(scores_MC, lengths)
        nll = negative_log_likelihood(truth_M, apply_temperature(scores_MC, 1.0))
        metrics = {"accuracy": float((predicted_M == truth_M).mean()), "nll": nll}
        if tag_set.scheme == "plain":
            return Validation(metrics, metrics["accuracy"], share_error(metrics["accuracy"], len(truth_M)))
        spans, predicted = (tag_set.spans_of_texts(tags_M, lengths) for tags_M in (truth_M, predicted_M))
        right, there, given = span_counts(spans, predicted, tag_set.span_labels).sum(axis=(0, 2)).tolist()
        span_f1 = 2 * right / max(1, there + given)
        return Validation({"span_f1": span_f1, **metrics}, span_f1, share_error(span_f1, (there + given) / 2))

    @property
    def identity(self) -> Identity:
        """The scheme and the tags."""
        return {"scheme": self.outputs.tag_set.scheme, "labels": " ".join(self.outputs.labels)}

    def calibrated(self, scores: Sequence[WordScores], truth: TrueTags) -> TagOutputs:
        """Return the outputs with a fitted temperature."""
        return with_temperature(self.outputs, scores, truth)

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return the number of words, and SHA-256 of the numbers of their tags."""
        truth_M, lengths_N = np.concatenate(stored.truth), np.array([len(each) for each in stored.truth])
        return {"words": len(truth_M), "tags_sha256": digest_of(lengths_N, truth_M)}

    def diagnostics(
        self,
        scores: Sequence[WordScores],
        truth: TrueTags,
        training: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
    ) -> tuple[list[str], tuple[LabelIssue, ...]]:
        """Return warnings about the tags, and the most confident predictions that contradict a label."""
        del training
        words = self.outputs.tagged(scores, truth, self.outputs.confidence.temperature)
        return diagnostics_of_words(self.outputs.labels, words, held_out)

    # --- distillation ---

    def without_confidence(self) -> Self:
        """Return the learner without a temperature."""
        return self.with_outputs(replace(self.outputs, confidence=Confidence()))

    def without_calibration(self) -> Self:
        """Return the learner without a temperature."""
        return self.without_confidence()

    def loss_units(self, stored: StoredInputs) -> LossUnits:
        """Return the loss units: one for each word."""
        return _windows(stored).units()

    def decided(self, scores: Sequence[WordScores]) -> TrueTags:
        """Return the best valid sequence of tags for each text."""
        lengths = [len(each.places) for each in scores]
        return np.split(self.outputs.tag_set.decode(scores_of_words(scores), lengths), np.cumsum(lengths)[:-1])


def with_temperature(outputs: TagOutputs, scores: Sequence[WordScores], truth: TrueTags) -> TagOutputs:
    """Return outputs with a temperature fitted on held-out scores."""
    temperature = Temperature(fit_temperature(scores_of_words(scores), np.concatenate(truth)))
    return replace(outputs, confidence=Confidence(temperature))


def _windows(stored: StoredInputs) -> WordWindows:
    return WordWindows.of(stored.store, map(ReadWords.of, stored.inputs))
