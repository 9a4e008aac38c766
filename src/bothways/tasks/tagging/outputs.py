"""Tags of words: the outputs of a head that reads each token. Loads no torch.

The model reads the words with single spaces between them, and the first token of a word gives its scores.

Shapes: W words of one text, M words of several texts, C tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import StoredTags, label_settings
from bothways.choices import Scheme
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import Example, Source, read_tagged
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.tag_schemes import TagSpan, check_scheme, scheme_of_names
from bothways.evaluation.temperature import Temperature
from bothways.inference import Rows, TokenOutputs
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.target_settings import stored_names
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.outputs import Outputs
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.spec import options_of
from bothways.tasks.tagging.predictions import Tagging, taggings
from bothways.tasks.tagging.spec import TagColumns, TagData, TagOpening, TagPrediction
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.tagging.word_windows import word_scores
from bothways.text import ReadWords, Words

WordScores: TypeAlias = Scores[Words]
TrueTags: TypeAlias = Sequence[NDArray[np.int64]]
"""The tag numbers of the words of each text."""
TagExample: TypeAlias = Example[tuple[str, ...]]

CHUNK = 64
"""Texts whose words are decoded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class TagOutputs(Outputs[Words, TrueTags, Words, Tagging]):
    """A tag for each word, and the spans that the tags encode.

    Attributes:
        tag_set: The tags and their scheme.
        confidence: The temperature that calibrates the tags of words.
    """

    tag_set: TagSet
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)

    head: ClassVar = "token"
    head_title: ClassVar = "head for words"
    per_token: ClassVar = True
    keeps_inputs: ClassVar = True
    reads_words: ClassVar = True

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The tags."""
        return self.tag_set.labels

    @property
    def comparable(self) -> tuple[str, ...]:
        """The labels of spans, since schemes may differ; for plain tags, the tags."""
        return self.labels if self.tag_set.scheme == "plain" else self.tag_set.span_labels

    @property
    def row_target(self) -> SingleLabel:
        """The target of a single word: one tag."""
        return SingleLabel(self.labels)

    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[TagExample]:
        """Return words with their tags in the model's scheme."""
        given = options_of(TagData, options)
        return read_in_scheme(data, options_of(TagColumns, columns), given.scheme, self.tag_set.scheme)

    def encode(self, examples: Sequence[TagExample]) -> TrueTags:
        """Return the numbers of each text's tags."""
        return self.tag_set.encode(examples)

    # --- from words to answers ---

    def texts(self, value: Words) -> tuple[str, ...]:
        """Return the words with single spaces between them."""
        return (ReadWords.of(value).text,)

    def scores(self, value: Words, rows: Sequence[Rows], options: object = None) -> WordScores:
        """Return the scores of the words (W, C), from the scores of the tokens in all windows."""
        del options
        (only,) = rows
        if not isinstance(only, TokenOutputs):
            raise TypeError("tags of words are read from a row for each token")
        tokens = ReadWords.of(value).first_tokens(only.places)
        scores_WC = word_scores(only.rows, tokens, len(value), self.tag_set.unseen_C)
        return Scores(scores_WC, value, TokensRead(len(only.rows), only.dropped_tokens))

    def decide(self, scores: Sequence[WordScores], options: object = None) -> list[Tagging]:
        """Return the best valid sequence of tags for each text.

        Raises:
            InvalidInput: Plain tags cannot be written in a scheme of spans.
        """
        given = options_of(TagPrediction, options)
        if given.scheme is not None and self.tag_set.scheme == "plain":
            raise InvalidInput(f"the tags of this model are no spans, so they cannot be written as {given.scheme}.")
        temperature = None if given.calibrated is False else self.confidence.temperature
        found: list[Tagging] = []
        for start in range(0, len(scores), CHUNK):
            chunk = scores[start : start + CHUNK]
            lengths = [len(each.places) for each in chunk]
            tags_M, probabilities_M = self.tag_set.best(scores_of_words(chunk), lengths, temperature)
            tags = [self.labels[number] for number in tags_M.tolist()]
            found += taggings(chunk, tags, probabilities_M.tolist(), self.tag_set)
        return found if given.scheme is None else [each.in_scheme(given.scheme) for each in found]

    def outcomes(self, scores: Sequence[WordScores], truth: TrueTags, *, calibrated: bool | None = None) -> Outcomes:
        """Return the right and wrong spans, or plain tags, of labelled texts."""
        words = self.tagged(scores, truth, None if calibrated is False else self.confidence.temperature)
        if self.tag_set.scheme == "plain":
            found = tag_outcomes(words, self.labels)
        else:
            spans, tag_set = self._spans(words, truth), self.tag_set
            found = span_outcomes(*spans, words, tag_set.span_labels, tag_set.scheme)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    def tagged(self, scores: Sequence[WordScores], truth: TrueTags, temperature: Temperature | None) -> TaggedWords:
        """Return the best valid tags beside the true ones."""
        lengths = [len(each) for each in truth]
        predicted_M, probability_M = self.tag_set.best(scores_of_words(scores), lengths, temperature)
        texts_M = np.repeat(np.arange(len(lengths)), lengths)
        return TaggedWords(np.concatenate(truth), predicted_M, probability_M, texts_M)

    def _spans(self, words: TaggedWords, truth: TrueTags) -> tuple[list[list[TagSpan]], list[list[TagSpan]]]:
        """Return the true and the predicted spans of each text."""
        lengths = [len(each) for each in truth]
        return (
            self.tag_set.spans_of_texts(words.truth_W, lengths),
            self.tag_set.spans_of_texts(words.predicted_W, lengths),
        )

    @override
    def facts(self) -> dict[str, object]:
        return {"labels": list(self.labels), **self.write(Path())}

    # --- on disk ---

    @classmethod
    def check_untrained(cls, backend: Backend) -> None:
        """Refuse labels and scheme for a checkpoint without a trained head."""
        options = options_of(TagOpening, backend.options)
        if options.labels is not None:
            raise InvalidInput("labels name the outputs of a trained head, but this checkpoint has none: call fit.")
        if options.scheme is not None:
            raise InvalidInput("labels and scheme are those of a trained head, but this checkpoint has none: fit.")

    @classmethod
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        """Return the tags of a trained head, named by the checkpoint or by the options."""
        options = options_of(TagOpening, backend.options)
        given, settings = options.labels, backend.settings
        names = tuple(given) if given is not None else stored_names(settings, named=ours)
        if len(names) != size or len(set(names)) != size:
            raise InvalidInput(f"the trained head has {size} outputs, so it needs as many labels, not {names}.")
        stored = StoredTags.of(backend.extras if ours else {})
        scheme = check_scheme(options.scheme) if options.scheme else stored.scheme or scheme_of_names(names)
        return cls(TagSet(names, scheme), Confidence(stored_temperature(stored)))

    @override
    def settings(self) -> Mapping[str, object]:
        return label_settings(self.labels)

    @override
    def write(self, folder: Path) -> dict[str, object]:
        del folder
        return {"scheme": self.tag_set.scheme, **temperature_settings(self.confidence.temperature)}


def scores_of_words(scores: Sequence[WordScores]) -> NDArray[np.float64]:
    """Return the scores of the words of all texts (M, C)."""
    return np.concatenate([each.logits_RC for each in scores])


def tagged_examples(data: Source, columns: TagColumns) -> list[TagExample]:
    """Return the words of a source with their tags."""
    rows = read_tagged(data, columns.tokens, columns.tags)
    return [Example(row.words, row.label, 0, row.where) for row in rows]


def read_in_scheme(data: Source, columns: TagColumns, scheme: Scheme | None, target: Scheme) -> list[TagExample]:
    """Return tagged words, converted to the scheme ``target`` from the given or guessed one."""
    examples = tagged_examples(data, columns)
    return tagged_in(examples, data_scheme(examples, check_scheme(scheme) if scheme else None, target), target)
