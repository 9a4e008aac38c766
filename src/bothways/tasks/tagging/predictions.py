"""Predictions of a tagger."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from bothways.choices import Scheme
from bothways.evaluation.tag_schemes import TagSpan, tags_of
from bothways.tasks.scores import Scores, TokensRead
from bothways.tasks.tagging.tag_set import TagSet
from bothways.text import Words


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """One word.

    Attributes:
        text: The word.
        start: Where it begins in the text, in characters.
        end: The character behind its last.
        tag: Its tag.
        probability: That of the tag for this word by itself, calibrated where the model was.
    """

    text: str
    start: int
    end: int
    tag: str
    probability: float


@dataclass(frozen=True, slots=True)
class TaggedSpan:
    """Words that belong together, such as a name.

    Attributes:
        label: What they are.
        start: Where they begin in the text, in characters: ``text[start:end]``.
        end: The character behind their last.
        text: What stands there.
        probability: The least of those of the words' tags.
        words: Numbers of the first word, and of the one behind the last.
    """

    label: str
    start: int
    end: int
    text: str
    probability: float
    words: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tagging:
    """The tags of a text's words.

    Attributes:
        text: The text as it was given; of words that came as a list, these with single spaces between them.
        words: All words with their tags.
        spans: The spans that the tags say, in order; none where tags are no spans.
        tokens_read: How much of the text was read.
    """

    text: str
    words: tuple[TaggedWord, ...]
    spans: tuple[TaggedSpan, ...]
    tokens_read: TokensRead

    @property
    def tags(self) -> tuple[str, ...]:
        """One tag for each word."""
        return tuple(word.tag for word in self.words)

    def tags_in(self, scheme: Scheme) -> list[str]:
        """Return the spans as tags of a scheme, whatever scheme the model has.

        Raises:
            InvalidInput: The scheme is that of plain tags.
        """
        return tags_of((TagSpan(span.label, *span.words) for span in self.spans), len(self.words), scheme)

    def in_scheme(self, scheme: Scheme) -> "Tagging":
        """Return the same with the tags of a scheme, whatever scheme the model has.

        Raises:
            InvalidInput: The scheme is that of plain tags.
        """
        tagged = zip(self.words, self.tags_in(scheme), strict=True)
        return replace(self, words=tuple(replace(word, tag=tag) for word, tag in tagged))

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "text": self.text,
            "spans": [asdict(span) for span in self.spans],
            "words": [
                {
                    "text": word.text,
                    "start": word.start,
                    "end": word.end,
                    "tag": word.tag,
                    "probability": word.probability,
                }
                for word in self.words
            ],
            **asdict(self.tokens_read),
        }


def taggings(
    texts: Sequence[Scores[Words]], tags: Sequence[str], probabilities: Sequence[float], tag_set: TagSet
) -> Iterator[Tagging]:
    """Answers for texts whose words' tags, with their probabilities, stand end to end."""
    end = 0
    for each in texts:
        start, end, text = end, end + len(each.places), each.places.text
        tags_W, probabilities_W = tags[start:end], probabilities[start:end]
        words = tuple(
            TaggedWord(text[first:last], first, last, tag, probability)
            for (first, last), tag, probability in zip(each.places.spans, tags_W, probabilities_W, strict=True)
        )
        spans = tuple(_span(span, each.places, probabilities_W) for span in tag_set.spans(tags_W))
        yield Tagging(text, words, spans, each.read)


def _span(span: TagSpan, words: Words, probabilities_W: Sequence[float]) -> TaggedSpan:
    start, end = words.spans[span.start][0], words.spans[span.end - 1][1]
    least = min(probabilities_W[span.start : span.end])
    return TaggedSpan(span.label, start, end, words.text[start:end], least, (span.start, span.end))
