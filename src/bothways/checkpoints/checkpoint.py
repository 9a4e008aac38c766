"""An opened checkpoint folder: its model family, its configuration and its weights.

The folder has the layout of Hugging Face models; everything that this package adds to it is in ``bothways.json``.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from bothways.checkpoints.files import INT8_WEIGHTS, read_int8, read_json, verify_checksums
from bothways.checkpoints.hub import LocatedModel, is_exported, locate, no_weights
from bothways.checkpoints.pickling import FolderTensors, ModelFolder, remember_source
from bothways.checkpoints.schema import OURS, Extras, Stored
from bothways.encoder.config import AbsolutePositions, DisentangledPositions, EncoderConfig, OwnWeights
from bothways.encoder.encoder import Encoder, linear_weights
from bothways.encoder.head_kinds import HeadKind, MaskedLMHeadKind
from bothways.encoder.heads import Head, MaskedLMHead, Pooler, ScoreHead, new_head
from bothways.encoder.int8 import largest_pair
from bothways.encoder.linear import hold, hold_bfloat16
from bothways.errors import IncompatibleWeights, InvalidInput, TensorsLeftOver, UnknownModel, UnsupportedConfig
from bothways.families import FAMILIES, Family, HeadName, family_in
from bothways.families.family import variants
from bothways.families.layout import Ignored, expand, known_names, quantization_of, read_weights
from bothways.lazy import imported
from bothways.products import has_bfloat16_product
from bothways.progress import phase

M = TypeVar("M", bound=nn.Module)

# The model_type of widely used decoders and encoder-decoders.
_DECODER_NAMES = """
bart bigbird_pegasus blenderbot bloom codegen cohere ctrl deepseek_v3 falcon gemma gemma2 gemma3 gemma3_text glm gpt2
gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite led llama llama4 longt5 m2m_100 mamba marian mbart mistral mixtral mpt
mt5 nemotron olmo olmo2 openai-gpt opt pegasus phi phi3 prophetnet qwen2 qwen2_moe qwen3 qwen3_moe rwkv smollm3 stablelm
starcoder2 t5 umt5 xglm
"""
DECODERS = frozenset(_DECODER_NAMES.split())
ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        folder: The folder.
        name: The name or path that the caller gave.
        revision: The hub commit, or None.
        settings: The content of its ``config.json``.
        family: Its family, such as BERT.
        config: The configuration of its encoder.
        tensors: All tensors under their names in transformers, the encoder's always with the family's prefix.
        extras: The content of its ``bothways.json``; empty without this file.
    """

    folder: Path
    name: str
    revision: str | None
    settings: dict[str, object]
    family: Family
    config: EncoderConfig
    tensors: Mapping[str, Tensor]
    extras: Extras

    @property
    def allow_pickle(self) -> bool:
        """True if a ``.bin`` file may be read, after a scan."""
        return isinstance(self.tensors, FolderTensors) and self.tensors.folder.allow_pickle

    def build_encoder(self) -> Encoder:
        """Return the encoder with this checkpoint's weights."""
        known = known_names(self.family.rows, self.config, self.family.prefix)
        left_over = sorted(name for name in self.tensors if name.startswith(self.family.prefix) and name not in known)
        if left_over:
            other = imported("bothways.families.others:recognise")(self.settings, left_over)
            raise IncompatibleWeights(
                (f"this is {other}: not built yet. " if other else "")
                + f"{self.name!r} has {len(left_over)} encoder tensors that a {self.family.title} model with this "
                f"config.json does not have: {some(left_over)}. config.json and the weights do not belong together."
            )
        with torch.device("meta"):
            encoder = Encoder(self.config)
        fill(self.name, encoder, self._encoder_weights())
        if (described := quantization_of(self.settings)) is not None:
            hold_int8(encoder, self.folder, described)
        return self._remembered(encoder, Checkpoint.build_encoder)

    def build_pooler(self) -> Pooler | None:
        """Return the pooler with this checkpoint's weights, or None if it has no weights for a pooler."""
        weights = {name.removeprefix("pooler."): value for name, value in self._encoder_weights(poolers=True).items()}
        if not weights:
            return None
        with torch.device("meta"):
            pooler = Pooler(self.config)
        return self._remembered(fill(self.name, pooler, weights), Checkpoint.build_pooler)

    def heads(self) -> tuple[HeadName, ...]:
        """Return the heads that this checkpoint has weights for.

        If two heads of a family have the same tensor names, ``architectures`` in ``config.json`` decides which one the
        checkpoint has; without this setting, it has both.
        """
        return tuple(name for name in self.family.heads if self._has_head(name))

    def build_head(self, name: str) -> Head:
        """Return a trained head with this checkpoint's weights."""
        stored = self.family.head(name, self.settings)
        self._check_tied(stored.kind)
        weights = self._head_weights(name)
        with torch.device("meta"):
            head = new_head(self.config, stored.kind, self.score_count(name) or 1)
        if not self._own_names(name) & self._free_tensors(name).keys():
            raise IncompatibleWeights(
                f"{self.name!r} holds no {name} head: it lacks {len(head.state_dict())} of the "
                f"{len(head.state_dict())} tensors. Heads that it holds: {', '.join(self.heads()) or 'none'}. Train "
                "one, or take a checkpoint that was trained with it."
            )
        return self._remembered(fill(self.name, head, weights), Checkpoint.build_head, name)

    def build_score_head(self, name: str) -> ScoreHead:
        """Return a trained head that gives scores; raise InvalidInput if this head does not."""
        return _scoring(name, self.build_head(name))

    def build_masked_lm_head(self) -> MaskedLMHead:
        """Return the trained masked LM head; raise InvalidInput if it does not give vocabulary logits."""
        return self._for_vocabulary(self.build_head("masked_lm"))

    def new_score_head(self, name: str, labels: int = 1) -> ScoreHead:
        """Return a head to train, with pre-trained tensors where they exist (a pooler, in some families), else random.

        The output layer is always random, since that of a trained head belongs to other labels.
        """
        head = _scoring(name, new_head(self.config, self.family.head(name, self.settings).kind, labels))
        stored = self._head_weights(name)
        with torch.no_grad():
            for key, parameter in head.named_parameters():
                if not key.startswith("output.") and key in stored and stored[key].shape == parameter.shape:
                    parameter.copy_(stored[key])
        return head

    def new_masked_lm_head(self) -> MaskedLMHead:
        """Return a masked LM head with random weights, for training; the token embeddings are the encoder's."""
        kind = self.family.head("masked_lm", self.settings).kind
        self._check_tied(kind)
        return self._for_vocabulary(new_head(self.config, kind))

    def score_count(self, name: str) -> int | None:
        """Return the number of scores of a trained head, or None if this checkpoint has no such head."""
        output = self._head_weights(name).get("output.weight")
        return None if output is None else output.shape[0]

    def unread(self) -> tuple[str, ...]:
        """Return the names of tensors that belong neither to the encoder nor to any head of the family."""
        known = known_names(self.family.rows, self.config, self.family.prefix)
        for head in self.family.heads:
            known |= self._head_names(head)
        return tuple(sorted(self.tensors.keys() - known))

    def _remembered(self, module: M, build: Callable[..., M | None], *args: str) -> M:
        if not isinstance(self.tensors, FolderTensors):
            return module
        return remember_source(module, partial(_built, replace(self, tensors={}), self.tensors.folder, build, *args))

    def _for_vocabulary(self, head: Head) -> MaskedLMHead:
        if not isinstance(head, MaskedLMHead):
            raise InvalidInput(f"the masked_lm head of {self.family.title} models gives no vocabulary logits.")
        return head

    def _check_tied(self, kind: HeadKind) -> None:
        if isinstance(kind, MaskedLMHeadKind) and self.settings.get("tie_word_embeddings") is False:
            raise UnsupportedConfig(
                "config.json sets tie_word_embeddings to False, which is not supported; only True is."
            )

    def _has_head(self, name: HeadName) -> bool:
        try:
            stored = self.family.head(name, self.settings)
        except UnsupportedConfig:
            return False  # `build_head` raises it
        with torch.device("meta"):
            head = new_head(self.config, stored.kind)
        free = self._free_tensors(name)
        held = {mapped.ours for mapped in expand(stored.rows, self.config) if free.keys() >= set(mapped.theirs)}
        return {f"head.{key}" for key in head.state_dict()} <= held

    def _head_weights(self, name: str) -> dict[str, Tensor]:
        rows = self.family.head(name, self.settings).rows
        weights = read_weights(rows, self.config, self._free_tensors(name))
        return {key.removeprefix("head."): value for key, value in weights.items()}

    def _free_tensors(self, name: str) -> Mapping[str, Tensor]:
        """Return the tensors that may belong to this head: all but those of other heads named in ``config.json``."""
        named = self.family.architecture_heads(self.settings)
        if name in named:
            return self.tensors
        taken = {own for other in named for own in self._own_names(other)}
        return {key: value for key, value in self.tensors.items() if key not in taken}

    def _own_names(self, name: str) -> set[str]:
        """Return the names of a head's own tensors, without a pooler that several heads share."""
        names = self._head_names(self.family.head_name(name))
        return {known for known in names if not known.startswith(self.family.prefix)}

    def _head_names(self, name: HeadName) -> set[str]:
        return {
            known
            for stored in variants(name, self.family.heads[name])
            for known in known_names(stored.rows, self.config)
        }

    def _encoder_weights(self, *, poolers: bool = False) -> dict[str, Tensor]:
        named = (row for row in self.family.rows if not isinstance(row, Ignored))
        rows = [row for row in named if row.ours.startswith("pooler.") is poolers]
        return read_weights(rows, self.config, self.tensors, self.family.prefix)


