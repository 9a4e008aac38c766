"""Predictions of a masked language model."""

from dataclasses import dataclass

from bothways.tasks.scores import Count, Probability, TaskPrediction


@dataclass(frozen=True, slots=True)
class FilledMask(TaskPrediction):
    """A word for one mask, with all other masks left as they are.

    Attributes:
        word: The word, or a fragment of one.
        pieces: The tokens that spell it, as in the vocabulary.
        probability: Product of its pieces' probabilities, given their number; for one piece, the softmax over the
            vocabulary.
        log_probability: Natural logarithm of the probability; words are ranked by it.
    """

    word: str
    pieces: tuple[str, ...]
    probability: Probability
    log_probability: float


@dataclass(frozen=True, slots=True)
class Filling(TaskPrediction):
    """A word for every mask, chosen together.

    Attributes:
        text: The text with the words filled in.
        words: A word for each mask.
        probability: exp(log_probability).
        log_probability: Mean over several orders of filling the masks: the sum of the log-probabilities of all pieces,
            each given those filled in before it; fillings are ranked by it.
    """

    text: str
    words: tuple[str, ...]
    probability: Probability
    log_probability: float


@dataclass(frozen=True, slots=True)
class FilledText(TaskPrediction):
    """The best fillings of a text.

    Attributes:
        fillings: The ``top`` fillings of all masks together, best first.
        masks: The ``top`` words for each mask, with all other masks left as they are.
        dropped_tokens: Tokens too far from the masks to be read with them.
    """

    fillings: tuple[Filling, ...]
    masks: tuple[tuple[FilledMask, ...], ...]
    dropped_tokens: Count


@dataclass(frozen=True, slots=True)
class PseudoLikelihood(TaskPrediction):
    """The pseudo-likelihood of a text.

    Attributes:
        log_likelihood: Sum over the tokens, natural logarithm.
        tokens: Tokens that were summed over, without special ones; the one for unknown words counts like any other.
        perplexity: exp(-log_likelihood / tokens), the pseudo-perplexity; None where there is no token.
        windows: Overlapping windows that the text was read in; a token counts in the one with most text around it.
        dropped_tokens: Tokens that were not read; above 0 only with ``on_overflow="truncate"``.
    """

    log_likelihood: float
    tokens: Count
    perplexity: float | None
    windows: Count
    dropped_tokens: Count
