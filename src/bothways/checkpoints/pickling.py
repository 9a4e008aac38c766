"""Pickles of opened models, for spawned workers, joblib, Spark and Ray.

A module that was built from a model folder and still has its weights is pickled as the folder's path and the checksum
of the weights: a few kilobytes. Unpickling opens the folder and compares the checksum. A module that was trained or
changed in memory, or whose folder has changed or is missing, is pickled whole, with its weights as one block of
safetensors that shares no memory with the original. Both kinds of pickle keep the dtype, and the device if the process
that unpickles has it; otherwise the module is on the CPU. ``copy.deepcopy`` copies modules in memory.
"""

import copy
import copyreg
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import safetensors.torch
import torch
from torch import Tensor, nn

from bothways.checkpoints.files import fingerprint, read_head_tensors, read_tensors, rounded_weights
from bothways.devices import pick_device
from bothways.encoder import Encoder, MaskedLMHead, Pooler, ScoreHead
from bothways.errors import BothwaysError, CorruptCheckpoint, DeviceMismatch, UnknownModel
from bothways.families import Family
from bothways.text import TextTokenizer
from bothways.text.tokenizer import reduce_whole
from bothways.threads import loading

M = TypeVar("M", bound=nn.Module)
Reduced = tuple[Callable[..., Any], tuple[object, ...]]

_PUT_BACK = "Put the folder back as it was, or open the model anew and pickle it again."


class ModelFolder:
    """A folder that weights are read from; it is pickled as its path and the checksum of its weights.

    ``expected`` is the `fingerprint` that the weights must have; None accepts any.
    """

    def __init__(self, path: Path, family: Family, allow_pickle: bool, expected: str | None = None) -> None:
        self.path = path.absolute()
        self._family = family
        self.allow_pickle = allow_pickle
        self._expected = expected
        self._verified = expected is None

    def read(self) -> dict[str, Tensor]:
        """Return all tensors under the family's names, memory-mapped."""
        if not self._verified:
            self._verify()
        own = self._family.canonical(read_tensors(self.path, allow_pickle=self.allow_pickle))
        return own | rounded_weights(self.path, self._family) | read_head_tensors(self.path)

    def __reduce__(self) -> Reduced:
        """Pickle with the expected checksum of the weights, or with the current one if none is expected."""
        return ModelFolder, (self.path, self._family, self.allow_pickle, self._expected or fingerprint(self.path))

    def _verify(self) -> None:
        what = f"this pickle holds no weights, but refers to the model folder {str(self.path)!r}"
        if not self.path.is_dir():
            raise UnknownModel(f"{what}, which is not there. {_PUT_BACK}")
        if fingerprint(self.path) != self._expected:
            raise CorruptCheckpoint(f"{what}, whose weights have changed since it was pickled. {_PUT_BACK}")
        self._verified = True


