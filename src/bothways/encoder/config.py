"""What an encoder is made of: one sum type for each axis, no flags.

An `EncoderConfig` is a point in the space of encoders; a family of published models is a region of it. Some variants
are described here ahead of being built (rotary, disentangled and Transformer-XL positions, pre-norm, gated
feed-forward, local windows): `bothways.encoder.Encoder` refuses those by name.
"""

from dataclasses import dataclass
from typing import Literal

from bothways.errors import InvalidInput

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]


# Position: how a token knows where it stands.


@dataclass(frozen=True, slots=True)
class AbsolutePositions:
    """A learned (or fixed sinusoidal) vector for each position, added to the embedding.

    Attributes:
        count: Positions that a text may use.
        offset: Rows of the table before position 0 (RoBERTa keeps two).
    """

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RotaryPositions:
    """Queries and keys turned by an angle that grows with the position (Su et al. 2021, arXiv:2104.09864)."""

    count: int
    theta_global: float
    theta_local: float


@dataclass(frozen=True, slots=True)
class DisentangledPositions:
    """DeBERTa's content-to-position and position-to-content scores (He et al. 2020, arXiv:2006.03654)."""

    count: int
    max_distance: int
    buckets: int | None
    content_to_position: bool
    position_to_content: bool
    shared_key: bool


@dataclass(frozen=True, slots=True)
class TransformerXLPositions:
    """Relative positions with two learned biases (Dai et al. 2019, arXiv:1901.02860)."""

    count: int | None


Positions = AbsolutePositions | RotaryPositions | DisentangledPositions | TransformerXLPositions


# Normalisation: where the layer norm stands.


@dataclass(frozen=True, slots=True)
class PostNorm:
    """Norm after each residual sum, as in the original transformer."""

    eps: float


@dataclass(frozen=True, slots=True)
class PreNorm:
    """Norm before each block; the first one is the identity, a last one closes the stack."""

    eps: float


Normalisation = PostNorm | PreNorm


# Feed-forward.


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """Linear, activation, linear."""

    width: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """One half of a linear gates the other (Shazeer 2020, arXiv:2002.05202)."""

    width: int
    activation: Activation


FeedForwardKind = DenseFeedForward | GatedFeedForward


# Attention pattern: which tokens a token may look at.


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Every token sees every token of its text."""


@dataclass(frozen=True, slots=True)
class LocalGlobalAttention:
    """Every ``global_every``-th layer sees everything; the others a window of ``window`` tokens."""

    window: int
    global_every: int


AttentionPattern = FullAttention | LocalGlobalAttention


# Sharing: which layers own their weights.


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """Each layer has its own."""


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """Consecutive layers share the weights of their group (Lan et al. 2019, arXiv:1909.11942).

    Attributes:
        groups: Number of groups that the layers are split into, evenly.
        inner: Layers inside one group, applied one after the other at each step.
    """

    groups: int
    inner: int = 1


Sharing = OwnWeights | SharedGroups


# Pooler: what stands behind ``pooler_output``.


@dataclass(frozen=True, slots=True)
class TanhPooler:
    """Linear and tanh on the first token, trained with the model's own objective."""


@dataclass(frozen=True, slots=True)
class NoPooler:
    """The family has none; its heads carry their own transform."""


Pooling = TanhPooler | NoPooler


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """The embedding table and what follows it.

    Attributes:
        width: Width of the table.
        types: Number of segment types; 0 for families without segment embeddings.
        projected: Whether a linear map from ``width`` to the hidden size follows.
    """

    width: int
    types: int
    projected: bool = False


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout rates while training.

    Raises:
        InvalidInput: A rate does not lie in [0, 1).
    """

    hidden: float = 0.1
    attention: float = 0.1
    head: float = 0.1

    def __post_init__(self) -> None:
        for name, rate in (("hidden", self.hidden), ("attention", self.attention), ("head", self.head)):
            if not 0 <= rate < 1:
                raise InvalidInput(f"the {name} dropout must lie from 0 up to but not including 1, but it is {rate}.")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One encoder, complete.

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
    sharing: Sharing = OwnWeights()
    pooler: Pooling = TanhPooler()
    dropout: Dropout = Dropout()
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
        if self.embedding.width != self.hidden and not self.embedding.projected:
            raise InvalidInput(
                f"an embedding of width {self.embedding.width} needs a projection to the hidden size {self.hidden}."
            )
        if isinstance(self.sharing, SharedGroups) and not 1 <= self.sharing.groups <= self.layers:
            raise InvalidInput(
                f"the number of layer groups must lie between 1 and the {self.layers} layers, "
                f"but it is {self.sharing.groups}."
            )

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
        """The most tokens a text may have, special tokens included; None where there is no limit."""
        return self.positions.count
