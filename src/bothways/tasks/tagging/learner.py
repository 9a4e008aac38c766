"""The training of taggers: data, loss, temperature, diagnostics.

Shapes: M words of several texts, U words in their windows, B windows in a batch, T tokens of a batch, C tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from bothways.choices import Scheme
from bothways.confidence.confidence import Confidence
from bothways.data import Example
from bothways.data.known_rows import normalised
from bothways.data.labels import names_of
from bothways.data.sources import LabelReading, category_names
from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.classification import negative_log_likelihood
from bothways.evaluation.metrics.tagging import span_counts
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature, apply_temperature, fit_temperature
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.diagnostics import LabelIssue, diagnostics_of_words
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.linear_start import STRENGTH
from bothways.tasks.heads.objective import LabelLoss, LossUnits, StoredInputs
from bothways.tasks.heads.splits import TrainingData, hold_out
from bothways.tasks.heads.target_training import constant_logits
from bothways.tasks.outputs import logits_of_all
from bothways.tasks.spec import options_of
from bothways.tasks.tagging.outputs import (
    TagExample,
    TagOutputs,
    TrueTags,
    WordScores,
    read_in_scheme,
    tagged_examples,
)
from bothways.tasks.tagging.spec import TagColumns, TagFitting, TagOpening
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.torch_backend import TorchBackend
from bothways.text import ReadWords, Words, WordStarts


@dataclass(frozen=True, slots=True, eq=False)
class TagLearner(Learner[TagOutputs, TrueTags, Words]):
    """The training code of tagging; ``calibrates`` is True to fit a temperature."""

    calibrates: bool = True

    distills: ClassVar = True

    @classmethod
    def from_data(
        cls, backend: TorchBackend, data: TrainingData, columns: AnyColumns, options: object, before: TagOutputs | None
    ) -> tuple[Self, list[TagExample], list[TagExample]]:
        """Read tagged words, and convert IOB1 to BIO; equal texts are all held out, or all used for training."""
        own, given = options_of(TagColumns, columns), options_of(TagFitting, options)
        names = names_of(options_of(TagOpening, backend.options).labels) if before is None else ()
        reading = (LabelReading(names) if before is None else before.reading).with_options(given.normalise_labels)
        fixed = TagSet.declared(names, given.scheme) if names else None
        tags = fixed or (None if before is None else before.tag_set)
        known = () if tags is None else tags.spellings
        if fixed is None:
            examples = tagged_examples(data.train, own, given.unlabelled, reading, known)
            found = data_scheme(examples, given.scheme)
            scheme: Scheme = "BIO" if found == "IOB1" else found
            examples = tagged_in(examples, found, scheme)
        else:
            scheme = fixed.scheme
            examples = read_in_scheme(data.train, own, given, scheme, reading, known)
            fixed.encode(examples)  # refuses other tags before rows are held out
        if data.validation is None:
            examples, held_out = hold_out(
                examples, 0.1, data.seed, lambda tags: tuple(set(tags)), "tag", group=lambda each: normalised(each.text)
            )
        else:
            learnt = (fixed or TagSet.of_rows(examples, scheme)).spellings
            held_out = read_in_scheme(data.validation, own, given, scheme, reading, learnt)
        held_out = data.unshared(examples, held_out, given.shared)
        tag_set = fixed or TagSet.of_rows(examples, scheme, category_names(data.train, own.tags)).continued(tags)
        if not set(reading.names) <= set(tag_set.labels):  # those of the tags before
            reading = replace(reading, names=())
        return cls(TagOutputs(tag_set, reading=reading), given.calibration is not None), examples, held_out

    @override
    def check_data(self, training: StoredInputs, held: StoredInputs) -> list[int]:
        del held
        return _windows(training).unread

    @override
    def is_compatible_with(self, before: TagOutputs) -> bool:
        return self.outputs.tag_set == before.tag_set

    @property
    def start_strength(self) -> float:
        """Inverse penalty (scikit-learn's C) of the linear model that a new head starts from."""
        return STRENGTH

    @override
    def loss(self, stored: StoredInputs) -> LabelLoss:
        return WordLoss(_windows(stored), stored.truth)

    def validate(self, scores: Sequence[WordScores], truth: TrueTags) -> Validation:
        """Return metrics on held-out texts; the score is span F1, or accuracy for plain tags."""
        tag_set = self.outputs.tag_set
        scores_MC, truth_M, lengths = logits_of_all(scores), np.concatenate(truth), [len(each) for each in truth]
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

    @override
    def calibrated(self, scores: Sequence[WordScores], truth: TrueTags) -> TagOutputs:
        if not self.calibrates:
            return self.outputs
        return with_temperature(self.outputs, scores, truth)

    @override
    def constant(self, stored: StoredInputs) -> tuple[float, ...]:
        return constant_logits(self.outputs.row_target, np.concatenate(stored.truth))

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return the number of words, and the SHA-256 of their encoded tags."""
        truth_M, lengths_N = np.concatenate(stored.truth), np.array([len(each) for each in stored.truth])
        return {"words": len(truth_M), "tags_sha256": digest_of(lengths_N, truth_M)}

    @override
    def diagnostics(
        self,
        scores: Sequence[WordScores],
        truth: TrueTags,
        training: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
    ) -> tuple[list[str], tuple[LabelIssue, ...]]:
        del training
        return diagnostics_of_words(self.outputs.labels, self.outputs.tagged(scores, truth), held_out)

    # --- distillation ---

    @override
    def uncalibrated(self, *, detects: bool = False) -> Self:
        del detects  # taggers have no detector
        return replace(self, outputs=replace(self.outputs, confidence=Confidence()))

    @override
    def loss_units(self, stored: StoredInputs) -> LossUnits:
        return _windows(stored).units()

    @override
    def decided(self, scores: Sequence[WordScores]) -> TrueTags:
        lengths = [len(each.places) for each in scores]
        return np.split(self.outputs.tag_set.decode(logits_of_all(scores), lengths), np.cumsum(lengths)[:-1])


def with_temperature(outputs: TagOutputs, scores: Sequence[WordScores], truth: TrueTags) -> TagOutputs:
    """Return outputs with a temperature fitted on held-out scores."""
    temperature = Temperature(fit_temperature(logits_of_all(scores), np.concatenate(truth)))
    return replace(outputs, confidence=Confidence(temperature))


def _windows(stored: StoredInputs) -> WordWindows:
    return WordWindows.of(stored.store, map(ReadWords.of, stored.inputs))


# --- the loss ---


@dataclass(frozen=True, slots=True)
class WordWindows:
    """Tokenised texts, with the position of the first token of each word."""

    store: WindowStore
    tokens: tuple[WordStarts, ...]

    @classmethod
    def of(cls, store: WindowStore, texts: Iterable[ReadWords]) -> WordWindows:
        """Find the first tokens of words in windows that were stored with offsets."""
        of_texts = zip(texts, store.windows_of_texts, strict=True)
        return cls(
            store,
            tuple(words.first_tokens([store.places(window) for window in windows]) for words, windows in of_texts),
        )

    def units(self) -> LossUnits:
        """Return the words in each window as units; a word in several windows has a total weight of 1."""
        rows, shares, counts = [], [], []
        for tokens, numbers in zip(self.tokens, self.store.windows_of_texts, strict=True):
            order = _by_window(tokens)
            rows.append(tokens.rows_M[order])
            shares.append((1.0 / np.bincount(tokens.words_M)[tokens.words_M])[order])
            counts.append(np.bincount(tokens.windows_M, minlength=len(numbers)))
        starts = np.cumsum([0, *np.concatenate(counts)])
        return LossUnits(np.concatenate(rows), np.concatenate(shares), starts, self.store.lengths)

    @property
    def unread(self) -> list[int]:
        """Indices of texts without any word that has a token; they cannot be used for training."""
        return [number for number, tokens in enumerate(self.tokens) if not len(tokens.words_M)]


class WordLoss:
    """The tags of the words in each window, and their loss; a word in several windows has a total weight of 1."""

    joint: ClassVar[bool] = False

    def __init__(self, windows: WordWindows, truth: Sequence[NDArray[np.int64]]) -> None:
        self._units = windows.units()
        held = zip(windows.tokens, truth, strict=True)
        self._tags_U = np.concatenate([tags_W[tokens.words_M[_by_window(tokens)]] for tokens, tags_W in held])
        self.weights_W = self._units.weights_W  # sum of the words' shares

    @property
    def digest(self) -> str:
        """A checksum of the tags and their positions."""
        return digest_of(self._units.rows_U, self._tags_U)

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum of the words' cross-entropies, given the scores of all tokens (T, C)."""
        numbers_M, rows_M = self._units.of(windows)
        tags_M = on_device(self._tags_U[numbers_M], scores.device)
        shares_M = on_device(self._units.shares_U[numbers_M].astype(np.float32), scores.device)
        losses_M = F.cross_entropy(scores[on_device(rows_M, scores.device)], tags_M, reduction="none")
        return (losses_M * shares_M).sum()


def _by_window(tokens: WordStarts) -> NDArray[np.int64]:
    """Return the order that sorts first tokens by window."""
    return np.argsort(tokens.windows_M, kind="stable")
