"""Predictions of a tagger."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bothways.choices import Scheme
from bothways.evaluation.tag_schemes import TagSpan, tags_of
from bothways.tasks.scores import Count, Probability, Scores, TaskPrediction, TokensRead
from bothways.tasks.tagging.tag_set import TagSet
from bothways.text import Words


@dataclass(frozen=True, slots=True)
class TaggedWord(TaskPrediction):
    """One word.

    Attributes:
        text: The word.
        start: Offset of its first character in the text, in code points.
        end: Offset behind its last character.
        tag: Its tag.
        probability: Probability of the tag for this word alone, calibrated if the model is.
    """

    text: str
    start: Count
    end: Count
    tag: str
    probability: Probability


@dataclass(frozen=True, slots=True)
class TaggedSpan(TaskPrediction):
    """Words that belong together, such as a name.

    Attributes:
        label: Label of the span, such as PER.
        start: Offset of its first character in the text, in code points.
        end: Offset behind its last character.
        text: ``text[start:end]`` of the whole text.
        probability: The lowest probability of its words' tags.
        words: Numbers of its first word and of the word behind its last, from 0.
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
        """Return the spans as tags of a scheme, whatever scheme the model has.

        Raises:
            InvalidInput: The scheme is that of plain tags.
        """
        return tags_of((TagSpan(span.label, *span.words) for span in self.spans), len(self.words), scheme)

    def in_scheme(self, scheme: Scheme) -> "Tagging":
        """Return the tagging with the tags of a scheme, whatever scheme the model has.

        Raises:
            InvalidInput: The scheme is that of plain tags.
        """
        tagged = zip(self.words, self.tags_in(scheme), strict=True)
        return replace(self, words=tuple(replace(word, tag=tag) for word, tag in tagged))


def taggings(
    texts: Sequence[Scores[Words]], tags: Sequence[str], probabilities: Sequence[float], tag_set: TagSet
) -> Iterator[Tagging]:
    """Yield the taggings of texts from the tags of all words, concatenated, with their probabilities."""
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
