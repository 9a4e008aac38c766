"""A checkpoint folder, opened: its family, its configuration and its weights under our names.

What this package adds to the ecosystem's layout lies beside it in one file, ``bothways.json``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from bothways.checkpoints.files import read_json, read_tensors, sha256_of, verify_checksums
from bothways.checkpoints.hub import locate
from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import Encoder
from bothways.encoder.heads import MaskedLMHead, Pooler, SequenceHead
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, UnsupportedConfig
from bothways.families import Family, family_of
from bothways.families.weight_map import known_names, read_weights

OURS = "bothways.json"
FORMAT_VERSION = 1
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        folder: Where it lies.
        name: What the caller called it.
        revision: The hub commit, where it came from there.
        settings: Its ``config.json``.
        family: Its family.
        config: The encoder that it holds.
        tensors: All of its tensors under the family's names, the encoder's always with the family's prefix.
        extras: Its ``bothways.json``; empty where there is none.
    """

    folder: Path
    name: str
    revision: str | None
    settings: dict[str, object]
    family: Family
    config: EncoderConfig
    tensors: Mapping[str, Tensor]
    extras: Mapping[str, object]

    def build_encoder(self) -> Encoder:
        """The encoder with this checkpoint's weights.

        Raises:
            IncompatibleWeights: Tensors are missing, left over, or of another shape than ``config.json`` says.
        """
        known = known_names(self.family.rows, self.config, self.family.prefix)
        left_over = sorted(name for name in self.tensors if name.startswith(self.family.prefix) and name not in known)
        if left_over:
            raise IncompatibleWeights(
                f"{self.name!r} has {len(left_over)} encoder tensors that a {self.family.title} model with this "
                f"config.json does not have: {_some(left_over)}. config.json and the weights do not belong together."
            )
        with torch.device("meta"):
            encoder = Encoder(self.config)
        return self._fill(encoder, self._encoder_weights())

    def build_pooler(self) -> Pooler | None:
        """The pooler, or None where this checkpoint has no weights for one."""
        weights = {name.removeprefix("pooler."): value for name, value in self._encoder_weights(poolers=True).items()}
        if not weights:
            return None
        with torch.device("meta"):
            pooler = Pooler(self.config)
        return self._fill(pooler, weights)

    def build_sequence_head(self) -> SequenceHead:
        """The trained sequence head.

        Raises:
            IncompatibleWeights: The checkpoint has none, or not the whole of it.
        """
        with torch.device("meta"):
            head = SequenceHead(self.config, self.family.sequence_kind, self.sequence_classes() or 1)
        return self._fill(head, self._sequence_weights())

    def new_sequence_head(self, classes: int) -> SequenceHead:
        """A sequence head to train: what pre-training left of it (a pooler, in some families), the rest drawn."""
        head = SequenceHead(self.config, self.family.sequence_kind, classes)
        stored = self._sequence_weights()
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if name in stored and stored[name].shape == parameter.shape:
                    parameter.copy_(stored[name])
        return head

    def sequence_classes(self) -> int | None:
        """Classes of the trained sequence head, or None where this checkpoint has no such head."""
        output = self._sequence_weights().get("output.weight")
        return None if output is None else output.shape[0]

    def build_masked_lm_head(self) -> MaskedLMHead:
        """The masked language modelling head.

        Raises:
            IncompatibleWeights: The checkpoint has none, or one of another shape.
            UnsupportedConfig: Its output matrix is not tied to the token embedding.
        """
        if self.settings.get("tie_word_embeddings") is False:
            raise UnsupportedConfig("config.json sets tie_word_embeddings to False, which is not built; only True is.")
        with torch.device("meta"):
            head = MaskedLMHead(self.config, self.family.masked_lm_kind)
        weights = read_weights(self.family.masked_lm.rows, self.config, self.tensors)
        return self._fill(head, {name.removeprefix("head."): value for name, value in weights.items()})

    def _encoder_weights(self, *, poolers: bool = False) -> dict[str, Tensor]:
        weights = read_weights(self.family.rows, self.config, self.tensors, self.family.prefix)
        return {name: value for name, value in weights.items() if name.startswith("pooler.") is poolers}

    def _sequence_weights(self) -> dict[str, Tensor]:
        weights = read_weights(self.family.sequence.rows, self.config, self.tensors)
        return {name.removeprefix("head."): value for name, value in weights.items()}

    def _fill(self, module: M, weights: Mapping[str, Tensor]) -> M:
        """Give a module without memory its weights, all of them and in the right shapes."""
        expected = module.state_dict()
        missing = sorted(set(expected) - set(weights))
        if missing:
            raise IncompatibleWeights(
                f"{self.name!r} lacks {len(missing)} of the {len(expected)} tensors that its config.json calls for: "
                f"{_some(missing)}."
            )
        misshapen = [
            f"{name} should be {tuple(value.shape)} but is {tuple(weights[name].shape)}"
            for name, value in expected.items()
            if weights[name].shape != value.shape
        ]
        if misshapen:
            raise IncompatibleWeights(
                f"{self.name!r} has {len(misshapen)} tensors of another shape than its config.json says: "
                f"{_some(misshapen)}."
            )
        whole = sorted(name for name in expected if not weights[name].is_floating_point())
        if whole:
            raise IncompatibleWeights(
                f"{self.name!r} should hold floating point weights, but {len(whole)} tensors are not: {_some(whole)}. "
                "Quantised weights are not read."
            )
        module.load_state_dict({name: weights[name] for name in expected}, assign=True)
        return module.eval()


def open_checkpoint(
    name_or_path: str | Path, *, revision: str | None = None, download: bool = False, allow_pickle: bool = False
) -> Checkpoint:
    """Open a checkpoint in the ecosystem's layout: ``config.json`` beside ``model.safetensors``.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        revision: The commit that a hub name is pinned to.
        download: Whether the hub may be asked for it.
        allow_pickle: Whether a ``.bin`` file may be read, after a scan, where there is nothing else.

    Raises:
        UnknownModel: No such model, a file is missing, or its family is not known.
        UnsafeCheckpoint: Its weights are a pickle, and that was not allowed or holds code.
        CorruptCheckpoint: A file is truncated or altered.
        UnsupportedConfig: Its configuration asks for something that is not built.
        OfflineError: It would have to be downloaded, and that was not asked for or failed.
    """
    located = locate(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
    settings = read_json(located.folder / "config.json")
    family = family_of(settings.get("model_type"))
    config = family.config(settings)
    extras = read_json(located.folder / OURS) if (located.folder / OURS).is_file() else {}
    _check_version(extras)
    verify_checksums(located.folder, _checksums(extras))
    tensors = family.canonical(read_tensors(located.folder, allow_pickle=allow_pickle))
    return Checkpoint(located.folder, located.name, located.revision, settings, family, config, tensors, extras)


def fingerprint(folder: Path) -> str:
    """SHA-256 of the weight files of a checkpoint folder, joined: two models are the same where theirs are."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return "+".join(sha256_of(folder / name) for name in names)


def _check_version(extras: Mapping[str, object]) -> None:
    version = extras.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise UnsupportedConfig(
            f"{OURS} has the format version {version!r}, but this version of bothways reads {FORMAT_VERSION}. "
            "Open the model with the version that saved it."
        )


def _checksums(extras: Mapping[str, object]) -> dict[str, str]:
    checksums = extras.get("checksums", {})
    if not isinstance(checksums, dict):
        raise CorruptCheckpoint(f"checksums in {OURS} must map file names to SHA-256, but they are {checksums!r}.")
    return {str(name): str(value) for name, value in checksums.items()}


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
