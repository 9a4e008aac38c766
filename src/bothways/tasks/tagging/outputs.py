"""Tags of words: what the outputs of a head mean that reads each token.

The model is given words with single spaces between them, and the first token of a word stands for it.

Shapes: W words of one text, M words of several texts, C tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.labels import label_settings
from bothways.checkpoints.schema import StoredTags
from bothways.choices import Scheme
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.data import Example, Source, read_tagged
from bothways.data.windows import digest_of, digest_of_texts
from bothways.errors import InvalidInput
from bothways.evaluation import (
    Outcomes,
    TaggedWords,
    Temperature,
    apply_temperature,
    fit_temperature,
    negative_log_likelihood,
    share_error,
    span_counts,
    span_outcomes,
    tag_outcomes,
)
from bothways.evaluation.tag_schemes import check_scheme, scheme_of_names
from bothways.inference import TokenOutputs
from bothways.tasks.findings import Mistake, findings_of_words
from bothways.tasks.head import StoredInputs, TrainingData
from bothways.tasks.opened import Opened
from bothways.tasks.outputs import Identity, Rows
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.splits import hold_out
from bothways.tasks.tagging.predictions import Tagging, taggings
from bothways.tasks.tagging.spec import TagColumns, TagData, TagLearning, TagOpening, TagPrediction
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.tagging.word_windows import TagAnswers, WordWindows, word_scores
from bothways.tasks.target_settings import stored_names
from bothways.tasks.targets import SingleLabel
from bothways.tasks.together import DistillableOutputs, TemperatureOutputs
from bothways.text import ReadWords, Words
from bothways.training.objective import Validation

if TYPE_CHECKING:
    from bothways.tasks.objective import Answers, Units
    from bothways.tasks.opening import OpenedModel

WordScores: TypeAlias = Scores[Words]
TrueTags: TypeAlias = Sequence[NDArray[np.int64]]
"""For each text the numbers of its words' tags."""
TagExample: TypeAlias = Example[tuple[str, ...]]

