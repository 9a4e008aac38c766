"""Positions in attention: rotated queries and keys, scores that depend on distances, or neither.

The part that all layers share (`SharedPositions`) is computed once per batch; a layer's own part (`LayerPositions`)
once per layer.

Shapes: T packed tokens, H hidden, N heads, D head width, S longest sequence, W = 2 S - 1 distances, R rows of a table.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.devices import on_device
from bothways.encoder.backends.basic import RelativeScores
from bothways.encoder.backends.gpu import can_rotate, rotate
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    EncoderConfig,
    EveryDistance,
    LogBuckets,
    RotaryPositions,
    TransformerXLPositions,
)
from bothways.encoder.linear import KEY, QKV, QUERY, Linear
from bothways.encoder.modules import Dropout, EmbeddingTable
from bothways.packing import Batch, PaddedRows, take_rows


@dataclass(frozen=True, slots=True)
class DistanceVectors:
    """Vectors of all distances in a batch: ``rows_RH[places_W]`` are in order of ``i - j``, from ``1 - S`` on."""

    rows_RH: Tensor
    places_W: Tensor


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines of each token's angles, (T, D), by the base theta."""

    by_theta: dict[float, tuple[Tensor, Tensor]]


Shared = DistanceVectors | Angles | None


class SharedPositions(Protocol):
    """Computes the position tensors of a batch that all layers share."""

    def __call__(self, batch: Batch, dtype: torch.dtype) -> Shared:
        """Return the position tensors of a batch; ``dtype`` is that of the hidden states."""


class LayerPositions(Protocol):
    """The effect of positions on one layer's attention.

    `has_scores` is True if distances add to the scores, `reads_queries` if it needs the queries of all tokens.
    """

    has_scores: bool
    reads_queries: bool

    def __call__(self, qkv_T3ND: Tensor, qkv: QKV, shared: Shared) -> tuple[Tensor, RelativeScores | None]:
        """Return the queries, keys and values for attention, and the distance scores if there are any."""


class RotaryAngles(nn.Module):
    """The angles of each token, for local and global layers."""

    def __init__(self, positions: RotaryPositions, head_width: int) -> None:
        super().__init__()
        thetas = {positions.theta_global, positions.theta_local}
        self.frequencies = {theta: _frequencies(theta, head_width) for theta in thetas}

    def forward(self, batch: Batch, dtype: torch.dtype) -> Shared:
        """Return cosines and sines of each position times ``theta^(-2 d / D)``, in float32 or float64."""
        working = torch.float64 if dtype == torch.float64 else torch.float32
        by_theta = {}
        for theta, frequencies in self.frequencies.items():
            frequencies_D = on_device(torch.tensor(frequencies, dtype=working), batch.positions_T.device)
            angles_TD = batch.positions_T[:, None].to(working) * frequencies_D
            both_TD = torch.cat([angles_TD, angles_TD], 1)
            by_theta[theta] = both_TD.cos(), both_TD.sin()
        return Angles(by_theta)


class Rotary(nn.Module):
    """Rotation of queries and keys (Su et al. 2021, arXiv:2104.09864, in the halves layout of GPT-NeoX)."""

    has_scores = False
    reads_queries = True

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, qkv_T3ND: Tensor, qkv: QKV, shared: Shared) -> tuple[Tensor, RelativeScores | None]:
        """Return rotated queries and keys, and unchanged values."""
        del qkv
        assert isinstance(shared, Angles)  # `shared_positions` follows the same configuration
        cosines_TD, sines_TD = shared.by_theta[self.theta]
        # The kernel computes in float32. Tensor subclasses (fake tensors) go to torch.
        on_gpu = qkv_T3ND.device.type == "cuda" and type(qkv_T3ND) is Tensor and cosines_TD.dtype == torch.float32
        if on_gpu and can_rotate():
            return rotate(qkv_T3ND, cosines_TD, sines_TD), None
        qk_T2ND, v_T1ND = qkv_T3ND.split_with_sizes([2, 1], 1)
        first, second = qk_T2ND.to(cosines_TD.dtype).chunk(2, -1)
        turned_T2ND = torch.cat([first, second], -1) * cosines_TD[:, None, None]
        turned_T2ND = torch.addcmul(turned_T2ND, torch.cat([-second, first], -1), sines_TD[:, None, None])
        return torch.cat([turned_T2ND.to(qkv_T3ND.dtype), v_T1ND], 1), None


