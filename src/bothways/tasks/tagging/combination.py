"""Taggers as members of an ensemble; the scores of a text have one row per word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import digest_of, digest_of_texts
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.tagging.learner import TagLearner, with_temperature
from bothways.tasks.tagging.outputs import TagOutputs, TrueTags, WordScores
from bothways.text import Words


@dataclass(frozen=True, slots=True, eq=False)
class TagCombiner(Combiner[TagOutputs, Words, TrueTags, Words]):
    """Combines the tags of words from several models."""

    shares_inputs: ClassVar = True

    @property
    def shared_settings(self) -> Mapping[str, str]:
        """The scheme, which must be the same for all members."""
        return {"scheme": self.outputs.tag_set.scheme}

    def calibrated(self, scores: Sequence[WordScores], truth: TrueTags) -> Self:
        """Return the combiner with a fitted temperature."""
        return replace(self, outputs=with_temperature(self.outputs, scores, truth))

    def metrics(self, scores: Sequence[WordScores], truth: TrueTags) -> Mapping[str, float]:
        """Return metrics of calibrated scores."""
        return TagLearner(self.outputs).validate(scores, truth).metrics

    def flat(self, truth: TrueTags) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tags of all words, and the text index of each word."""
        return np.concatenate(truth), np.repeat(np.arange(len(truth)), [len(each) for each in truth])

    def names(self) -> dict[str, object]:
        """Return tags and scheme."""
        return {"labels": list(self.outputs.labels), "scheme": self.outputs.tag_set.scheme}

    def data_facts(self, inputs: Sequence[Words], truth: TrueTags) -> dict[str, object]:
        """Return the numbers of texts and words, and the SHA-256 of the words and of their tags."""
        truth_M = np.concatenate(truth)
        texts = digest_of_texts(words.listed() for words in inputs)
        return {"rows": len(inputs), "texts_sha256": texts, "words": len(truth_M), "tags_sha256": digest_of(truth_M)}
