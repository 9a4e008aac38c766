"""Vocabulary logits and their cross-entropy, a chunk of positions at a time.

The logits of all chosen positions would be the largest tensors of a training: 1,229 positions of BERT's vocabulary take
143 MiB, and cross-entropy makes three copies. Here the forward pass computes a chunk's logits, its losses and its part
of the gradients before the next chunk (as Cut Cross-Entropy, Wijmans et al. 2024, arXiv:2411.09009, and Liger Kernel,
Hsu et al. 2024, arXiv:2410.10989, do).

Shapes: M chosen positions, m those of a chunk, H hidden, E embedding width, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.encoder import MaskedLMHead
from bothways.encoder.linear import linear
from bothways.encoder.modules import FunctionContext
from bothways.objectives.pretraining import UnitLosses
from bothways.products import ROW_BLOCK

Look = Callable[[Tensor, slice], None]
"""Called with the probabilities (m, V) of a chunk and its positions."""

_ON_CPU, _ELSEWHERE = 2**23, 2**26
"""Logits of a chunk; larger ones for the kernels of a GPU."""


def predict_tokens(
    head: MaskedLMHead,
    tokens_VE: Tensor,
    hidden_MH: Tensor,
    targets_M: Tensor,
    rows_M: Tensor,
    look: Look | None = None,
) -> UnitLosses:
    """Return the losses of a head's predictions for the hidden states (M, H) and target tokens (M) of positions.

    ``rows_M`` are the rows of the positions in the packed batch.
    """
    own_ME, bias_V = head.transformed(hidden_MH, tokens_VE.dtype), head.bias.to(tokens_VE.dtype)
    if torch.is_grad_enabled():
        total, losses_M, right_M = _cross_entropy(own_ME, tokens_VE, bias_V, targets_M, look)
    else:
        losses_M, right_M, _ = _scan(own_ME, tokens_VE, bias_V, targets_M, look, (False, False, False))
        total = losses_M.sum()
    return UnitLosses(total, losses_M, right_M, rows_M)


Gradients = list[Tensor | None]


class _Context(FunctionContext, Protocol):
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _CrossEntropy(torch.autograd.Function):
    """The sum of all losses, each loss, and a mask of right predictions."""

    @staticmethod
    def forward(
        ctx: _Context,
        own_ME: Tensor,
        tokens_VE: Tensor,
        bias_V: Tensor,
        targets_M: Tensor,
        look: Look | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses_M, right_M, gradients = _scan(own_ME, tokens_VE, bias_V, targets_M, look, ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(losses_M, right_M)
        return losses_M.sum(), losses_M, right_M

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, factor: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # In place: nothing else holds these, and the table's gradient is as large as the table.
        return *(None if each is None else each.mul_(factor) for each in ctx.saved_tensors), None, None


_cross_entropy: Callable[[Tensor, Tensor, Tensor, Tensor, Look | None], tuple[Tensor, Tensor, Tensor]] = (
    _CrossEntropy.apply
)


def _scan(
    own_ME: Tensor,
    tokens_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    look: Look | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Gradients]:
    """Return losses (M), right predictions (M), and the wanted gradients of the sum by the first three arguments."""
    losses_M = torch.empty(len(own_ME), device=own_ME.device)
    right_M = torch.empty(len(own_ME), dtype=torch.bool, device=own_ME.device)
    gradients: Gradients = [
        torch.empty_like(own_ME) if wanted[0] else None,
        torch.zeros_like(tokens_VE) if wanted[1] else None,
        torch.zeros_like(bias_V) if wanted[2] else None,
    ]
    step = rows_of_chunk(own_ME.device, len(tokens_VE))
    for start in range(0, len(own_ME), step):
        places = slice(start, start + step)
        scores_mV = linear(own_ME[places], tokens_VE, bias_V).float()
        top_m, likeliest_m = scores_mV.max(-1)
        own_m = scores_mV.gather(-1, targets_M[places, None]).squeeze(-1)
        # In place, step by step: torch does not promise a softmax into its own input.
        parts_mV = scores_mV.sub_(top_m[:, None]).exp_()
        sums_m = parts_mV.sum(-1)
        losses_M[places] = sums_m.log() + top_m - own_m
        right_M[places] = likeliest_m == targets_M[places]
        probabilities_mV = parts_mV.div_(sums_m[:, None])
        if look is not None:
            look(probabilities_mV, places)
        if any(wanted):
            _add_gradients(gradients, probabilities_mV, own_ME[places], tokens_VE, targets_M[places], places)
    return losses_M, right_M, gradients


def _add_gradients(
    gradients: Gradients,
    probabilities_mV: Tensor,
    own_mE: Tensor,
    tokens_VE: Tensor,
    targets_m: Tensor,
    places: slice,
) -> None:
    """Add a chunk's part to the gradients, overwriting its probabilities."""
    by_own_ME, by_tokens_VE, by_bias_V = gradients
    by_scores_mV = probabilities_mV.scatter_add_(
        -1, targets_m[:, None], probabilities_mV.new_full((len(targets_m), 1), -1.0)
    )
    if by_own_ME is not None:
        by_own_ME[places] = linear(by_scores_mV, tokens_VE.t(), None)
    if by_tokens_VE is not None:
        if torch.is_autocast_enabled(own_mE.device.type) or own_mE.dtype != by_scores_mV.dtype:
            by_tokens_VE += by_scores_mV.to(own_mE.dtype).t() @ own_mE
        else:  # without a product as large as the table
            by_tokens_VE.addmm_(by_scores_mV.t(), own_mE)
    if by_bias_V is not None:
        by_bias_V += by_scores_mV.sum(0)


def rows_of_chunk(device: torch.device, vocabulary: int) -> int:
    """Return the number of positions in a chunk."""
    rows = (_ON_CPU if device.type == "cpu" else _ELSEWHERE) // vocabulary
    return max(1, rows // ROW_BLOCK) * ROW_BLOCK
