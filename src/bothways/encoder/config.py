"""Configuration of an encoder.

An `EncoderConfig` is a point in the space of encoders that `bothways.encoder.axes` spans; a family of published models
is a region of it.
"""

from dataclasses import dataclass, fields

from bothways.encoder.axes import (
    AttentionBiases,
    AttentionPattern,
    Convolution,
    DisentangledPositions,
    FeedForwardKind,
    FullAttention,
    LocalGlobalAttention,
    LogBuckets,
    NoConvolution,
    NoProjection,
    Normalisation,
    OwnWeights,
    Pooling,
    Positions,
    Projection,
    SharedGroups,
    Sharing,
    TanhPooler,
    TransformerXLPositions,
)
from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Configuration of the embedding.

    Attributes:
        width: Width of the table.
        types: Number of segment types; 0 for families without segment embeddings.
        projection: How it gets to the hidden size.
        normed: Whether a norm follows.
        blank: Whether there is a vector for a token that is to be predicted, apart from the table (XLNet).
    """

    width: int
    types: int
    projection: Projection = NoProjection()
    normed: bool = True
    blank: bool = False


@dataclass(frozen=True, slots=True)
class DropoutRates:
    """Dropout rates while training.

    Attributes:
        hidden: On the output of each block.
        attention: On the attention weights.
        head: In a head.
        embedding: Behind the embedding.
        inner: Behind the activation of the feed-forward network.
        output: On the last hidden states.
        attention_output: On the output of the attention, before that of the block.

    Raises:
        InvalidInput: A rate does not lie in [0, 1).
    """

    hidden: float = 0.1
    attention: float = 0.1
    head: float = 0.1
    embedding: float = 0.1
    inner: float = 0.0
    output: float = 0.0
    attention_output: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, rate = field.name, getattr(self, field.name)
            if not 0 <= rate < 1:
                raise InvalidInput(f"the {name} dropout must lie from 0 up to but not including 1, but it is {rate}.")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration of an encoder.

    Raises:
        InvalidInput: The heads do not divide the hidden size, or a size is not positive.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    embedding: EmbeddingConfig
    positions: Positions
    norm: Normalisation
    feed_forward: FeedForwardKind
    pattern: AttentionPattern = FullAttention()
    attention_biases: AttentionBiases = "all"
    convolution: Convolution = NoConvolution()
    sharing: Sharing = OwnWeights()
    pooler: Pooling = TanhPooler()
    dropout: DropoutRates = DropoutRates()
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name, size in self._sizes().items():
            if size is not None and size < 1:
                raise InvalidInput(f"{name} must be at least 1, but it is {size}.")
        if self.hidden % self.heads:
            raise InvalidInput(
                f"the hidden size must be a multiple of the number of heads, but {self.hidden} is not a multiple "
                f"of {self.heads}. Choose a hidden size such as {self.heads * max(1, round(self.hidden / self.heads))}."
            )
        if self.embedding.width != self.hidden and isinstance(self.embedding.projection, NoProjection):
            raise InvalidInput(
                f"an embedding of width {self.embedding.width} needs a projection to the hidden size {self.hidden}."
            )
        if isinstance(self.sharing, SharedGroups) and not 1 <= self.sharing.groups <= self.layers:
            raise InvalidInput(
                f"the number of layer groups must lie between 1 and the {self.layers} layers, "
                f"but it is {self.sharing.groups}."
            )
        if isinstance(self.positions, TransformerXLPositions) and self.attention_biases != "query only":
            raise InvalidInput(f"Transformer-XL positions need the query's bias alone, not {self.attention_biases!r}.")
        if isinstance(self.positions, DisentangledPositions) and isinstance(self.positions.distances, LogBuckets):
            _check_buckets(self.positions.distances, self.positions.count)
        if isinstance(self.pattern, LocalGlobalAttention) and len(self.pattern.seen_whole) != self.layers:
            raise InvalidInput(
                f"the attention pattern must say of each of the {self.layers} layers whether it sees everything, "
                f"but it says so of {len(self.pattern.seen_whole)}."
            )

    @property
    def reads_types(self) -> bool:
        """True if segment ids change anything: there are several vectors for them, or scores that compare them."""
        return self.embedding.types > 1 or isinstance(self.positions, TransformerXLPositions)

    def _sizes(self) -> dict[str, int | None]:
        return {
            "vocabulary": self.vocabulary,
            "hidden": self.hidden,
            "layers": self.layers,
            "heads": self.heads,
            "embedding width": self.embedding.width,
            "feed-forward width": self.feed_forward.width,
            "number of positions": self.positions.count,
            "number of layers inside a group": self.sharing.inner if isinstance(self.sharing, SharedGroups) else None,
        }

    @property
    def head_width(self) -> int:
        """Width of one attention head, D."""
        return self.hidden // self.heads

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens, special ones included; None for no limit."""
        return self.positions.count


def _check_buckets(distances: LogBuckets, count: int) -> None:
    """Check that the largest distance lies beyond the exact ones, so that ranges can grow towards it."""
    exact = distances.span // 2
    if count - 1 > exact and (exact < 1 or distances.max_distance - 1 <= exact):
        raise InvalidInput(
            f"distances in {distances.span} buckets are exact up to {exact}, so the largest distance must be above "
            f"{exact + 1} and the buckets at least 2, but the largest distance is {distances.max_distance}."
        )
