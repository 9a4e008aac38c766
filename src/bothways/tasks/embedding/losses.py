"""Losses of sentence embedders.

Each loss compares all rows of a batch; `bothways.tasks.embedding.objective` limits the memory that this takes.

Shapes: N rows of a batch, K texts per row, H dimensions, C candidates, D dimensions of a teacher, A different anchors,
U different texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor

from bothways.choices import Distance, SimilarityName
from bothways.devices import on_device
from bothways.errors import InvalidInput, one_of


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """The vectors of a batch of rows."""

    vectors: tuple[Tensor, ...]  # K arrays (N, H): the first texts of all rows, the second texts, ...
    identity_NK: NDArray[np.int64]  # an id for each text, the same for equal texts; on the host
    truth: Tensor | None  # scores (N), encoded labels (N), or a teacher's vectors (N, D); None if there are none
    unit_length: bool  # scale vectors to length 1 after truncation
    similarity: SimilarityName = "cosine"  # the embedder's function that compares vectors

    def similarities(self, first_NH: Tensor, second_MH: Tensor, scale: float) -> Tensor:
        """Return the scaled similarity of every vector to every other (N, M); distances are negative."""
        match self.similarity:
            case "cosine":
                return scale * unit(first_NH) @ unit(second_MH).T
            case "dot":
                return scale * first_NH @ second_MH.T
            case "euclidean":
                return -scale * torch.cdist(first_NH, second_MH)
            case "manhattan":
                return -scale * torch.cdist(first_NH, second_MH, p=1.0)

    def similarities_of_pairs(self, first_NH: Tensor, second_NH: Tensor) -> Tensor:
        """Return the similarity of each pair of vectors (N); distances are negative."""
        match self.similarity:
            case "cosine":
                return (unit(first_NH) * unit(second_NH)).sum(1)
            case "dot":
                return (first_NH * second_NH).sum(1)
            case "euclidean":
                return -F.pairwise_distance(first_NH, second_NH)
            case "manhattan":
                return -F.pairwise_distance(first_NH, second_NH, p=1.0)

    def cut(self, dimensions: int) -> "VectorBatch":
        """Truncate each vector to its leading dimensions."""
        shorter = tuple(vectors_NH[:, :dimensions] for vectors_NH in self.vectors)
        return replace(self, vectors=tuple(map(unit, shorter)) if self.unit_length else shorter)


class Teacher(Protocol):
    """An embedder to distil."""

    def encode(self, texts: Sequence[str], *, show_progress: bool | None = None) -> NDArray[np.float32]:
        """Embed texts (N, D)."""


@runtime_checkable
class NamedTeacher(Protocol):
    """A teacher with a name for the model card."""

    @property
    def name(self) -> str:
        """Name of the teacher."""


@dataclass(frozen=True, slots=True)
class MultipleNegativesRanking:
    """Cross-entropy of ranking each anchor's positive among all positives and negatives of the batch.

        L = -1/N sum_i log( exp(s cos(a_i, p_i)) / sum_j exp(s cos(a_i, c_j)) )

    The candidates c are the positives and negatives of all rows (Henderson et al. 2017, arXiv:1705.00652). The sum for
    row i omits false negatives: texts equal to its anchor, to its positive or to the positive of an equal anchor, and
    texts with the same label. For an embedder of another similarity than the cosine, cos stands for that one.

    Attributes:
        scale: s, the inverse of a temperature.
        symmetric: Also rank each positive's anchor among all anchors, and average both losses.
    """

    scale: float = 20.0
    symmetric: bool = False

    name: ClassVar[str] = "ranking"

    def value(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch."""
        anchors_NH, *candidates = batch.vectors
        hidden_NC = self._false_negatives(batch)
        truth_N = torch.arange(len(anchors_NH), device=anchors_NH.device)
        scores_NC = batch.similarities(anchors_NH, torch.cat(candidates), self.scale)
        forward = F.cross_entropy(scores_NC.masked_fill(hidden_NC, -math.inf), truth_N)
        if not self.symmetric:
            return forward
        scores_NN = batch.similarities(candidates[0], anchors_NH, self.scale)
        hidden_NN = hidden_NC[:, : len(anchors_NH)].T
        return (forward + F.cross_entropy(scores_NN.masked_fill(hidden_NN, -math.inf), truth_N)) / 2

    @staticmethod
    def _false_negatives(batch: VectorBatch) -> Tensor:
        """Return a mask of the false negatives to omit (N, C)."""
        texts_U, text_R = np.unique(batch.identity_NK, return_inverse=True)
        anchors_A, anchor_N = np.unique(batch.identity_NK[:, 0], return_inverse=True)
        text_NK = text_R.reshape(batch.identity_NK.shape)
        # One row per distinct anchor: an array with a row per text could be larger than the scores.
        belongs_AU = np.zeros((len(anchors_A), len(texts_U)), dtype=bool)
        for column in (0, 1):
            belongs_AU[anchor_N, text_NK[:, column]] = True
        hidden_NC = on_device(belongs_AU[anchor_N][:, text_NK[:, 1:].T.reshape(-1)], batch.vectors[0].device)
        if batch.truth is not None:
            hidden_NC[:, : len(anchor_N)] |= batch.truth[:, None] == batch.truth
        return hidden_NC.fill_diagonal_(False)


