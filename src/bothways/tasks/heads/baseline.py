"""The baseline of a trained model: a simpler model, saved with it, that an evaluation measures on the same rows.

The baseline is the model before the training: a linear model of the frozen encoder's hidden states, a further trained
head, or an embedder. Only its head is saved, in ``baseline/head.safetensors`` (a few kilobytes for a linear head), with
the name of the base model; an evaluation opens the base model again. If it is not on this machine any more, and if the
model is its own baseline, the baseline is the best constant prediction. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bothways.checkpoints.files import fingerprint, read_arrays, write_arrays
from bothways.checkpoints.hub import LocatedModel, locate
from bothways.checkpoints.schema import StoredBase, StoredBaseline
from bothways.choices import TargetKind
from bothways.errors import BothwaysError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bothways.checkpoints import PretrainedEncoder

HEAD = Path("baseline/head.safetensors")

CONSTANTS: Mapping[TargetKind, str] = {
    "single": "always the most frequent label of the training rows",
    "multi": "always the label frequencies of the training rows",
    "regression": "always the mean of the training rows",
}
"""Names of constant predictions, by the kind of target."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that a training started from.

    Attributes:
        name: Its name or path, as the user gave it.
        revision: Its commit on the hub.
        sha256: The checksum of the weights in its folder; empty for a model of the hub or of a package.
        places: Folders in which it may be.
    """

    name: str
    revision: str | None = None
    sha256: str = ""
    places: tuple[Path, ...] = ()

    @classmethod
    def of(cls, model: PretrainedEncoder) -> Self | None:
        """Return the model whose copy is being trained; None if its weights are in memory only."""
        if model.trainings > 1:
            return None
        if model.revision is None and Path(model.name).is_dir():
            return cls(model.name, None, fingerprint(model.folder), (model.folder.resolve(),))
        return cls(model.name, model.revision)

    @classmethod
    def stored(cls, stored: StoredBase, folder: Path) -> Self:
        """Return the base model of the model in a folder; a relative path may be relative to a folder above it."""
        places = (Path(stored.name), *(parent / stored.name for parent in folder.resolve().parents))
        return cls(stored.name, stored.revision, stored.sha256, places if stored.sha256 else ())

    def located(self) -> LocatedModel | None:
        """Find the model; None if it is not on this machine, or its weights have changed."""
        if self.sha256:
            there = (each for each in self.places if each.is_dir() and fingerprint(each) == self.sha256)
            return next((LocatedModel(each, self.name) for each in there), None)
        try:
            return None if Path(self.name).is_dir() else locate(self.name, revision=self.revision)
        except BothwaysError:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class SavedBaseline:
    """The baseline of a training, without the base model's weights.

    Attributes:
        name: The kind of baseline.
        constant: Logits of the best constant prediction; empty if the task has none.
        base: The base model; None if the only baseline is the constant.
        config: Entries for the base model's ``config.json`` that describe the head.
        outputs: Settings of the head's outputs, such as their calibration.
        head: Weights of the head under the family's names; empty for an embedder.
    """

    name: str
    constant: tuple[float, ...] = ()
    base: BaseModel | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    outputs: Mapping[str, object] = field(default_factory=dict)
    head: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)

    def as_constant(self) -> Self:
        """Return the best constant prediction only, for a model that is its own baseline."""
        return replace(self, base=None, config={}, outputs={}, head={})

    def write(self, folder: Path) -> dict[str, object]:
        """Write the head into the folder of a model, and return the entry for ``bothways.json``."""
        if self.head:
            (folder / HEAD).parent.mkdir()
            write_arrays(folder / HEAD, self.head)
        found = self.base
        base = None if found is None else {"name": found.name, "revision": found.revision, "sha256": found.sha256}
        own = {"constant": list(self.constant), "config": dict(self.config), "outputs": dict(self.outputs)}
        return {"baseline": {"name": self.name, "base": base, **own}}

    @classmethod
    def read(cls, stored: StoredBaseline, folder: Path) -> Self:
        """Read the baseline of the model in a folder."""
        constant = cls(stored.name, tuple(stored.constant))
        # Exports have no weights beside their own.
        if stored.base is None or (stored.outputs and not (folder / HEAD).is_file()):
            return constant
        head = read_arrays(folder / HEAD) if stored.outputs else {}
        base = BaseModel.stored(stored.base, folder)
        return replace(constant, base=base, config=stored.config, outputs=stored.outputs, head=head)
