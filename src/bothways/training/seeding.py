"""The global random generators: seed, capture, restore."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """State of the generators of Python, numpy and torch (CPU, each CUDA device, MPS)."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch_cpu: bytes
    torch_cuda: tuple[bytes, ...]
    torch_mps: bytes = b""

    @classmethod
    def capture(cls) -> "RandomState":
        """Return the current state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        return cls(
            python=random.getstate(),
            # The only access to the generator behind numpy.random's functions.
            numpy=dict(np.random.get_state(legacy=False)),
            torch_cpu=torch.get_rng_state().numpy().tobytes(),
            torch_cuda=tuple(state.numpy().tobytes() for state in cuda),
            torch_mps=torch.mps.get_rng_state().numpy().tobytes() if torch.backends.mps.is_available() else b"",
        )

    def restore(self) -> None:
        """Set the generators to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(_tensor(self.torch_cpu))
        for device, state in zip(range(torch.cuda.device_count()), self.torch_cuda, strict=False):
            torch.cuda.set_rng_state(_tensor(state), device)
        if self.torch_mps and torch.backends.mps.is_available():
            torch.mps.set_rng_state(_tensor(self.torch_mps))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        version, words, gauss = self.python
        inner = self.numpy["state"]
        return {
            "python": [version, list(words), gauss],
            "numpy": {**self.numpy, "state": {"key": [int(word) for word in inner["key"]], "pos": int(inner["pos"])}},
            "torch_cpu": self.torch_cpu.hex(),
            "torch_cuda": [state.hex() for state in self.torch_cuda],
            **({"torch_mps": self.torch_mps.hex()} if self.torch_mps else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RandomState":
        """Return the state from the result of `to_dict`, checked."""
        version, words, gauss = values["python"]
        inner = values["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        state = cls(
            python=(version, tuple(words), gauss),
            numpy={**values["numpy"], "state": {"key": key, "pos": inner["pos"]}},
            torch_cpu=bytes.fromhex(values["torch_cpu"]),
            torch_cuda=tuple(bytes.fromhex(state) for state in values["torch_cuda"]),
            torch_mps=bytes.fromhex(values.get("torch_mps", "")),
        )
        state.check()
        return state

    def check(self) -> None:
        """Raise ValueError for a state that the generators do not accept."""
        if self.numpy["state"]["key"].shape != (624,) or self.numpy["state"]["pos"] not in range(625):
            raise ValueError("the state of numpy's generator must have 624 words and a position among them.")
        try:
            random.Random().setstate(self.python)
            np.random.RandomState().set_state(self.numpy)
            torch.Generator().set_state(_tensor(self.torch_cpu))
        except (RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"a random generator does not accept its state: {error}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch (0 to 2**32 - 1) for the block, then restore their states."""
    before = RandomState.capture()
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)  # seeds every CUDA device as well
        yield
    finally:
        before.restore()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