def bucket_rows(distances: EveryDistance | LogBuckets, longest: int) -> NDArray[np.int64]:
    """Return the table row for each distance i - j from ``1 - longest`` to ``longest - 1``, (W,).

    Log buckets are those of DeBERTa's published code: exact up to half of the span, then ranges whose limits grow
    geometrically up to the largest distance. Computed in NumPy, since the host needs the values.
    """
    distances_W = np.arange(1 - longest, longest)
    if isinstance(distances, LogBuckets):
        middle = distances.span // 2
        size_W = np.maximum(np.abs(distances_W), middle).astype(np.float32) / np.float32(middle)
        growth = np.log(np.float32((distances.max_distance - 1) / middle))
        logarithmic_W = np.ceil(np.log(size_W) / growth * np.float32(middle - 1)) + middle
        far_W = np.abs(distances_W) > middle
        distances_W = np.where(far_W, logarithmic_W * np.sign(distances_W), distances_W).astype(np.int64)
    rows_W: NDArray[np.int64] = np.clip(distances_W + distances.span, 0, 2 * distances.span - 1)
    return rows_W


class DistanceTable(nn.Module):
    """DeBERTa's table of distance vectors, which all layers share."""

    places: Tensor

    def __init__(self, config: EncoderConfig, positions: DisentangledPositions) -> None:
        super().__init__()
        self.kind, self.count = positions.distances, positions.count
        # Computed here, even on the meta device, and not in a graph: another program's logarithm may round to the
        # other side of a range's limit.
        with torch.device("cpu"):
            self.register_buffer("places", torch.from_numpy(bucket_rows(self.kind, self.count)), persistent=False)
        self.table = EmbeddingTable(2 * positions.distances.span, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm.eps) if positions.normed else None

    def forward(self, batch: Batch, dtype: torch.dtype) -> Shared:
        """Return the table rows that the batch's distances use, and each distance's index among them."""
        del dtype
        longest = batch.max_length
        if isinstance(batch, PaddedRows):
            # Which rows of the table a batch needs depends on its length, which a graph does not know.
            used_W = self.places[self.count - longest : self.count + longest - 1]
            return DistanceVectors(self._normed(self.table.weight), used_W)
        places_W = bucket_rows(self.kind, longest)
        low, high = int(places_W[0]), int(places_W[-1]) + 1
        rows_RH = self._normed(self.table.weight[low:high])
        return DistanceVectors(rows_RH, on_device(places_W - low, self.table.weight.device))

    def _normed(self, rows_RH: Tensor) -> Tensor:
        return rows_RH if self.norm is None else self.norm(rows_RH)


class Disentangled(nn.Module):
    """DeBERTa's scores between content and distance (He et al. 2020, arXiv:2006.03654, equation 4)."""

    has_scores = True
    reads_queries = False

    def __init__(self, config: EncoderConfig, positions: DisentangledPositions) -> None:
        super().__init__()
        self.heads = config.heads
        self.wants_keys, self.wants_queries = positions.content_to_position, positions.position_to_content
        self.dropout = Dropout(config.dropout.hidden)
        own, biased = positions.keys != "shared", positions.keys == "own"
        hidden = config.hidden
        self.keys = Linear(hidden, hidden, bias=biased) if own and self.wants_keys else None
        self.queries = Linear(hidden, hidden) if own and self.wants_queries else None

    def forward(self, qkv_T3ND: Tensor, qkv: QKV, shared: Shared) -> tuple[Tensor, RelativeScores | None]:
        """Return ``qkv_T3ND``, and the keys and queries of the batch's distances."""
        assert isinstance(shared, DistanceVectors)  # `shared_positions` follows the same configuration
        rows_RH, places_W = self.dropout(shared.rows_RH), shared.places_W
        keys_WND = queries_WND = None
        if self.wants_keys:
            keys_WND = take_rows(self._projected(self.keys, qkv, KEY, rows_RH), places_W)
        if self.wants_queries:
            queries_WND = take_rows(self._projected(self.queries, qkv, QUERY, rows_RH), places_W)
        return qkv_T3ND, RelativeScores(keys_WND, queries_WND)

    def _projected(self, own: Linear | None, qkv: QKV, part: int, rows_RH: Tensor) -> Tensor:
        if own is None:
            return qkv.parts(rows_RH, part).squeeze(1)
        projected_RH: Tensor = own(rows_RH)
        return projected_RH.view(rows_RH.shape[0], self.heads, -1)