@dataclass(frozen=True, slots=True)
class CoSENT:
    """Ranking loss for scored pairs: higher scores should give higher cosines (Su 2022, kexue.fm/archives/8847).

        L = log( 1 + sum over pairs i, j with score_i > score_j of exp(s (cos_j - cos_i)) )

    Only the order of the scores matters, so they may be on any scale. For an embedder of another similarity than the
    cosine, cos stands for that one.

    Attributes:
        scale: s, the inverse of a temperature.
    """

    scale: float = 20.0

    name: ClassVar[str] = "cosent"

    def value(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch."""
        first_NH, second_NH = batch.vectors
        similar_N = self.scale * batch.similarities_of_pairs(first_NH, second_NH)
        scores_N = _truth(batch)
        wrong_NN = similar_N[None, :] - similar_N[:, None]
        counted_NN = wrong_NN.masked_fill(scores_N[:, None] <= scores_N[None, :], -math.inf)
        return torch.logsumexp(F.pad(counted_NN.flatten(), (1, 0)), 0)


@dataclass(frozen=True, slots=True)
class Triplet:
    """Margin loss: the negative should be farther from the anchor than the positive.

        L = mean of max(0, d(a, p) - d(a, n) + margin)

    (Schroff et al. 2015, arXiv:1503.03832; with these defaults Reimers and Gurevych 2019, arXiv:1908.10084). A row
    with several negatives counts as several triplets.

    Attributes:
        margin: The margin, in units of the distance.
        distance: ``"euclidean"`` (at most 2 for unit vectors) or ``"cosine"`` (1 - cosine).
    """

    margin: float = 1.0
    distance: Distance = "euclidean"

    name: ClassVar[str] = "triplet"

    def value(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch."""
        anchors_NH, positives_NH, *negatives = batch.vectors
        near_N = self._distance(anchors_NH, positives_NH)
        far = [self._distance(anchors_NH, negatives_NH) for negatives_NH in negatives]
        return torch.stack([F.relu(near_N - far_N + self.margin) for far_N in far]).mean()

    def _distance(self, first_NH: Tensor, second_NH: Tensor) -> Tensor:
        if self.distance == "cosine":
            return 1.0 - (unit(first_NH) * unit(second_NH)).sum(1)
        return F.pairwise_distance(first_NH, second_NH)


@dataclass(frozen=True, slots=True)
class Distillation:
    """Distillation of a teacher's similarities between the texts of a batch.

        L = 1/N sum_i sum_{j != i} t_ij log(t_ij / m_ij),   t_ij = softmax over j of s cos(t_i, t_j)

    and m_ij likewise from the model's vectors: the KL divergence of the two distributions over a text's neighbours
    (Fang et al. 2021, arXiv:2101.04731, with the batch as the queue). The loss compares similarities, not vectors, so
    the teacher's vectors may have another length. They are cosines for embedders of every similarity.

    Attributes:
        teacher: The embedder to distil; it embeds the texts once, before the training.
        scale: s, the inverse of a temperature.
    """

    teacher: Teacher
    scale: float = 20.0

    name: ClassVar[str] = "distillation"

    def value(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch; 0 for a single text, which has no neighbours."""
        (vectors_NH,) = batch.vectors
        if len(vectors_NH) < 2:
            return vectors_NH.sum() * 0.0
        ours_NM, theirs_NM = self._neighbours(vectors_NH), self._neighbours(_truth(batch))
        return F.kl_div(ours_NM, theirs_NM, reduction="batchmean", log_target=True)

    def _neighbours(self, vectors_NH: Tensor) -> Tensor:
        """Return each text's log-probabilities of the other texts (N, N - 1)."""
        unit_NH = unit(vectors_NH)
        cosines_NN = unit_NH @ unit_NH.T
        texts = len(cosines_NN)
        # Dropping the first value and reshaping to rows of N + 1 values moves the diagonal into the last column.
        others_NM = cosines_NN.flatten()[1:].view(texts - 1, texts + 1)[:, :-1].reshape(texts, texts - 1)
        return (self.scale * others_NM).log_softmax(1)


PlainLoss: TypeAlias = MultipleNegativesRanking | CoSENT | Triplet | Distillation


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """A loss summed over vectors truncated to their leading dimensions (Kusupati et al. 2022, arXiv:2205.13147).

        L = sum_d w_d loss(vectors truncated to their first d dimensions)

    Attributes:
        loss: The loss to sum.
        dimensions: The values of d; include the full width to train it too.
        weights: The weights w_d. Default: 1 for each.
    """

    loss: PlainLoss
    dimensions: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def check(self, width: int) -> None:
        """Raise `InvalidInput` for settings out of range; ``width`` is the length of a full vector."""
        if not self.dimensions or len(set(self.dimensions)) < len(self.dimensions):
            raise InvalidInput(f"Matryoshka dimensions must be different numbers, one or more, got {self.dimensions}.")
        for dimensions in self.dimensions:
            if not 1 <= dimensions <= width:
                raise InvalidInput(f"Matryoshka dimensions must be between 1 and {width}, got {dimensions}.")
        if self.weights is not None and len(self.weights) != len(self.dimensions):
            raise InvalidInput(
                f"expected a Matryoshka weight for each of {len(self.dimensions)} dimensions, got {self.weights}."
            )
        for weight in self.weights or ():
            _check_positive("a Matryoshka weight", weight)

    def value(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch."""
        weights = self.weights or (1.0,) * len(self.dimensions)
        losses = [self.loss.value(batch.cut(dimensions)) for dimensions in self.dimensions]
        return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum()


EmbeddingLoss: TypeAlias = PlainLoss | Matryoshka


def plain(loss: EmbeddingLoss) -> PlainLoss:
    """Return the loss inside a `Matryoshka`, or the loss itself."""
    match loss:
        case Matryoshka(loss=inner):
            return inner
        case _:
            return loss


def check_settings(loss: EmbeddingLoss, width: int) -> None:
    """Raise `InvalidInput` for settings out of range; ``width`` is the length of the embedder's vectors."""
    match plain(loss):
        case MultipleNegativesRanking(scale=scale) | CoSENT(scale=scale) | Distillation(scale=scale):
            _check_positive("scale", scale)
        case Triplet(margin, distance):
            _check_positive("margin", margin)
            one_of("distance", distance, get_args(Distance))
    match loss:
        case Matryoshka():
            loss.check(width)


def loss_settings(loss: EmbeddingLoss) -> dict[str, object]:
    """Return a loss and its settings as JSON values; a teacher is given by its name."""
    inner = plain(loss)
    settings: dict[str, object] = {"loss": inner.name}
    for each in fields(inner):
        value = getattr(inner, each.name)
        if each.name == "teacher":
            value = value.name if isinstance(value, NamedTeacher) else "another model"
        settings[each.name] = value
    match loss:
        case Matryoshka(dimensions=dimensions, weights=weights):
            settings["matryoshka"] = list(dimensions)
            settings["matryoshka_weights"] = None if weights is None else list(weights)
    return settings


def unit(vectors_NH: Tensor) -> Tensor:
    """Scale vectors to length 1."""
    return F.normalize(vectors_NH, dim=-1)


def _truth(batch: VectorBatch) -> Tensor:
    if batch.truth is None:
        raise InvalidInput("this loss needs scores or a teacher's vectors, and the batch has neither.")
    return batch.truth


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | float) and math.isfinite(value) and value > 0.0):
        raise InvalidInput(f"{name} must be a finite number above 0, got {value!r}.")