class FolderTensors(Mapping[str, Tensor]):
    """All tensors of a model folder; those of an unpickled model are read on first use."""

    def __init__(self, folder: ModelFolder, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.folder = folder
        self._read = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def __reduce__(self) -> Reduced:
        """Pickle as the folder, or as the tensors themselves if the folder has changed."""
        if self._read is None or _same(self._read, self.folder.read):
            return FolderTensors, (self.folder,)
        return safetensors.torch.load, (_block(self._read),)

    def _tensors(self) -> Mapping[str, Tensor]:
        if self._read is None:
            self._read = self.folder.read()
        return self._read


_SOURCES: WeakKeyDictionary[nn.Module, Callable[[], nn.Module]] = WeakKeyDictionary()


def remember_source(module: M, build: Callable[[], nn.Module]) -> M:
    """Record a picklable function that builds this encoder, pooler or head from its folder; return the module."""
    _SOURCES[module] = build
    return module


def built_again(module: M) -> M:
    """Build a module again from its folder, in float32 on the same device."""
    build = _SOURCES.get(module)
    device = next(module.parameters()).device
    if build is None:  # it was pickled with its weights, and has no folder
        return copy.deepcopy(module).float()
    again = build()
    assert isinstance(again, type(module))
    return remember_source(again, build).to(device, torch.float32).train(module.training)


def reduce_module(module: nn.Module) -> Reduced:
    """Reduce a module for pickle: to its builder if that gives the same weights, else to its weights.

    This function is registered for encoders, poolers and heads; for other classes of modules, register it with
    ``copyreg.pickle``.
    """
    if not is_as_stored(module):
        return _reduce_whole(module)
    parameters = dict(module.named_parameters())
    first = next(iter(parameters.values()))
    frozen = tuple(name for name, value in parameters.items() if not value.requires_grad)
    return _build_again, (_SOURCES[module], first.device, first.dtype, module.training, frozen)


def is_as_stored(module: nn.Module) -> bool:
    """Return True if building the module again from its folder gives the same module."""
    build = _SOURCES.get(module)
    uniform = len({value.dtype for value in module.parameters()}) == 1
    steady = all(part.training == module.training for part in module.modules())
    return build is not None and uniform and steady and _same(module.state_dict(), lambda: build().state_dict())


class Whole:
    """Wraps a module or a tokenizer to pickle it with all its weights or files; unpickling gives the object itself."""

    def __init__(self, value: nn.Module | TextTokenizer) -> None:
        self._value = value

    def __reduce__(self) -> Reduced:
        return _reduce_whole(self._value) if isinstance(self._value, nn.Module) else reduce_whole(self._value)


def _reduce_whole(module: nn.Module) -> Reduced:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    # Copy the state with empty tensors in place of the weights: the memo substitutes them during the deep copy.
    state = copy.deepcopy(module.__dict__, {id(value): _empty(value) for value in tensors.values()})
    device = next(iter(tensors.values())).device
    return _fill_again, (type(module), state, _block(tensors), device)


def _deepcopy_module(module: M, memo: dict[int, object]) -> M:
    """Copy a module in memory; without this, copying would go through `reduce_module`."""
    made = memo[id(module)] = type(module).__new__(type(module))
    vars(made).update(copy.deepcopy(vars(module), memo))
    if module in _SOURCES:
        remember_source(made, _SOURCES[module])
    return made


for kind in (Encoder, Pooler, ScoreHead, MaskedLMHead):
    copyreg.pickle(kind, reduce_module)
    kind.__deepcopy__ = _deepcopy_module  # type: ignore[union-attr]


@loading()
def _build_again(
    build: Callable[[], nn.Module], device: torch.device, dtype: torch.dtype, training: bool, frozen: tuple[str, ...]
) -> nn.Module:
    module = remember_source(build(), build).to(_available(device), dtype).train(training)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    return module


@loading()
def _fill_again(kind: type[nn.Module], state: dict[str, object], block: bytes, device: torch.device) -> nn.Module:
    module = kind.__new__(kind)
    vars(module).update(state)
    module.to_empty(device=_available(device))
    tensors = safetensors.torch.load(block)
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            value.copy_(tensors[name])
    return module


def _same(tensors: Mapping[str, Tensor], read: Callable[[], Mapping[str, Tensor]]) -> bool:
    """Return True if the tensors, in their own dtype, equal those in the folder now."""
    try:
        stored = read()
    except BothwaysError:
        # The folder has gone, or holds a model of another shape: only the tensors in memory are left.
        return False
    return stored.keys() == tensors.keys() and all(
        torch.equal(stored[name].to(value.dtype), value.cpu()) for name, value in tensors.items()
    )


def _block(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _empty(value: Tensor) -> Tensor:
    empty = value.detach().to("meta")
    return nn.Parameter(empty, value.requires_grad) if isinstance(value, nn.Parameter) else empty


def _available(device: torch.device) -> torch.device:
    try:
        return pick_device(device)
    except DeviceMismatch:
        return torch.device("cpu")
