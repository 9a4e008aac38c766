"""Distillation from raw text: a student learns a frozen teacher's outputs for the same tokens.

- `MaskedLMDistillation`: the triple loss of DistilBERT (Sanh et al. 2019, arXiv:1910.01108, section 3), for teachers
  with a masked language modelling head: ``5 KL + 2 MLM + 1 cosine`` in the published code (huggingface/transformers,
  examples/research_projects/distillation). That code compares predictions and hidden states at all tokens, not only
  at the masked ones, unless ``--restrict_ce_to_mask`` is given.
- `StateDistillation`: hidden states and sentence vectors, for teachers without such a head. Layers are compared by
  their mean squared error, as are the embeddings (Jiao et al. 2019, arXiv:1909.10351, equations 8 and 9). The student
  is trained without dropout, which would add noise to the compared values.

The teacher is not a submodule: it stays in evaluation mode, gets no gradient and is not in checkpoints. If its width
differs, a learned projection of the student's hidden states is compared with the teacher's, and dropped after training.

Shapes: B sequences, T packed tokens, U compared positions, M chosen positions, V vocabulary, H hidden of the student,
G hidden of the teacher, K numbers of a vector.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Self, TypeAlias

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder, Recorder
from bothways.errors import InvalidInput
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.pretraining import MASKED, PretrainingModel, UnitLosses
from bothways.objectives.sequences import MaskedBatch
from bothways.packing import Packed


def soft_divergence(logits_UV: Tensor, taught_UV: Tensor, temperature: float) -> Tensor:
    """Return ``t^2 KL(softmax(taught / t) || softmax(logits / t))`` at each position (U).

    The factor ``t^2`` keeps the size of the gradients about the same at any temperature (Hinton et al. 2015,
    arXiv:1503.02531, section 2).
    """
    log_student, log_teacher = ((each.float() / temperature).log_softmax(-1) for each in (logits_UV, taught_UV))
    return nn.functional.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1) * temperature**2


def cosine_distance(ours_UG: Tensor, theirs_UG: Tensor) -> Tensor:
    """Return 1 minus the cosine of each pair of rows (U)."""
    return 1 - nn.functional.cosine_similarity(ours_UG.float(), theirs_UG.float(), dim=-1)


def squared_error(ours_TG: Tensor, theirs_TG: Tensor) -> Tensor:
    """Return the mean squared error of each token (T)."""
    return (ours_TG.float() - theirs_TG.float()).square().mean(-1)


def vector_distance(ours_BK: Tensor, theirs_BK: Tensor, packed: Packed) -> Tensor:
    """Return the distance between the student's and the teacher's vector of each sequence (B).

    For equal widths, it is 1 minus the cosine, which is K / 2 times the mean squared error of unit vectors. For
    different widths, student and teacher each compute the cosines of a sequence with all others of the batch; the
    distance is the mean squared difference of these cosines.
    """
    if ours_BK.shape[-1] == theirs_BK.shape[-1]:
        return cosine_distance(ours_BK, theirs_BK)
    unit = [nn.functional.normalize(each.float(), dim=-1) for each in (ours_BK, theirs_BK)]
    # Sequences of one token only fill up the batch, see `pack_in_blocks`.
    real_B = torch.tensor([length > 1 for length in packed.lengths], device=ours_BK.device)
    counted_BB = real_B[:, None] & real_B & ~torch.eye(len(real_B), dtype=torch.bool, device=real_B.device)
    squared_BB = (unit[0] @ unit[0].T - unit[1] @ unit[1].T).square() * counted_BB
    return squared_BB.sum(-1) / counted_BB.sum(-1).clamp(min=1)


SOFT, COSINE = "teacher's predictions", "last hidden states"
"""Names of the parts of DistilBERT's loss besides masked language modelling."""

VECTORS, STATES, EMBEDDINGS = "vectors", "hidden states", "embeddings"
"""Names of the parts of the loss of `StateDistillation`."""

Pool: TypeAlias = Callable[[Tensor, Packed], Tensor]
"""A function from the last hidden states of tokens (T, H) to a vector for each sequence (B, K)."""