def open_checkpoint(
    name_or_path: str | Path | LocatedModel,
    *,
    revision: str | None = None,
    download: bool = False,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Open a checkpoint in the layout of Hugging Face models: ``config.json`` beside ``model.safetensors``.

    Args:
        name_or_path: A folder, a name such as ``sentence-transformers/all-MiniLM-L6-v2``, or a located model.
        revision: The commit of a model on the hub. Default: the commit recorded by its download.
        download: Allow a download from the hub.
        allow_pickle: Read a ``.bin`` file, after a scan, if there are no weights in another format.

    Raises:
        UnknownModel: There is no such model, a file is missing, or its family is unknown or consists of decoders.
        InvalidInput: It is an ONNX export.
        UnsafeCheckpoint: Its weights are a pickle, which is not allowed or holds code.
        CorruptCheckpoint: A file is truncated or was changed.
        IncompatibleWeights: Its configuration has larger sizes than the weights.
        UnsupportedConfig: A setting is not supported.
        OfflineError: It needs a download that is not allowed or failed.
    """
    located = (
        name_or_path
        if isinstance(name_or_path, LocatedModel)
        else locate(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
    )
    if is_exported(located.folder):
        raise no_weights(located.name, "open")
    settings = read_json(located.folder / "config.json")
    _check_encoder(settings)
    family = family_in(settings)
    config = family.config(settings)
    extras = read_json(located.folder / OURS) if (located.folder / OURS).is_file() else {}
    verify_checksums(located.folder, Stored.of(extras).checksums)
    folder = ModelFolder(located.folder, family, allow_pickle)
    tensors = FolderTensors(folder, folder.read())
    check_sizes(located.name, config, tensors)
    return Checkpoint(located.folder, located.name, located.revision, settings, family, config, tensors, extras)


def _built(checkpoint: Checkpoint, folder: ModelFolder, build: Callable[..., M | None], *args: str) -> M:
    part = build(replace(checkpoint, tensors=folder.read()), *args)
    if part is None:
        raise IncompatibleWeights(f"{str(folder.path)!r} lacks tensors that it had before. Put them back.")
    return part


def _scoring(name: str, head: Head) -> ScoreHead:
    if not isinstance(head, ScoreHead):
        raise InvalidInput(f"a {name} head gives a logit for each entry of the vocabulary, not scores.")
    return head


def warn_of_unread(checkpoint: Checkpoint) -> None:
    """Warn of tensors that are not read, with `TensorsLeftOver`."""
    left_over = list(checkpoint.unread())
    if left_over:
        warnings.warn(
            TensorsLeftOver(
                f"{checkpoint.name!r} has {len(left_over)} tensors that belong neither to the encoder nor to a head of "
                f"a {checkpoint.family.title} model, and were not read: {some(left_over)}."
            ),
            stacklevel=3,
        )


def hold_int8(encoder: Encoder, folder: Path, described: Mapping[str, object]) -> None:
    """Make an encoder compute with its folder's int8 weights, and with bfloat16 in other layers, if this machine can.

    Otherwise it computes with the rounded weights in float32, which is slower. ``described`` is the entry for
    quantization in ``config.json``, which names the layers in bfloat16.
    """
    maps = read_int8(folder)
    parameters = dict(encoder.named_parameters())
    for name, each in maps.items():
        if name not in parameters or parameters[name].shape != each.codes_OI.shape:
            raise IncompatibleWeights(
                f"{str(folder / INT8_WEIGHTS)!r} holds {name} {tuple(each.codes_OI.shape)}, which the encoder of "
                "config.json does not have. The files do not belong together: get the model again."
            )
    if not all(each.is_fast for each in maps.values()):
        why = (
            "this processor has no VNNI, for which this model was quantized (quantize --portable supports both)"
            if largest_pair()
            else "this processor or torch has no int8 multiplication"
        )
        phase(f"{why}: the rounded weights are used in float32, which is slower")
        return
    for name, each in maps.items():
        hold(parameters[name], each)
    if maps and has_bfloat16_product() and isinstance(layers := described.get("bfloat16"), list):
        names = {f"layers.{name}.weight" for name in layers}
        hold_bfloat16(weight for name, weight in linear_weights(encoder).items() if name in names)


def _check_encoder(settings: Mapping[str, object]) -> None:
    """Raise UnknownModel for a decoder's ``config.json``, UnsupportedConfig for an encoder that generates text."""
    model_type = settings.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    sign = _sign_of_decoder(settings, model_type, () if family is None else family.architectures)
    if sign is None:
        return
    message = (
        f"this is a decoder: config.json {sign}. Decoders generate text from left to right; bothways supports only "
        "encoders. To generate, open it with a library that runs decoders; to classify, tag, embed or search, take an "
        f"encoder of one of the families {', '.join(FAMILIES)}, such as 'sentence-transformers/all-MiniLM-L6-v2'."
    )
    raise UnknownModel(message) if family is None else UnsupportedConfig(message)


def _sign_of_decoder(settings: Mapping[str, object], model_type: object, encoders: Collection[str]) -> str | None:
    if isinstance(model_type, str) and model_type in DECODERS:
        return f"names the model_type {model_type!r}"
    for name in ("is_decoder", "is_encoder_decoder"):
        if settings.get(name) is True:
            return f"sets {name} to True"
    architectures = settings.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(named, str) and named.endswith(ENDINGS) and named not in encoders:
        return f"names the architecture {named!r}"
    return None


def fill(checkpoint: str, module: M, weights: Mapping[str, Tensor]) -> M:
    """Check the shapes of weights, and load them into a module on the meta device; other weights are ignored."""
    expected = module.state_dict()
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise IncompatibleWeights(
            f"{checkpoint!r} lacks {len(missing)} of the {len(expected)} tensors that its config.json requires: "
            f"{some(missing)}."
        )
    misshapen = [
        f"{name} should be {tuple(value.shape)} but is {tuple(weights[name].shape)}"
        for name, value in expected.items()
        if weights[name].shape != value.shape
    ]
    if misshapen:
        raise IncompatibleWeights(
            f"{checkpoint!r} has {len(misshapen)} tensors of another shape than its config.json says: "
            f"{some(misshapen)}."
        )
    module.load_state_dict({name: weights[name] for name in expected}, assign=True)
    return module.eval()


def check_sizes(checkpoint: str, config: EncoderConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise IncompatibleWeights if sizes in a configuration exceed those of the tensors, before memory is allocated."""
    sharing, positions = config.sharing, config.positions
    layers = config.layers if isinstance(sharing, OwnWeights) else sharing.groups * sharing.inner
    largest = max((size for value in tensors.values() for size in value.shape), default=0)
    sizes = {
        "vocabulary": config.vocabulary,
        "hidden size": config.hidden,
        "embedding width": config.embedding.width,
        "number of token types": config.embedding.types,
        "feed-forward width": config.feed_forward.width,
        "number of positions": positions.count if isinstance(positions, AbsolutePositions) else 0,
        "span of distances": positions.distances.span if isinstance(positions, DisentangledPositions) else 0,
    }
    for name, size, limit in (
        ("number of layers", layers, len(tensors)),
        *((*each, largest) for each in sizes.items()),
    ):
        if size > limit:
            raise IncompatibleWeights(
                f"{checkpoint!r} has {len(tensors)} tensors with sizes up to {largest}, but config.json gives a {name} "
                f"of {size}. config.json and the weights do not belong together."
            )


def some(names: list[str], shown: int = 5) -> str:
    """Join the first names, and append the number of names that are left out."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