class Sinusoids(nn.Module):
    """The fixed vectors of all distances (Dai et al. 2019, arXiv:1901.02860), sines first, then cosines."""

    def __init__(self, config: EncoderConfig, positions: TransformerXLPositions) -> None:
        super().__init__()
        self.clamp, self.frequencies = positions.clamp, _frequencies(10000.0, config.hidden)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, batch: Batch, dtype: torch.dtype) -> Shared:
        """Return the vector of each distance in the batch."""
        longest, device = batch.max_length, batch.positions_T.device
        distances_W = torch.arange(1 - longest, longest, device=device)
        working = torch.float64 if dtype == torch.float64 else torch.float32
        if self.clamp is not None:
            distances_W = distances_W.clamp(-self.clamp, self.clamp)
        frequencies_D = on_device(torch.tensor(self.frequencies, dtype=working), device)
        angles = distances_W[:, None].to(working) * frequencies_D
        rows_WH = self.dropout(torch.cat([angles.sin(), angles.cos()], 1).to(dtype))
        return DistanceVectors(rows_WH, torch.arange(2 * longest - 1, device=device))


class TransformerXL(nn.Module):
    """Attention scores with keys of distances (Dai et al. 2019), and XLNet's relative segments.

    The query bias for content scores belongs to the layer's projection; this module holds the query biases
    for distance and segment scores.
    """

    has_scores = True
    reads_queries = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.keys = Linear(config.hidden, config.hidden, bias=False)
        self.distance_bias = nn.Parameter(torch.zeros(config.hidden))
        self.segment_bias = nn.Parameter(torch.zeros(config.hidden))
        # Equal segments, different segments.
        self.segments = nn.Parameter(torch.zeros(2, config.hidden))

    def forward(self, qkv_T3ND: Tensor, qkv: QKV, shared: Shared) -> tuple[Tensor, RelativeScores | None]:
        """Return ``qkv_T3ND``, and the keys of distances, the query bias and the terms of equal and other segments."""
        assert isinstance(shared, DistanceVectors)  # `shared_positions` follows the same configuration
        keys_WND = self._heads(self.keys(shared.rows_RH))
        assert qkv.query_bias is not None  # checked by `EncoderConfig`
        content_bias_ND = self._heads(qkv.query_bias)
        shift_ND = self._heads(self.distance_bias) - content_bias_ND
        towards_segments_TND = qkv_T3ND[:, 0] + (self._heads(self.segment_bias) - content_bias_ND)
        equal_ND, different_ND = self._heads(self.segments)
        gain_TN = (towards_segments_TND * (different_ND - equal_ND)).sum(-1)
        return qkv_T3ND, RelativeScores(keys_WND, None, shift_ND, gain_TN)

    def _heads(self, values: Tensor) -> Tensor:
        return values.view(*values.shape[:-1], self.heads, -1)


def _frequencies(theta: float, width: int) -> list[float]:
    """Return the D / 2 frequencies ``theta^(-2 d / D)``, computed in float32.

    An exported graph stores them as constants: if another program computed a power with an error in the last bit, the
    angle of position 8,000 would be off by 2e-4.
    """
    exponents_D = torch.arange(0, width, 2, device="cpu").float() / width
    frequencies: list[float] = (1.0 / theta**exponents_D).tolist()
    return frequencies


def shared_positions(config: EncoderConfig) -> SharedPositions | None:
    """Return the part of an encoder's positions that all layers share; None if only the embedding has positions."""
    match config.positions:
        case AbsolutePositions():
            return None
        case RotaryPositions() as rotary:
            return RotaryAngles(rotary, config.head_width)
        case DisentangledPositions() as disentangled:
            return DistanceTable(config, disentangled)
        case TransformerXLPositions() as relative:
            return Sinusoids(config, relative)


def layer_positions(config: EncoderConfig, *, local: bool) -> LayerPositions | None:
    """Return one layer's part of an encoder's positions; None if only the embedding has positions."""
    match config.positions:
        case AbsolutePositions():
            return None
        case RotaryPositions() as rotary:
            return Rotary(rotary.theta_local if local else rotary.theta_global)
        case DisentangledPositions() as disentangled:
            return Disentangled(config, disentangled)
        case TransformerXLPositions():
            return TransformerXL(config)