@dataclass(frozen=True, slots=True)
class AllTokens:
    """Compare predictions at every token, special ones included, as in the training of DistilBERT."""


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """Compare predictions only at the positions chosen for masking, about a seventh of the tokens."""


ComparedPlaces = AllTokens | ChosenTokens


def _check_weights(*weights: float) -> None:
    if min(weights) < 0 or not any(weights):
        raise InvalidInput(f"expected loss weights of 0 or more, and at least one of them above 0, got {weights}.")


@dataclass(frozen=True, slots=True)
class TripleLoss:
    """Weights of DistilBERT's loss; a part with weight 0 is not computed.

    The parts are the KL divergence from the teacher's predictions (`soft`) at all tokens or the masked ones (`places`),
    masked language modelling, and the cosine distance of last hidden states. The temperature divides both logits; its
    square scales the divergence.
    """

    soft: float = 5.0
    masked: float = 2.0
    cosine: float = 1.0
    temperature: float = 2.0
    places: ComparedPlaces = AllTokens()

    def __post_init__(self) -> None:
        _check_weights(self.soft, self.masked, self.cosine)
        if not self.temperature > 0:
            raise InvalidInput(f"expected a temperature above 0, got {self.temperature}.")


@dataclass(frozen=True, slots=True)
class StateLoss:
    """Weights of the parts of the loss of `StateDistillation`; a part with weight 0 is not computed.

    The parts are the cosine distance of sentence vectors, and the mean squared errors of the layers' outputs (`states`)
    and of the embeddings' output.
    """

    vectors: float = 1.0
    states: float = 1.0
    embeddings: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(*astuple(self))


class MaskedLMDistillation(PretrainingModel):
    """Trains a student with DistilBERT's triple loss; both models have masked language modelling heads."""

    def __init__(self, student: MaskedLM, teacher: MaskedLM, loss: TripleLoss) -> None:
        super().__init__()
        _check_vocabulary(student.encoder, teacher.encoder)
        self.student = student
        self.loss = loss
        self.projection = _projection(student.encoder, teacher.encoder)
        self._teacher = (teacher.eval(),)  # in a tuple, so that it is no submodule

    @property
    def identity(self) -> Mapping[str, str]:
        return {"temperature": f"{self.loss.temperature:g}", "compared": type(self.loss.places).__name__}

    @property
    def weights(self) -> Mapping[str, float]:
        return _positive({SOFT: self.loss.soft, MASKED: self.loss.masked, COSINE: self.loss.cosine})

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        tokens, chosen = len(batch.packed.ids_T), len(batch.rows_M)
        compared = tokens if isinstance(self.loss.places, AllTokens) else chosen
        return {SOFT: compared, MASKED: chosen, COSINE: tokens}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        student, (teacher,) = self.student, self._teacher
        all_T = torch.arange(len(batch.packed.ids_T), device=batch.rows_M.device)
        rows_U = all_T if isinstance(self.loss.places, AllTokens) else batch.rows_M
        with torch.no_grad():
            taught_TG = teacher.encoder(batch.packed)
            taught_UV = _logits(teacher, taught_TG[rows_U])
        hidden_TH = student.encoder(batch.packed)
        logits_UV = _logits(student, hidden_TH[rows_U])
        chosen_MV = logits_UV[batch.rows_M] if rows_U is all_T else logits_UV
        parts: dict[str, UnitLosses] = {
            SOFT: UnitLosses.of_distances(soft_divergence(logits_UV, taught_UV, self.loss.temperature), rows_U),
            MASKED: UnitLosses.of_classes(chosen_MV, batch.targets_M, batch.rows_M),
            COSINE: UnitLosses.of_distances(cosine_distance(self.projection(hidden_TH), taught_TG), all_T),
        }
        return {name: parts[name] for name in self.weights}


