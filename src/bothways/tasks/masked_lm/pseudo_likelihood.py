"""Pseudo-log-likelihood: how likely a masked language model finds a text.

Salazar et al. 2020 (arXiv:1910.14659) mask one token at a time and sum the log-probabilities of the masked tokens.
Kauf & Ivanova 2023 (arXiv:2305.10588) also mask the rest of the token's word, because the pieces of a rare word predict
each other and make it look likely. A word here is a run of letters and digits with their combining marks; any other
character, with its marks, is a word of its own.

The sum includes the token for unknown words. Without it, a text would look more likely the more unknown words it has.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bothways.errors import InvalidInput
from bothways.inference import TextOptions
from bothways.inference.queries import Named, Query, Search
from bothways.tasks.scores import Count, TaskPrediction
from bothways.text import EncodedText, TextTokenizer, Window
from bothways.text.characters import VISIBLE, letter_run, marks

# Maximum tokens of all queries of a text that run in one batch.
MOST_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class PseudoLikelihood(TaskPrediction):
    """The pseudo-likelihood of a text.

    Attributes:
        log_likelihood: Sum of the tokens' log-probabilities (natural logarithm).
        tokens: Number of tokens in the sum, without special tokens but including unknown words.
        perplexity: Pseudo-perplexity, exp(-log_likelihood / tokens); None if there are no tokens.
        windows: Number of overlapping windows; each token is scored in the window with the most context around it.
        dropped_tokens: Tokens that were not read; above 0 only if ``on_overflow`` truncates.
    """

    log_likelihood: float
    tokens: Count
    perplexity: float | None
    windows: Count
    dropped_tokens: Count


def pseudo_likelihood(
    text: str, tokenizer: TextTokenizer, reading: TextOptions, *, index: int = 0, whole_words: bool = False
) -> Search[PseudoLikelihood]:
    """Compute the pseudo-log-likelihood of a text, as a `Search`; messages give its number, ``index`` + 1.

    With ``whole_words``, the later tokens of the same word are masked together with each token.
    """
    if not isinstance(text, str) or not VISIBLE.search(text):
        raise InvalidInput(f"text {index + 1} is empty or not a string: give a text with a visible character.")
    (encoded,) = tokenizer.encode(
        [text],
        max_length=reading.max_length,
        on_overflow=reading.on_overflow,
        stride=reading.stride,
        offsets=True,
        first=index,
    )
    words = _word_of_character(text) if whole_words else None
    queries = _queries(encoded, tokenizer, words)
    logs: list[float] = []
    # A long text has as many queries as tokens, each as long as its window, so they run in batches.
    at_once = max(1, MOST_TOKENS // max(len(window.ids) for window in encoded.windows))
    while some := list(itertools.islice(queries, at_once)):
        answers = yield some
        logs += [answer.log_probabilities[0] for answer in answers]
    total = math.fsum(logs)
    perplexity = math.exp(-total / len(logs)) if logs else None
    return PseudoLikelihood(total, len(logs), perplexity, len(encoded.windows), encoded.dropped_tokens)


def _queries(encoded: EncodedText, tokenizer: TextTokenizer, words: list[int] | None) -> Iterator[Query]:
    chosen, special = _window_of_token(encoded), _special_in_texts(tokenizer)
    for number, window in enumerate(encoded.windows):
        body = window.body
        for place in body:
            token = window.ids[place]
            here = chosen[window.start + place - body.start] == number
            # Skip special tokens that were typed into the text: the model was not trained to predict them.
            if here and token not in special:
                hidden = [place] if words is None else _rest_of_word(window, place, words)
                ids = list(window.ids)
                for one in hidden:
                    ids[one] = tokenizer.mask_id
                yield Query(ids, window.types, place, Named((token,)))


def _special_in_texts(tokenizer: TextTokenizer) -> frozenset[int]:
    """Return the ids of all special tokens except the one for unknown words, which any text may contain.

    A token for unknown words that also has another role counts as special.
    """
    special = tokenizer.recipe.special
    others = {token.content for role, token in special.named().items() if token is not None and role != "unk"}
    unknown = None if special.unk is None or special.unk.content in others else special.unk.content
    return frozenset(number for number in tokenizer.special_ids if tokenizer.token(number) != unknown)


def _window_of_token(encoded: EncodedText) -> dict[int, int]:
    """Map each token to the window with the most context on the token's shorter side; ties go to the first window."""
    best: dict[int, tuple[int, int]] = {}
    for number, window in enumerate(encoded.windows):
        count = len(window.body)
        for index in range(count):
            token, around = window.start + index, min(index, count - 1 - index)
            best[token] = max(best.get(token, (-1, 0)), (around, -number))
    return {token: -number for token, (_, number) in best.items()}


def _rest_of_word(window: Window, place: int, words: list[int]) -> list[int]:
    spans = window.offsets or []

    def word(index: int) -> int:
        begin, end = spans[index]
        # The space before a word may be part of its first piece.
        return next((words[character] for character in range(begin, end) if words[character] >= 0), -1)

    own, behind = word(place), range(place + 1, window.body.stop)
    return [place, *itertools.takewhile(lambda index: own >= 0 and word(index) == own, behind)]


def _word_of_character(text: str) -> list[int]:
    """Return the index of each character's word; -1 for white space."""
    words = [-1] * len(text)
    for number, match in enumerate(_word().finditer(text)):
        words[match.start() : match.end()] = [number] * (match.end() - match.start())
    return words


@functools.cache
def _word() -> re.Pattern[str]:
    return re.compile(rf"{letter_run()}|[^\w\s][{marks()}]*")
