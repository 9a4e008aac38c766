"""Tagging: predictions, and their computation from the outputs of a token head. Does not import torch.

The words of a text are joined by single spaces. The first token of a word represents it: scores and loss use only this
token, but the encoder reads all tokens, as in Devlin et al. (2018, section 5.3).

Shapes: W words of one text, M words of several texts, n tokens in a window, C tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import StoredTags, different_names, label_settings, numbered_names, placeholders
from bothways.choices import Scheme, Unlabelled
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import Example, Source, read_tagged
from bothways.data.label_rows import check_looks, one_spelling
from bothways.data.labels import names_of
from bothways.data.sources import PLAIN_READING, LabelReading
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.tag_schemes import TagSpan, scheme_of_names, tags_of
from bothways.inference import Rows, TokenOutputs
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.targets import SingleLabel, reading_settings, stored_label_reading
from bothways.tasks.outputs import Outputs, logits_of_all
from bothways.tasks.scores import Count, Probability, Scores, TaskPrediction, TokensRead, texts_read
from bothways.tasks.spec import options_of
from bothways.tasks.tagging.spec import TagColumns, TagData, TagFitting, TagOpening, TagPrediction
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.text import ReadWords, Words, WordStarts

WordScores: TypeAlias = Scores[Words]
TrueTags: TypeAlias = Sequence[NDArray[np.int64]]
"""The tag indices of the words of each text."""
TagExample: TypeAlias = Example[tuple[str, ...]]

CHUNK = 64
"""Number of texts to decode at once."""


@dataclass(frozen=True, slots=True)
class TaggedWord(TaskPrediction):
    """One word.

    Attributes:
        text: The word.
        start: Offset of its first character in the text, in code points.
        end: Offset just past its last character.
        tag: Its tag.
        probability: Probability of the tag regardless of other words' tags, calibrated if the model is.
    """

    text: str
    start: Count
    end: Count
    tag: str
    probability: Probability


@dataclass(frozen=True, slots=True)
class TaggedSpan(TaskPrediction):
    """A span of consecutive words that the tags mark, such as a name.

    Attributes:
        label: Label of the span, such as PER.
        start: Offset of its first character in the text, in code points.
        end: Offset just past its last character.
        text: ``text[start:end]`` of the whole text.
        probability: The lowest probability among the tags of its words.
        words: Index of its first word, and of the word after its last word, from 0.
    """

    label: str
    start: Count
    end: Count
    text: str
    probability: Probability
    words: tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class Tagging(TaskPrediction):
    """The tags of a text's words.

    Attributes:
        text: The text as given; words given as a list are joined by single spaces.
        spans: The spans that the tags encode, in order; empty for tags without a scheme.
        words: All words with their tags.
        tokens_read: How much of the text was read.
    """

    text: str
    spans: tuple[TaggedSpan, ...]
    words: tuple[TaggedWord, ...]
    tokens_read: TokensRead

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag of each word."""
        return tuple(word.tag for word in self.words)

    def tags_in(self, scheme: Scheme) -> list[str]:
        """Return the spans as tags of a span scheme, which may differ from the model's."""
        return tags_of((TagSpan(span.label, *span.words) for span in self.spans), len(self.words), scheme)

    def in_scheme(self, scheme: Scheme) -> Tagging:
        """Return the tagging with tags of a span scheme, which may differ from the model's."""
        tagged = zip(self.words, self.tags_in(scheme), strict=True)
        return replace(self, words=tuple(replace(word, tag=tag) for word, tag in tagged))