class StateDistillation(PretrainingModel):
    """Trains a student on a teacher's hidden states and sentence vectors.

    ``layers`` has, for each layer of the student, the index of the teacher's layer whose output it learns; ``pool``
    turns the last hidden states of each model into a vector per sequence.
    """

    def __init__(
        self, student: Encoder, teacher: Encoder, layers: Sequence[int], pool: Pool, loss: StateLoss = StateLoss()
    ) -> None:
        super().__init__()
        _check_vocabulary(student, teacher)
        if len(layers) != student.config.layers or not all(0 <= each < teacher.config.layers for each in layers):
            raise InvalidInput(
                f"expected a teacher layer from 0 to {teacher.config.layers - 1} for each of the student's "
                f"{student.config.layers} layers, got {tuple(layers)}."
            )
        self.student = student
        self.layers = tuple(layers)
        self.pool = pool
        self.loss = loss
        self.projection = _projection(student, teacher)
        self.embedding_projection = _projection(student, teacher)
        self._teacher = (teacher.eval(),)  # in a tuple, so that it is no submodule

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the projections; the student stays in evaluation mode, without dropout."""
        super().train(mode)
        self.student.eval()
        return self

    @property
    def identity(self) -> Mapping[str, str]:
        return {"teacher's layers": ", ".join(map(str, self.layers))}

    @property
    def weights(self) -> Mapping[str, float]:
        return _positive(asdict(self.loss), {"vectors": VECTORS, "states": STATES, "embeddings": EMBEDDINGS})

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        tokens = len(batch.packed.ids_T)
        return {VECTORS: batch.packed.count, STATES: tokens, EMBEDDINGS: tokens}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        packed = batch.packed
        (embedded_TH, *ours), (taught_TG, *theirs) = self._states(packed)
        rows_T = torch.arange(len(packed.ids_T), device=packed.ids_T.device)

        def vectors() -> UnitLosses:
            pooled = self.pool(ours[-1], packed), self.pool(theirs[-1], packed)
            return UnitLosses.of_distances(vector_distance(*pooled, packed), packed.first_tokens_B)

        def states() -> UnitLosses:
            pairs = zip(ours, self.layers, strict=True)
            errors_T = [squared_error(self.projection(each_TH), theirs[layer]) for each_TH, layer in pairs]
            return UnitLosses.of_distances(torch.stack(errors_T).mean(0), rows_T)

        def embeddings() -> UnitLosses:
            return UnitLosses.of_distances(squared_error(self.embedding_projection(embedded_TH), taught_TG), rows_T)

        parts = {VECTORS: vectors, STATES: states, EMBEDDINGS: embeddings}
        return {name: parts[name]() for name in self.weights}

    def vectors(self, packed: Packed) -> tuple[Tensor, Tensor]:
        (*_, ours_TH), (*_, theirs_TG) = self._states(packed)
        return self.pool(ours_TH, packed), self.pool(theirs_TG, packed)

    def _states(self, packed: Packed) -> tuple[list[Tensor], list[Tensor]]:
        """Return the embeddings and the layers' outputs of the student (T, H) and of the teacher (T, G)."""
        ours, theirs = Recorder(), Recorder()
        with torch.no_grad():
            self._teacher[0](packed, record=theirs)
        self.student(packed, record=ours)
        return ours.hidden_states, theirs.hidden_states


def _logits(model: MaskedLM, hidden_UH: Tensor) -> Tensor:
    logits_UV: Tensor = model.head(hidden_UH, model.encoder.embedding.tokens.weight)
    return logits_UV


def _projection(student: Encoder, teacher: Encoder) -> nn.Module:
    """Return a new linear map to the teacher's width, or the identity for equal widths."""
    widths = student.config.hidden, teacher.config.hidden
    return nn.Identity() if widths[0] == widths[1] else nn.Linear(*widths).to(student.embedding.tokens.weight.device)


def _positive(weights: Mapping[str, float], names: Mapping[str, str] | None = None) -> dict[str, float]:
    return {name if names is None else names[name]: weight for name, weight in weights.items() if weight > 0}


def _check_vocabulary(student: Encoder, teacher: Encoder) -> None:
    # The sizes of the embedding tables, which may differ for one tokenizer because of padding.
    sizes = student.config.vocabulary, teacher.config.vocabulary
    if sizes[0] != sizes[1]:
        raise InvalidInput(f"expected a student with its teacher's vocabulary of {sizes[1]} tokens, got {sizes[0]}.")