CHUNK = 64
"""Texts whose words are decoded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class TagOutputs(TemperatureOutputs[Words, Words], DistillableOutputs):
    """A tag for each word, and the spans that the tags encode.

    Attributes:
        tag_set: The tags and their scheme.
        confidence: The temperature that calibrates words' tags.
        calibrates: Whether a temperature is to be learnt.
    """

    tag_set: TagSet
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    calibrates: bool = True

    head: ClassVar = "token"
    head_title: ClassVar = "head for words"
    per_token: ClassVar = True
    keeps_inputs: ClassVar = True
    shares_inputs: ClassVar = True
    reads_words: ClassVar = True

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The tags."""
        return self.tag_set.labels

    @property
    def comparable(self) -> tuple[str, ...]:
        """The labels of spans, for schemes may differ; of plain tags the tags."""
        return self.labels if self.tag_set.scheme == "plain" else self.tag_set.span_labels

    # --- from words to answers ---

    def texts(self, value: Words) -> tuple[str, ...]:
        """Return the words with single spaces between them."""
        return (ReadWords.of(value).text,)

    def scores(self, value: Words, rows: Sequence[Rows], options: object = None) -> WordScores:
        """Return the scores of the words (W, C), from those of the tokens of all windows."""
        del options
        (only,) = rows
        if not isinstance(only, TokenOutputs):
            raise TypeError("tags of words are read from a row for each token")
        tokens = ReadWords.of(value).first_tokens(only.places)
        scores_WC = word_scores(only.rows, tokens, len(value), self.tag_set.unseen_C)
        return Scores(scores_WC, value, TokensRead(len(only.rows), only.dropped_tokens))

    def decide(self, scores: Iterable[WordScores], options: TagPrediction | None = None) -> Iterator[Tagging]:
        """Return the best tags of each text that make no broken span.

        Raises:
            InvalidInput: Tags that are no spans are wanted in a scheme.
        """
        chosen = options or TagPrediction()
        if chosen.scheme is not None and self.tag_set.scheme == "plain":
            raise InvalidInput(f"the tags of this model are no spans, so they cannot be written as {chosen.scheme}.")
        decided = self._decided(scores, None if chosen.calibrated is False else self.temperature)
        return decided if chosen.scheme is None else (each.in_scheme(chosen.scheme) for each in decided)

    def _decided(self, scores: Iterable[WordScores], temperature: Temperature | None) -> Iterator[Tagging]:
        waiting = iter(scores)
        while chunk := list(islice(waiting, CHUNK)):
            lengths = [len(each.places) for each in chunk]
            tags_M, probabilities_M = self.tag_set.best(_end_to_end(chunk), lengths, temperature)
            tags = [self.labels[number] for number in tags_M.tolist()]
            yield from taggings(chunk, tags, probabilities_M.tolist(), self.tag_set)

    def outcomes(self, scores: Sequence[WordScores], truth: TrueTags, *, calibrated: bool | None = None) -> Outcomes:
        """Return the right and wrong spans, or plain tags, of labelled texts."""
        words = self._tagged(scores, truth, None if calibrated is False else self.temperature)
        if self.tag_set.scheme == "plain":
            found = tag_outcomes(words, self.labels)
        else:
            spans, tag_set = self._spans(words, truth), self.tag_set
            found = span_outcomes(*spans, words, tag_set.span_labels, tag_set.scheme)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    # --- learning ---

    @classmethod
    def begin(
        cls,
        opened: OpenedModel,
        data: TrainingData,
        columns: TagColumns,
        options: TagLearning,
        seed: int,
        before: Self | None,
    ) -> tuple[Self, list[TagExample], list[TagExample]]:
        """Read tagged words; IOB1 is learnt as BIO. Texts that are the same are held out together."""
        del opened
        examples = _tagged_examples(data.train, columns)
        found = data_scheme(examples, check_scheme(options.scheme) if options.scheme else None)
        wanted: Scheme = "BIO" if found == "IOB1" else found
        examples = tagged_in(examples, found, wanted)
        if data.validation is None:
            examples, held_out = hold_out(
                examples, 0.1, seed, lambda tags: tuple(set(tags)), "tag", group=lambda each: each.text.text
            )
        else:
            held_out = _read_in(data.validation, columns, options.scheme, wanted)
        tag_set = TagSet.of_rows(examples, wanted).continued(None if before is None else before.tag_set)
        return cls(tag_set, calibrates=options.calibration is not None), examples, held_out

    def read(self, data: Source, columns: TagColumns, options: TagData | None = None) -> list[TagExample]:
        """Return words with tags in the model's scheme."""
        return _read_in(data, columns, None if options is None else options.scheme, self.tag_set.scheme)

    def encode(self, examples: Sequence[TagExample]) -> TrueTags:
        """Return for each text the numbers of its words' tags."""
        return self.tag_set.encode(examples)

    def check_data(self, training: StoredInputs, held: StoredInputs) -> list[int]:
        """Leave out texts of which the tokenizer leaves nothing."""
        del held
        return _windows(training).unread

    def continues(self, before: Self) -> bool:
        """Return whether the tags and their scheme are the same."""
        return self.tag_set == before.tag_set

    @property
    def start_strength(self) -> float:
        """The log loss of scikit-learn's classifiers."""
        from bothways.tasks.linear_start import STRENGTH

        return STRENGTH

    def answers(self, stored: StoredInputs) -> Answers:
        """Return the tags of the words in each window."""
        return TagAnswers(_windows(stored), stored.truth)

    def validate(self, scores: Sequence[WordScores], truth: TrueTags) -> Validation:
        """Return metrics on held-out texts; the score is span F1, of plain tags accuracy."""
        scores_MC, truth_M, lengths = _end_to_end(scores), np.concatenate(truth), [len(each) for each in truth]
        predicted_M = self.tag_set.decode(scores_MC, lengths)
        nll = negative_log_likelihood(truth_M, apply_temperature(scores_MC, 1.0))
        metrics = {"accuracy": float((predicted_M == truth_M).mean()), "nll": nll}
        if self.tag_set.scheme == "plain":
            return Validation(metrics, metrics["accuracy"], share_error(metrics["accuracy"], len(truth_M)))
        spans, predicted = (self.tag_set.spans_of_texts(tags_M, lengths) for tags_M in (truth_M, predicted_M))
        right, there, given = span_counts(spans, predicted, self.tag_set.span_labels).sum(axis=(0, 2)).tolist()
        span_f1 = 2 * right / max(1, there + given)
        return Validation({"span_f1": span_f1, **metrics}, span_f1, share_error(span_f1, (there + given) / 2))

    def findings(
        self,
        scores: Sequence[WordScores],
        truth: TrueTags,
        training: Sequence[TagExample],
        held_out: Sequence[TagExample],
    ) -> tuple[list[str], tuple[Mistake, ...]]:
        """Return what speaks against the tags, and the most confident ones that the labels contradict."""
        del training
        return findings_of_words(self.labels, self._tagged(scores, truth, self.temperature), held_out)

    @property
    def identity(self) -> Identity:
        """Scheme and tags."""
        return {"scheme": self.tag_set.scheme, "labels": " ".join(self.labels)}

    def part(self, stored: StoredInputs) -> dict[str, object]:
        """Return the number of words, and SHA-256 of the numbers of their tags."""
        truth_M, lengths_N = np.concatenate(stored.truth), np.array([len(each) for each in stored.truth])
        return {"words": len(truth_M), "tags_sha256": digest_of(lengths_N, truth_M)}

    # --- taught to a smaller model ---

    def unlearnt(self) -> Self:
        """Return the same without a temperature."""
        return self.uncalibrated()

    def uncalibrated(self) -> Self:
        """Return the same without a temperature."""
        return self.with_confidence(Confidence())

    def units(self, stored: StoredInputs) -> Units:
        """Return the words."""
        return _windows(stored).units()

    def decided(self, scores: Sequence[WordScores]) -> TrueTags:
        """Return the best tags of each text that make no broken span."""
        lengths = [len(each.places) for each in scores]
        return np.split(self.tag_set.decode(_end_to_end(scores), lengths), np.cumsum(lengths)[:-1])

    # --- several models together: the words of a text are what whole texts are to models that label those ---

    @property
    def row_target(self) -> SingleLabel:
        """The tag of a word by itself."""
        return SingleLabel(self.labels)

    @property
    def common(self) -> Mapping[str, str]:
        """The scheme."""
        return {"scheme": self.tag_set.scheme}

    def calibrated_on(self, scores: Sequence[WordScores], truth: TrueTags) -> Self:
        """Return the same with a temperature."""
        temperature = Temperature(fit_temperature(_end_to_end(scores), np.concatenate(truth)))
        return replace(self, confidence=Confidence(temperature))

    def flat(self, truth: TrueTags) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tags of all words, and the text of each."""
        return np.concatenate(truth), np.repeat(np.arange(len(truth)), [len(each) for each in truth])

    def names(self) -> dict[str, object]:
        """Return tags and scheme."""
        return {"labels": list(self.labels), "scheme": self.tag_set.scheme}

    def part_together(self, inputs: Sequence[Words], truth: TrueTags) -> dict[str, object]:
        """Return how many texts and words, and SHA-256 of the words and of their tags."""
        truth_M = np.concatenate(truth)
        texts = digest_of_texts(words.listed() for words in inputs)
        return {"rows": len(inputs), "texts_sha256": texts, "words": len(truth_M), "tags_sha256": digest_of(truth_M)}

    # --- on disk ---

    @classmethod
    def open(cls, opened: Opened, options: TagOpening, size: int, *, ours: bool) -> Self:
        """Return the tags of a trained head, by name or as the caller calls them."""
        given, settings = options.labels, opened.settings
        names = tuple(given) if given is not None else stored_names(settings, named=ours)
        if len(names) != size or len(set(names)) != size:
            raise InvalidInput(f"the trained head has {size} outputs, so it needs as many labels, not {names}.")
        stored = StoredTags.of(opened.extras if ours else {})
        scheme = check_scheme(options.scheme) if options.scheme else stored.scheme or scheme_of_names(names)
        return cls(TagSet(names, scheme), Confidence(stored_temperature(stored)))

    def settings(self) -> dict[str, object]:
        """Return the names of the tags."""
        return label_settings(self.labels)

    def write(self, folder: Path) -> dict[str, object]:
        """Return scheme and temperature."""
        return {"scheme": self.tag_set.scheme, **super(TagOutputs, self).write(folder)}

    def _tagged(self, scores: Sequence[WordScores], truth: TrueTags, temperature: Temperature | None) -> TaggedWords:
        """Return the best tags that make no broken span, beside the true ones."""
        lengths = [len(each) for each in truth]
        predicted_M, probability_M = self.tag_set.best(_end_to_end(scores), lengths, temperature)
        texts_M = np.repeat(np.arange(len(lengths)), lengths)
        return TaggedWords(np.concatenate(truth), predicted_M, probability_M, texts_M)

    def _spans(self, words: TaggedWords, truth: TrueTags) -> tuple[Any, Any]:
        """Return the true and the predicted spans of each text."""
        lengths = [len(each) for each in truth]
        return (
            self.tag_set.spans_of_texts(words.truth_W, lengths),
            self.tag_set.spans_of_texts(words.predicted_W, lengths),
        )


def _end_to_end(scores: Sequence[WordScores]) -> NDArray[np.float64]:
    """Return the scores of the words of all texts (M, C)."""
    return np.concatenate([each.logits_RC for each in scores])


def _windows(stored: StoredInputs) -> WordWindows:
    return WordWindows.of(stored.store, map(ReadWords.of, stored.inputs))


def _tagged_examples(data: Source, columns: TagColumns) -> list[TagExample]:
    rows = read_tagged(data, columns.tokens, columns.tags)
    return [Example(row.words, row.label, 0, row.where) for row in rows]


def _read_in(data: Source, columns: TagColumns, scheme: Scheme | None, wanted: Scheme) -> list[TagExample]:
    """Tagged words in the scheme that is wanted, from those of another, or of one that is guessed."""
    examples = _tagged_examples(data, columns)
    return tagged_in(examples, data_scheme(examples, check_scheme(scheme) if scheme else None, wanted), wanted)