@dataclass(frozen=True, slots=True, eq=False)
class TagOutputs(Outputs[Words, TrueTags, Words, Tagging]):
    """A tag for each word, and the spans that the tags encode; a temperature calibrates the tag probabilities."""

    tag_set: TagSet
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    reading: LabelReading = PLAIN_READING

    head: ClassVar = "token"
    head_title: ClassVar = "head for words"
    per_token: ClassVar = True
    reads_words: ClassVar = True

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return self.tag_set.labels

    @property
    def comparable(self) -> tuple[str, ...]:
        """The labels of spans, since schemes may differ; for plain tags, the tags."""
        return self.labels if self.tag_set.scheme == "plain" else self.tag_set.span_labels

    @property
    @override
    def row_target(self) -> SingleLabel:
        return SingleLabel(self.labels)

    @override
    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[TagExample]:
        given = options_of(TagData, options)
        own, reading = options_of(TagColumns, columns), self.reading.with_options(given.normalise_labels, given.labels)
        return read_in_scheme(data, own, given, self.tag_set.scheme, reading, self.tag_set.spellings)

    @override
    def encode(self, examples: Sequence[TagExample]) -> TrueTags:
        return self.tag_set.encode(examples)

    # --- from words to predictions ---

    @override
    def texts(self, value: Words) -> tuple[str, ...]:
        return (ReadWords.of(value).text,)

    @override
    def scores(self, value: Words, rows: Sequence[Rows], options: object = None) -> WordScores:
        del options
        match rows:
            case [TokenOutputs(windows, places, dropped)]:
                tokens = ReadWords.of(value).first_tokens(places)
                scores_WC = word_scores(windows, tokens, len(value), self.tag_set.unseen_C)
                return Scores(scores_WC, value, TokensRead(len(windows), dropped))
            case _:
                raise TypeError("expected one text, with a row of scores for each token")

    @override
    def decide(self, scores: Sequence[WordScores], options: object = None) -> list[Tagging]:
        given = options_of(TagPrediction, options)
        if given.scheme is not None and self.tag_set.scheme == "plain":
            raise InvalidInput(f"the tags of this model encode no spans: leave out scheme={given.scheme!r}.")
        temperature = None if given.calibrated is False else self.confidence.temperature
        found: list[Tagging] = []
        for start in range(0, len(scores), CHUNK):
            chunk = scores[start : start + CHUNK]
            lengths = [len(each.places) for each in chunk]
            tags_M, probabilities_M = self.tag_set.best(logits_of_all(chunk), lengths, temperature)
            tags = [self.tag_set.labels[number] for number in tags_M.tolist()]
            found += taggings(chunk, tags, probabilities_M.tolist(), self.tag_set)
        return found if given.scheme is None else [each.in_scheme(given.scheme) for each in found]

    @override
    def outcomes(self, scores: Sequence[WordScores], truth: TrueTags, *, calibrated: bool | None = None) -> Outcomes:
        words, tag_set = self.tagged(scores, truth, calibrated=calibrated), self.tag_set
        if tag_set.scheme == "plain":
            found = tag_outcomes(words, self.labels)
        else:
            lengths = [len(each) for each in truth]
            true, predicted = (tag_set.spans_of_texts(tags, lengths) for tags in (words.truth_W, words.predicted_W))
            found = span_outcomes(true, predicted, words, tag_set.span_labels, tag_set.scheme)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    def tagged(self, scores: Sequence[WordScores], truth: TrueTags, *, calibrated: bool | None = None) -> TaggedWords:
        """Return the best valid tags with their probabilities, and the true tags."""
        temperature = None if calibrated is False else self.confidence.temperature
        lengths = [len(each) for each in truth]
        predicted_M, probability_M = self.tag_set.best(logits_of_all(scores), lengths, temperature)
        texts_M = np.repeat(np.arange(len(lengths)), lengths)
        return TaggedWords(np.concatenate(truth), predicted_M, probability_M, texts_M)

    @override
    def facts(self) -> dict[str, object]:
        return {"labels": list(self.labels), **self.write(Path())}

    # --- on disk ---

    @classmethod
    @override
    def check_untrained(cls, backend: Backend) -> None:
        options = options_of(TagOpening, backend.options)
        if options.scheme is not None:
            raise InvalidInput("scheme needs a trained head, but this checkpoint has none: pass scheme to fit instead.")

    @classmethod
    @override
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        options = options_of(TagOpening, backend.options)
        settings = backend.files.settings
        names = stored_names(settings, named=ours) if options.labels is None else names_of(options.labels)
        known = numbered_names(settings.get("id2label") or {})
        if set(names) <= set(known) and len(known) == size:
            names = known  # the tags keep their order; the given one is that of numbers
        if len(names) != size or len(set(names)) != size:
            raise InvalidInput(f"the trained head has {size} outputs, so it needs {size} labels, got {names}.")
        stored = StoredTags.of(backend.files.extras if ours else {})
        scheme = options.scheme or stored.scheme or scheme_of_names(names)
        reading = stored_label_reading(stored, options.labels, names)
        return cls(TagSet(names, scheme), Confidence(stored_temperature(stored)), reading)

    @override
    def settings(self) -> Mapping[str, object]:
        return label_settings(self.labels)

    @override
    def write(self, folder: Path) -> dict[str, object]:
        del folder
        own = reading_settings(self.reading)
        return {"scheme": self.tag_set.scheme, **own, **temperature_settings(self.confidence.temperature)}


