"""From texts to the scores of their words, and from scores to tags and spans: in order, and in flat memory."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from bothways.errors import InvalidInput
from bothways.evaluation import Temperature
from bothways.inference import InferenceEngine, TokenRows
from bothways.tasks.predictions import Reading
from bothways.tasks.tagging.predictions import ScoredWords, Tagging, taggings
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.word_windows import Scores, word_scores
from bothways.text import FirstTokens, ReadWords, Words

# Texts whose words are decoded at once.
CHUNK = 64


def scored_words(
    engine: InferenceEngine,
    words: Iterable[Words],
    unseen_C: Scores,
    *,
    total: int | None,
    description: str,
    show_progress: bool | None,
) -> Iterator[ScoredWords]:
    """Texts with the scores of their words.

    Args:
        engine: Gives the logits of each token.
        words: The words of each text.
        unseen_C: Scores of a word of which no token was read.
        total: How many texts there are, for the progress bar.
        description: What it says.
        show_progress: Force it on or off.
    """
    answers = read_words(engine, words, total=total, description=description, show_progress=show_progress)
    for given, tokens, answer in answers:
        scores_WC = word_scores(answer.rows, tokens, len(given), unseen_C)
        yield ScoredWords(given, scores_WC, Reading(len(answer.rows), answer.dropped_tokens))


def read_words(
    engine: InferenceEngine,
    words: Iterable[Words],
    *,
    total: int | None,
    description: str,
    show_progress: bool | None,
) -> Iterator[tuple[Words, FirstTokens, TokenRows]]:
    """Texts, the tokens that begin their words, and what the engine says of all tokens; see `scored_words`."""
    waiting: deque[tuple[Words, ReadWords]] = deque()

    def texts() -> Iterator[str]:
        for each in words:
            read = ReadWords.of(each)
            waiting.append((each, read))
            yield read.text

    answers = engine.run_tokens(texts(), total=total, description=description, show_progress=show_progress)
    for answer in answers:
        given, read = waiting.popleft()
        yield given, read.first_tokens(answer.places), answer


def decided(scored: Iterator[ScoredWords], tag_set: TagSet, temperature: Temperature | None) -> Iterator[Tagging]:
    """The best tags of texts, with the spans that they say."""
    while chunk := list(islice(scored, CHUNK)):
        lengths = [len(each.words) for each in chunk]
        scores_MC = np.concatenate([each.scores_WC for each in chunk])
        tags_M, probabilities_M = tag_set.best(scores_MC, lengths, temperature)
        tags = [tag_set.labels[number] for number in tags_M.tolist()]
        yield from taggings(chunk, tags, probabilities_M.tolist(), tag_set)


def words_of(number: int, text: object) -> Words:
    """The words of a raw text, or of a list.

    Raises:
        InvalidInput: It is neither, or there is no word.
    """
    if isinstance(text, str):
        words = Words.of_text(text)
    elif isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
        try:
            words = Words.of_list(text)
        except InvalidInput as error:
            raise InvalidInput(f"text {number + 1}: {error}") from error
    else:
        raise InvalidInput(
            f"expected text {number + 1} to be a str or a list of str, got {type(text).__name__}: {text!r:.80}"
        )
    if not words.spans:
        raise InvalidInput(
            f"text {number + 1} is empty or only white space and characters that cannot be seen: drop it or fill it in."
        )
    return words
