"""The optimizers, which parameters they decay, and by which rate they move each.

Weight decay is decoupled from the gradient (Loshchilov & Hutter 2017, arXiv:1711.05101, algorithm 2) and applies to
weight matrices and embeddings only: biases and the gains of norms, all tensors of fewer than two dimensions, have none.

With a layer-wise decay, the rate of a parameter is that of the schedule times the decay to the power of its distance
from the head, as in the published code of ELECTRA (Clark et al. 2020, arXiv:2003.10555; google-research/electra,
model/optimization.py):

    head                        0
    norm behind the last layer  1
    layer l of L, from 1        L + 2 - l, so 2 for the last one
    embedding                   L + 2

ELECTRA has nothing at distance 1. Positions that all layers share and a convolution beside the first layer (DeBERTa)
are at the embedding's. Weights that several layers share (ALBERT) are at that of the last of these layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bothways.encoder.encoder import Encoder
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.training.lamb import LAMB
from bothways.training.options import TrainingOptions
from bothways.training.rows import RowGradients
from bothways.training.sharding import divided_like, whole

# Device types for which torch has a fused AdamW. On two CPU cores it takes 11 ms for the 22.6 M parameters of a MiniLM,
# against 46 ms for foreach and 43 ms for the plain loop.
_FUSED = ("cpu", "cuda")
_STEP = "step"
_KINDS = {"exp_avg", "exp_avg_sq", _STEP}


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that share the settings of the optimizer.

    Attributes:
        names: Their names.
        weight_decay: Their decay.
        rate: Their learning rate, as a factor of the schedule's.
    """

    names: tuple[str, ...]
    weight_decay: float
    rate: float = 1.0


def parameter_groups(
    module: nn.Module, weight_decay: float, layer_decay: float | None = None
) -> tuple[ParameterGroup, ...]:
    """Return the parameters of ``module`` that want a gradient.

    Those that decay, then those that do not, the head first.

    A parameter tied to two names appears once. Empty groups are left out.

    Args:
        module: The module.
        weight_decay: Of matrices.
        layer_decay: Factor of the rate from one layer to the one below it; None for one rate.

    Raises:
        InvalidInput: Nothing in ``module`` wants a gradient, or there is no encoder whose layers could differ.
    """
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidInput("there is nothing to train: no parameter of the module has requires_grad=True.")
    found = distances(module) if layer_decay is not None else {}
    members: dict[tuple[bool, int], list[str]] = {}
    for name, parameter in trained:
        members.setdefault((parameter.ndim < 2, found.get(parameter, 0)), []).append(name)
    factor = 1.0 if layer_decay is None else layer_decay
    return tuple(
        ParameterGroup(tuple(members[is_small, distance]), 0.0 if is_small else weight_decay, factor**distance)
        for is_small, distance in sorted(members)
    )


def distances(module: nn.Module) -> Mapping[nn.Parameter, int]:
    """Return the distance from the head of each parameter of the encoders in a module.

    A parameter of two encoders has the smaller distance.

    Raises:
        InvalidInput: There is no encoder.
    """
    encoders = [each for each in module.modules() if isinstance(each, Encoder)]
    if not encoders:
        raise InvalidInput("layer_decay needs an encoder whose layers are trained, got none: leave layer_decay out.")
    found: dict[nn.Parameter, int] = {}
    for encoder in encoders:
        for parameter, distance in _distances(encoder).items():
            found[parameter] = min(distance, found.get(parameter, distance))
    return found