def taggings(
    texts: Sequence[Scores[Words]], tags: Sequence[str], probabilities: Sequence[float], tag_set: TagSet
) -> Iterator[Tagging]:
    """Yield the taggings of texts, given the concatenated tags of all words and their probabilities."""
    end = 0
    for each in texts:
        start, end, text = end, end + len(each.places), each.places.text
        tags_W, probabilities_W = tags[start:end], probabilities[start:end]
        words = tuple(
            TaggedWord(text[first:last], first, last, tag, probability)
            for (first, last), tag, probability in zip(each.places.spans, tags_W, probabilities_W, strict=True)
        )
        spans = tuple(_span(span, each.places, probabilities_W) for span in tag_set.spans(tags_W))
        yield Tagging(text, spans, words, each.read)


def _span(span: TagSpan, words: Words, probabilities_W: Sequence[float]) -> TaggedSpan:
    start, end = words.spans[span.start][0], words.spans[span.end - 1][1]
    least = min(probabilities_W[span.start : span.end])
    return TaggedSpan(span.label, start, end, words.text[start:end], least, (span.start, span.end))


def word_scores(
    rows: Sequence[NDArray[np.floating]], tokens: WordStarts, words: int, unseen_C: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the scores of each word (W, C), given the scores of the tokens in each window of a text (n, C).

    With one window, the scores of a word are the logits of its first token. With several, they are the mean of that
    token's log-probabilities over the windows, weighted by the number of tokens between the word and the nearer end of
    the window, so the window with the most context counts most. A word without tokens has the scores ``unseen_C``.
    """
    scores_WC = np.tile(unseen_C, (words, 1))
    if len(rows) == 1:
        scores_WC[tokens.words_M] = rows[0][tokens.rows_M]
        return scores_WC
    starts = np.cumsum([0, *map(len, rows[:-1])])
    logits_MC = np.concatenate(rows)[starts[tokens.windows_M] + tokens.rows_M].astype(np.float64)
    sums_WC, weights_W = np.zeros_like(scores_WC), np.zeros(words)
    np.add.at(sums_WC, tokens.words_M, _log_softmax(logits_MC) * tokens.context_M[:, None])
    np.add.at(weights_W, tokens.words_M, tokens.context_M)
    seen_W = weights_W > 0
    scores_WC[seen_W] = sums_WC[seen_W] / weights_W[seen_W, None]
    return scores_WC


def _log_softmax(logits_MC: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted_MC = logits_MC - logits_MC.max(axis=1, keepdims=True)
    normal_MC: NDArray[np.float64] = shifted_MC - np.log(np.exp(shifted_MC).sum(axis=1, keepdims=True))
    return normal_MC


def tagged_examples(
    data: Source,
    columns: TagColumns,
    unlabelled: Unlabelled = "error",
    reading: LabelReading = PLAIN_READING,
    known: Collection[str] = (),
) -> list[TagExample]:
    """Read words with their tags; tags that look alike, also like the ``known`` ones, may be read as one."""
    rows = list(read_tagged(data, columns.tokens, columns.tags, unlabelled, reading.names))
    tags = [row.label for row in rows]
    if reading.normalise:
        names = one_spelling(tags, known)
        tags = [tuple(names[tag] for tag in each) for each in tags]
    elif not known:
        check_looks(tags, columns.tags)
    return [Example(row.words, label, row.row, row.where) for row, label in zip(rows, tags, strict=True)]


def read_in_scheme(
    data: Source,
    columns: TagColumns,
    options: TagData | TagFitting,
    target: Scheme,
    reading: LabelReading,
    known: Collection[str] = (),
) -> list[TagExample]:
    """Read tagged words, and convert them to the scheme ``target`` from the given or recognised scheme."""
    examples = tagged_examples(data, columns, options.unlabelled, reading, known)
    return tagged_in(examples, data_scheme(examples, options.scheme, target), target)


def stored_names(settings: Mapping[str, object], *, named: bool) -> tuple[str, ...]:
    """Return the tags in ``config.json``; raise `InvalidInput` for placeholders such as LABEL_0.

    ``named`` is True if a user chose such names; otherwise they mean that the tags have no names.
    """
    names = different_names(settings.get("id2label") or {})
    if not names or (names == placeholders(len(names)) and not named):
        shown = f"{', '.join(names[:3])}{' ...' * (len(names) > 3)}" if names else "no id2label"
        raise InvalidInput(
            f"config.json does not name the classes of its trained head ({shown}). Pass labels=[...] in "
            "the order of the outputs (--labels)."
        )
    return names
