"""Configuration of an encoder, with one union type for each design choice.

Each family of published models uses some of the possible configurations.
"""

from dataclasses import dataclass, fields
from typing import Literal

from bothways.errors import InvalidInput

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]


# Positions: how the encoder represents the position of a token.


@dataclass(frozen=True, slots=True)
class AbsolutePositions:
    """A learned (or fixed sinusoidal) vector for each position, added to the embedding.

    `offset` counts the rows of the table before position 0 (RoBERTa keeps two).
    """

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RotaryPositions:
    """Queries and keys are rotated by an angle that grows with the position (Su et al. 2021, arXiv:2104.09864).

    The base of the angles differs between layers with global and with local attention.
    """

    count: int
    theta_global: float
    theta_local: float


@dataclass(frozen=True, slots=True)
class EveryDistance:
    """A table row for each distance up to ``span``; larger distances share the last row (DeBERTa v1)."""

    span: int


@dataclass(frozen=True, slots=True)
class LogBuckets:
    """A table row for each distance up to ``span / 2``, then one for each of several growing ranges (DeBERTa v2).

    There are `span` rows on either side of distance 0; the last range begins at `max_distance`.
    """

    span: int
    max_distance: int


@dataclass(frozen=True, slots=True)
class DisentangledPositions:
    """Attention scores between content and distance (DeBERTa, He et al. 2020, arXiv:2006.03654).

    `content_to_position` adds products of queries with distance keys, `position_to_content` products of keys with
    distance queries. `keys` selects the projections of distances: maps of their own, or those of the layer's tokens
    ("shared"). `normed` applies a layer norm to the table, `absolute` adds absolute positions to the embedding.
    """

    count: int
    distances: EveryDistance | LogBuckets
    content_to_position: bool
    position_to_content: bool
    keys: Literal["own", "own without bias", "shared"]
    normed: bool
    absolute: bool


@dataclass(frozen=True, slots=True)
class TransformerXLPositions:
    """Relative positions with learned biases (Dai et al. 2019, arXiv:1901.02860), and XLNet's relative segments.

    Distances above `clamp` count as `clamp`; None sets no limit. Sequences may have any length.
    """

    count: None = None
    clamp: int | None = None


Positions = AbsolutePositions | RotaryPositions | DisentangledPositions | TransformerXLPositions


# Normalisation: the place of the layer norm.


@dataclass(frozen=True, slots=True)
class PostNorm:
    """Norm after each residual sum, as in the original transformer."""

    eps: float
    bias: bool = True


@dataclass(frozen=True, slots=True)
class PreNorm:
    """Norm before each block except the first, and after the last layer."""

    eps: float
    bias: bool = True


Normalisation = PostNorm | PreNorm


# Feed-forward.


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """A linear map, an activation and another linear map."""

    width: int
    activation: Activation
    bias: bool = True


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """A gated linear unit: half of a linear map, activated, times the other half (Shazeer 2020, arXiv:2002.05202)."""

    width: int
    activation: Activation
    bias: bool = True


FeedForwardKind = DenseFeedForward | GatedFeedForward


# Attention pattern: the tokens that a token may attend to.


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Every token attends to all tokens of its text."""


@dataclass(frozen=True, slots=True)
class LocalGlobalAttention:
    """Layers with True in `seen_whole` attend to the whole text, all others to ``reach`` tokens on either side."""

    reach: int
    seen_whole: tuple[bool, ...]


AttentionPattern = FullAttention | LocalGlobalAttention


# Biases of the attention's linear maps.

AttentionBiases = Literal["all", "none", "query only", "query and value, and output"]


# Sharing of weights between layers.


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """Each layer has its own weights."""


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """Consecutive layers share the weights of their group (Lan et al. 2019, arXiv:1909.11942).

    Each step applies the `inner` layers of a group one after the other.
    """

    groups: int
    inner: int = 1


Sharing = OwnWeights | SharedGroups


# Pooler: the module that computes ``pooler_output``.


@dataclass(frozen=True, slots=True)
class TanhPooler:
    """A linear map and tanh on the first token (BERT)."""


@dataclass(frozen=True, slots=True)
class NoPooler:
    """No pooler: each head has a transform of its own."""


Pooling = TanhPooler | NoPooler


# Projection of an embedding that is narrower than the hidden size.


@dataclass(frozen=True, slots=True)
class NoProjection:
    """The embedding is as wide as the hidden states."""


@dataclass(frozen=True, slots=True)
class ProjectedAfterNorm:
    """A linear map after the norm (ALBERT, ELECTRA)."""


@dataclass(frozen=True, slots=True)
class ProjectedBeforeNorm:
    """A linear map without bias before the norm (DeBERTa)."""


Projection = NoProjection | ProjectedAfterNorm | ProjectedBeforeNorm


# Convolution beside the first layer.


@dataclass(frozen=True, slots=True)
class NoConvolution:
    """No convolution, as in nearly all families."""


@dataclass(frozen=True, slots=True)
class FirstLayerConvolution:
    """A convolution of the first layer's input, added to its output (the large sizes of DeBERTa v2).

    `kernel` is the width in tokens, an odd number; `groups` is the number of channel groups.
    """

    kernel: int
    groups: int
    activation: Activation


Convolution = NoConvolution | FirstLayerConvolution


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """The embedding: width of the token table, number of segment types, projection to the hidden size, and norm.

    `blank` adds one vector beside the table: the initial state of tokens to be predicted (XLNet).
    """

    width: int
    types: int
    projection: Projection = NoProjection()
    normed: bool = True
    blank: bool = False


@dataclass(frozen=True, slots=True)
class DropoutRates:
    """Dropout rates while training.

    `hidden` applies to the output of each block, `inner` after the activation of the feed-forward network, `output` to
    the last hidden states, `attention_output` to the output of the attention, before the `hidden` dropout.
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
                raise InvalidInput(f"the {name} dropout must be at least 0 and below 1, but it is {rate}.")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration of an encoder.

    Raises:
        InvalidInput: The heads do not divide the hidden size, a size is not positive, or settings contradict.
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
                f"the number of layer groups must be between 1 and the {self.layers} layers, "
                f"but it is {self.sharing.groups}."
            )
        if isinstance(self.positions, TransformerXLPositions) and self.attention_biases != "query only":
            raise InvalidInput(f"Transformer-XL positions need biases 'query only', got {self.attention_biases!r}.")
        if isinstance(self.positions, DisentangledPositions) and isinstance(self.positions.distances, LogBuckets):
            _check_buckets(self.positions.distances, self.positions.count)
        if isinstance(self.pattern, LocalGlobalAttention) and len(self.pattern.seen_whole) != self.layers:
            raise InvalidInput(
                f"the attention pattern needs one entry for each of the {self.layers} layers, "
                f"got {len(self.pattern.seen_whole)}."
            )

    @property
    def reads_types(self) -> bool:
        """True if segment ids matter: there are several segment vectors, or attention scores that compare segments."""
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
    """Check that `max_distance` is larger than each distance that has a row of its own."""
    exact = distances.span // 2
    if count - 1 > exact and (exact < 1 or distances.max_distance - 1 <= exact):
        raise InvalidInput(
            f"relative distances need at least 2 buckets and, with {distances.span} buckets, a max_distance above "
            f"{exact + 1}, got {distances.max_distance}."
        )