def _distances(encoder: Encoder) -> dict[nn.Parameter, int]:
    layers = encoder.layers
    last = len(layers.steps) // layers.inner
    found = dict.fromkeys(encoder.parameters(), last + 2) | dict.fromkeys(encoder.final_norm.parameters(), 1)
    for step, place in enumerate(layers.steps):
        found.update(dict.fromkeys(layers[place].parameters(), last + 1 - step // layers.inner))
    return found


class NamedOptimizer:
    """AdamW or LAMB over the parameter groups of a module, with a state that is a flat table of named tensors."""

    def __init__(self, module: nn.Module, options: TrainingOptions) -> None:
        named = dict(module.named_parameters())
        groups = parameter_groups(module, options.weight_decay, options.layer_decay)
        self.names = [name for group in groups for name in group.names]
        self.parameters: list[nn.Parameter] = [named[name] for name in self.names]
        self._rows = RowGradients(self.parameters)
        self._fused = options.optimizer == "adamw" and all(each.device.type in _FUSED for each in self.parameters)
        held: list[dict[str, Any]] = [
            {"params": [named[name] for name in group.names], "weight_decay": group.weight_decay} for group in groups
        ]
        self._rates = [group.rate for group in groups]
        self._optimizer: Optimizer = (
            AdamW(held, betas=options.betas, eps=options.eps, fused=self._fused or None)
            if options.optimizer == "adamw"
            else LAMB(held, options.betas, options.eps)
        )

    def clip(self, max_norm: float | None) -> Tensor:
        """Scale the gradients down to a joint 2-norm of ``max_norm``; the norm before that, a scalar on the device."""
        return clip_gradients(self._rows.compact(), max_norm)

    def step(self, learning_rate: float, finite: Tensor | None = None) -> None:
        """Move the parameters by their gradients, then forget the gradients.

        Args:
            learning_rate: The rate of a head, and without a layer-wise decay of everything.
            finite: Whether the step is to be taken, a scalar on the device; where there is none, it is.
        """
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = learning_rate * rate
        if finite is None or self._fused:
            # The fused kernels read it on the device.
            self._optimizer.found_inf = None if finite is None else (~finite).float()  # type: ignore[attr-defined]
            self._rows.spread()
            self._optimizer.step()
        elif finite:
            self._rows.spread()
            self._optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self._rows.clear()
        self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Every state tensor as ``"<kind>/<parameter name>"``; the tensors are the optimizer's own, not copies."""
        return {
            f"{kind}/{name}": value
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for kind, value in self._optimizer.state.get(parameter, {}).items()
        }

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Take over a state made by `state` after so many updates.

        Raises:
            CorruptCheckpoint: The state is of other parameters, or of another number of updates.
        """
        loaded: dict[nn.Parameter, dict[str, Tensor]] = {}
        named = dict(zip(self.names, self.parameters, strict=True))
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if name not in named or (kind != _STEP and value.shape != named[name].shape):
                raise CorruptCheckpoint(
                    f"the optimizer state {key!r} of shape {tuple(value.shape)} fits no trained parameter. "
                    "Resume with the model that wrote the checkpoint."
                )
            # Only the fused kernel wants its step counters on the parameter's device.
            device = named[name].device if self._fused or kind != _STEP else torch.device("cpu")
            part = value if kind == _STEP else divided_like(value, named[name])
            loaded.setdefault(named[name], {})[kind] = part.to(device, copy=True)
        for parameter, values in loaded.items():
            step = values.get(_STEP)
            if values.keys() != _KINDS or step is None or step.numel() != 1 or float(step) not in range(updates + 1):
                raise CorruptCheckpoint(
                    f"the optimizer state of a parameter of shape {tuple(parameter.shape)} must have {sorted(_KINDS)}, "
                    f"the last one at most {updates}, but it has {sorted(values)} and {step}. Remove the folder of the "
                    "checkpoints and train again."
                )
        self._optimizer.state.clear()
        for parameter, values in loaded.items():
            self._optimizer.state[parameter] = values


def clip_gradients(gradients: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients in place to a joint 2-norm of at most ``max_norm``; the norm before that, on their device."""
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if max_norm is not None:
        # As torch.nn.utils.clip_grad_norm_, which takes parameters and so would miss the rows of sparse gradients.
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(list(gradients), scale)  # one launch on a GPU, not one for each gradient
    return norm
