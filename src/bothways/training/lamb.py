"""LAMB (You et al. 2019, arXiv:1904.00962, algorithm 2): the step of Adam, scaled for each tensor by its weights' size.

It lets updates of thousands of sequences keep a large learning rate. Tensors of fewer than two dimensions, biases and
the gains of norms, are not scaled, as in the code of ALBERT, which was pre-trained by it.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class LAMB(Optimizer):
    """LAMB over parameter groups.

    Args:
        groups: Parameter groups, each with its ``weight_decay``.
        betas: Decay rates of the two moments.
        eps: Added to the denominator of Adam's step.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the parameters by their gradients."""
        value = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if parameters:
                self._move(parameters, group)
        return value

    def _move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), states = group["betas"], [self._state_of(each) for each in parameters]
        gradients = [each.grad for each in parameters if each.grad is not None]
        means, squares, steps = ([state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        done = [float(step) for step in steps]
        moves = torch._foreach_div(squares, [1 - beta2**step for step in done])
        torch._foreach_sqrt_(moves)
        torch._foreach_add_(moves, group["eps"])
        torch._foreach_reciprocal_(moves)
        torch._foreach_mul_(moves, means)
        torch._foreach_div_(moves, [1 - beta1**step for step in done])
        torch._foreach_add_(moves, parameters, alpha=group["weight_decay"])
        for parameter, move in zip(parameters, moves, strict=True):
            if parameter.ndim >= 2:
                move.mul_(_trust(parameter, move))
        torch._foreach_add_(parameters, moves, alpha=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _trust(parameter: Tensor, move: Tensor) -> Tensor:
    """Return |weights| / |step|, and 1 where one of them is zero; a scalar on the device."""
    weights, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(move)
    return torch.where((weights > 0) & (length > 0), weights / length.clamp(min=1e-38), torch.ones_like(weights))
