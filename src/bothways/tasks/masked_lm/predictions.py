"""Predictions of a masked language model."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class FilledMask:
    """A word for one mask, with all other masks left as they are.

    Attributes:
        word: The word, or the fragment of one.
        pieces: The tokens that spell it, as they stand in the vocabulary.
        probability: The product of its pieces' probabilities, given that it has so many; of one piece, the softmax of
            the logits over the whole vocabulary.
        log_probability: Its natural logarithm; words are ranked by it.
    """

    word: str
    pieces: tuple[str, ...]
    probability: float
    log_probability: float


@dataclass(frozen=True, slots=True)
class Filling:
    """A word for every mask, chosen together.

    Attributes:
        text: The text with the words in it.
        words: One for each mask.
        probability: exp(log_probability).
        log_probability: The mean, over several orders of filling the masks, of the sum of the log-probabilities of all
            pieces, each given what was filled in before it; fillings are ranked by it.
    """

    text: str
    words: tuple[str, ...]
    probability: float
    log_probability: float


@dataclass(frozen=True, slots=True)
class FilledText:
    """The best fillings of a text.

    Attributes:
        fillings: Of all masks together, the best first.
        masks: For each mask, the best words while all other masks are left as they are.
        dropped_tokens: Tokens of the text that lie too far from the masks to be read with them.
    """

    fillings: tuple[Filling, ...]
    masks: tuple[tuple[FilledMask, ...], ...]
    dropped_tokens: int

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PseudoLikelihood:
    """The pseudo-likelihood of a text.

    Attributes:
        log_likelihood: Sum over the tokens, natural logarithm.
        tokens: Tokens that were summed over, without special ones; the one for unknown words counts like any other.
        perplexity: exp(-log_likelihood / tokens), the pseudo-perplexity; None where there is no token.
        windows: Overlapping windows that the text was read in; a token counts in the one with most text around it.
        dropped_tokens: Tokens that were not read; above 0 only with ``on_overflow="truncate"``.
    """

    log_likelihood: float
    tokens: int
    perplexity: float | None
    windows: int
    dropped_tokens: int

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)
