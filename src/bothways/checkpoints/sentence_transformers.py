"""Folders of models in the layouts of transformers and sentence-transformers.

Models are written for both libraries; the settings of an embedder are also read.

``modules.json`` lists the modules in their order: the encoder (``Transformer``), the pooling of its token states
(``Pooling``), and layers on the pooled vector (``Dense``, ``Normalize``), each with a folder for its settings and
weights. ``sentence_bert_config.json`` has the settings of the encoder, ``config_sentence_transformers.json`` prompts,
similarity and truncation. A setting or module that this package does not support is refused with its name, since it
would change the vectors. The meaning of all settings is that of release 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from bothways.checkpoints.files import (
    HEAD_WEIGHTS,
    MODULES_FILE,
    WEIGHTS,
    Known,
    StoredModule,
    read_count,
    read_json,
    read_known,
    sha256_of,
    stored_modules,
    write_arrays,
    write_json,
    write_tensors,
)
from bothways.checkpoints.schema import FORMAT_VERSION, OURS
from bothways.checkpoints.vector_layers import (
    LAYERS,
    DenseLayer,
    NormalizeLayer,
    VectorLayer,
    layer_settings,
    read_layer,
    width_after,
)
from bothways.choices import Pooling, SimilarityName
from bothways.encoder.config import EncoderConfig
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
from bothways.families.family import HEAD_FOLDER, HEAD_POOLING, PAIR, Family, beside_settings
from bothways.families.layout import WeightRow, write_weights
from bothways.text import TextTokenizer
from bothways.text.tokenizer import lowercased

if TYPE_CHECKING:
    from torch import Tensor, nn

POOLING_FOLDER = "1_Pooling"
_HEAD = f"{HEAD_FOLDER}/"
ENCODER_FILE = "sentence_bert_config.json"
# Names of this file in old releases, which depend on the family; the first that exists is read.
_ENCODER_FILES = (
    ENCODER_FILE,
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
GENERAL_FILE = "config_sentence_transformers.json"

# The poolings in the order in which those of an old file are concatenated: our names, theirs, and their old keys.
# Their "cls" is the first token of a text and "lasttoken" the last; see `_pooling_names`.
_POOLINGS: tuple[tuple[Pooling, str, str], ...] = (
    ("cls", "cls", "pooling_mode_cls_token"),
    ("max", "max", "pooling_mode_max_tokens"),
    ("mean", "mean", "pooling_mode_mean_tokens"),
    ("mean_sqrt_length", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    ("weighted_mean", "weightedmean", "pooling_mode_weightedmean_tokens"),
    ("last", "lasttoken", "pooling_mode_lasttoken"),
)
_MODULES = f"Transformer, then Pooling, then any number of {', '.join(LAYERS.values())}"
_PACKAGE = "sentence_transformers."
# The end of the name of a Dense layer that this package adds: it keeps the leading dimensions of a vector.
_CUT = "_Truncate"
# The modules of a folder that lists none.
_USUAL = (StoredModule(f"{_PACKAGE}models.Transformer", ""), StoredModule(f"{_PACKAGE}models.Pooling", POOLING_FOLDER))

# The settings of each file that are supported.
_TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_OF_ENCODER: Known = {
    "max_seq_length": None,
    "do_lower_case": (True, False),
    "transformer_task": ("feature-extraction",),
    "modality_config": (_TEXT_ONLY, {}),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": ({},),
    "unpad_inputs": None,
    "query_length": (),
    "document_length": (),
    "query_expansion": (),
    "model_args": ({},),
    "tokenizer_args": ({},),
    "config_args": ({},),
}
_OF_POOLING: Known = {
    "word_embedding_dimension": None,
    "embedding_dimension": None,
    "pooling_mode": None,
    "include_prompt": (True, False),
    **{key: (True, False) for _, _, key in _POOLINGS},
}
_OF_GENERAL: Known = {
    "__version__": None,
    "model_type": ("SentenceTransformer",),
    "prompts": None,
    "default_prompt_name": None,
    "similarity_fn_name": get_args(SimilarityName),
    "truncate_dim": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSettings:
    """The settings of an embedder in the files of sentence-transformers; None for what no file says.

    Attributes:
        poolings: The poolings, whose vectors are concatenated.
        include_prompt: Pool the tokens of the prompt too.
        layers: The layers on the pooled vector, without a `NormalizeLayer` at the end.
        unit_length: Scale vectors to length 1 after all layers.
        dimensions: Leading dimensions of a vector that are kept before it is scaled.
        truncate_dim: Leading dimensions of a vector that are kept after it is scaled.
        prompts: Texts to prepend to a text, by name.
        default_prompt: The name of the prompt that is prepended unless another is chosen.
        similarity: The function that compares two vectors.
        max_length: Maximum tokens of a text, special tokens included.
    """

    poolings: tuple[Pooling, ...] | None = None
    include_prompt: bool = True
    layers: tuple[VectorLayer, ...] = ()
    unit_length: bool | None = None
    dimensions: int | None = None
    truncate_dim: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: SimilarityName = "cosine"
    max_length: int | None = None

    @classmethod
    def read(cls, folder: Path, *, hidden: int, cls_is_last: bool) -> SentenceSettings:
        """Read the settings of a folder; ``hidden`` is the width of the encoder's token states.

        Raises:
            UnsupportedConfig: A file has a module or a setting that is not supported.
            CorruptCheckpoint: A file is damaged, or its modules do not fit together.
        """
        modules = stored_modules(folder)
        listed = _USUAL if modules is None else _in_order(folder, modules)
        poolings, include_prompt = _pooling(folder / listed[1].folder / "config.json", hidden, cls_is_last=cls_is_last)
        layers = [read_layer(folder, module) for module in listed[2:]]
        if layers:
            width_after(folder, layers, hidden * len(poolings or ("mean",)))
        unit_length, dimensions = bool(layers) and isinstance(layers[-1], NormalizeLayer), None
        if unit_length:
            del layers[-1]
        match layers[-1:]:
            case [DenseLayer() as last] if last.folder.endswith(_CUT):
                dimensions = last.outputs
                del layers[-1]
        general = read_known(folder / GENERAL_FILE, _OF_GENERAL)
        prompts, default_prompt = _prompts(folder / GENERAL_FILE, general)
        names: tuple[SimilarityName, ...] = get_args(SimilarityName)
        chosen = next((name for name in names if name == general.get("similarity_fn_name")), None)
        return cls(
            poolings=poolings,
            include_prompt=include_prompt,
            layers=tuple(layers),
            unit_length=None if modules is None else unit_length,
            dimensions=dimensions,
            truncate_dim=read_count(folder / GENERAL_FILE, general, "truncate_dim"),
            prompts=prompts,
            default_prompt=default_prompt,
            similarity=chosen or "cosine",
            max_length=stored_length(folder),
        )

    def width(self, hidden: int) -> int:
        """Return the width of a vector before it is truncated; ``hidden`` is that of the encoder's token states."""
        outputs = [each.outputs for each in self.layers if isinstance(each, DenseLayer)]
        return outputs[-1] if outputs else hidden * len(self.poolings or ("mean",))

    def write(
        self,
        folder: Path,
        *,
        hidden: int,
        cls_is_last: bool,
        weights: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Write the settings, and the ``weights`` of layers (by their folder), into an existing folder.

        sentence-transformers scales vectors before it truncates them. For vectors that are truncated first, a linear
        layer is added that keeps their leading dimensions.
        """
        layers: list[VectorLayer] = list(self.layers)
        cut = self.dimensions if self.unit_length else None
        if cut is not None:
            name, inputs = f"{len(layers) + 2}{_CUT}", self.width(hidden)
            layers.append(DenseLayer(name, inputs, cut, bias=False, activation="Identity", residual=False))
        if self.unit_length:
            layers.append(NormalizeLayer(f"{len(layers) + 2}_Normalize"))
        listed = [("Transformer", ""), ("Pooling", POOLING_FOLDER)]
        listed += [(LAYERS[type(each)], each.folder) for each in layers]
        write_json(
            folder / MODULES_FILE,
            [
                {"idx": place, "name": str(place), "path": name, "type": f"{_PACKAGE}models.{kind}"}
                for place, (kind, name) in enumerate(listed)
            ],
        )
        for _, name in listed:
            (folder / name).mkdir(exist_ok=True)
        write_json(folder / POOLING_FOLDER / "config.json", self._pooling(hidden, cls_is_last=cls_is_last))
        write_json(folder / ENCODER_FILE, {"max_seq_length": self.max_length, "do_lower_case": False})
        write_json(folder / GENERAL_FILE, self._general())
        for layer in layers:
            if settings := layer_settings(layer):
                write_json(folder / layer.folder / "config.json", settings)
        for name, tensors in (weights or {}).items():
            write_tensors(folder / name / WEIGHTS, tensors)
        if cut is not None:
            kept = np.eye(cut, self.width(hidden), dtype=np.float32)
            write_arrays(folder / f"{len(self.layers) + 2}{_CUT}" / WEIGHTS, {"linear.weight": kept})

    def _pooling(self, hidden: int, *, cls_is_last: bool) -> dict[str, object]:
        theirs = {ours: name for name, ours in _pooling_names(cls_is_last=cls_is_last).items()}
        theirs |= {"first": "cls", "last": "lasttoken"}
        chosen = [theirs[each] for each in self.poolings or ("mean",)]
        settings: dict[str, object] = {"word_embedding_dimension": hidden}
        if chosen == [name for _, name, _ in _POOLINGS if name in chosen]:
            # The old keys, one for each pooling, which all releases read.
            settings |= {key: name in chosen for _, name, key in _POOLINGS}
        else:
            settings["pooling_mode"] = chosen
        return settings if self.include_prompt else {**settings, "include_prompt": False}

    def _general(self) -> dict[str, object]:
        kept = [each for each in (self.truncate_dim, None if self.unit_length else self.dimensions) if each is not None]
        return {
            "prompts": dict(self.prompts),
            "default_prompt_name": self.default_prompt,
            "similarity_fn_name": self.similarity,
            "truncate_dim": min(kept, default=None),
        }


def embeds_mean(folder: Path, *, hidden: int, cls_is_last: bool) -> bool:
    """Return True if the folder is an embedder with mean pooling of all tokens, with or without layers on top."""
    try:
        settings = SentenceSettings.read(folder, hidden=hidden, cls_is_last=cls_is_last)
    except UnsupportedConfig:
        return False
    return settings.poolings == ("mean",) and settings.include_prompt


def is_cross_encoder(folder: Path, settings: Mapping[str, object]) -> bool:
    """Return True if a cross-encoder of any release is in the folder, whose ``config.json`` has these settings."""
    # Up to release 3, from release 4, and from release 5.4 on.
    if {"sbert_ce_default_activation_function", "sentence_transformers"} & settings.keys():
        return True
    path = folder / GENERAL_FILE
    return path.is_file() and read_json(path).get("model_type") == "CrossEncoder"


def stored_length(folder: Path) -> int | None:
    """Return the maximum number of tokens of a text in the files of a folder; None if none says it."""
    path = _encoder_file(folder)
    return read_count(path, read_known(path, _OF_ENCODER), "max_seq_length")


def tokenizer_of(folder: Path, family: Family) -> TextTokenizer:
    """Return the tokenizer of a folder, which converts texts to lower case first if ``do_lower_case`` is set."""
    tokenizer, path = TextTokenizer.from_folder(folder, family.tokenizer), _encoder_file(folder)
    lowers = path.is_file() and read_json(path).get("do_lower_case") is True
    return lowercased(tokenizer) if lowers else tokenizer


def _encoder_file(folder: Path) -> Path:
    return next((folder / name for name in _ENCODER_FILES if (folder / name).is_file()), folder / ENCODER_FILE)


def sentence_files(folder: Path) -> list[str]:
    """Return the paths of the settings, without weights, that a folder has."""
    modules = [f"{each.folder}/config.json" for each in stored_modules(folder) or _USUAL if each.folder]
    return [name for name in (MODULES_FILE, *_ENCODER_FILES, GENERAL_FILE, *modules) if (folder / name).is_file()]


# --- reading ---


def _in_order(folder: Path, modules: Sequence[StoredModule]) -> Sequence[StoredModule]:
    """Refuse modules that are not supported, or are in another order."""
    path = folder / MODULES_FILE
    of_head = [each for each in modules if each.kind == f"{_PACKAGE}models.Dense" and each.folder == HEAD_FOLDER]
    unknown = [
        each.kind if not each.kind.startswith(_PACKAGE) else each.name
        for each in modules
        if each.name not in ("Transformer", "Pooling", *LAYERS.values()) or not each.kind.startswith(_PACKAGE)
    ]
    if unknown or of_head:
        listed = ", ".join(unknown) or "a Dense that is the head of a classifier"
        raise UnsupportedConfig(
            f"{str(path)!r} lists {listed}, which is not supported in an embedder: expected {_MODULES}."
        )
    names = [each.name for each in modules]
    if names[:2] != ["Transformer", "Pooling"] or {*names[2:]} & {"Transformer", "Pooling"} or modules[0].folder:
        raise UnsupportedConfig(
            f"{str(path)!r} lists the modules {', '.join(names)} (the first in {modules[0].folder or '.'!r}), which is "
            f"not supported: expected {_MODULES}, with the encoder in the folder itself."
        )
    return modules


def _pooling_names(*, cls_is_last: bool) -> dict[str, Pooling]:
    """Return our pooling for each of theirs, whose "cls" is the first token: not [CLS] if that token is the last."""
    names = {theirs: ours for ours, theirs, _ in _POOLINGS}
    return {**names, "cls": "first", "lasttoken": "cls"} if cls_is_last else names


def _pooling(path: Path, hidden: int, *, cls_is_last: bool) -> tuple[tuple[Pooling, ...] | None, bool]:
    """Return the poolings, None without the file, and whether the tokens of the prompt are pooled too."""
    if not path.is_file():
        return None, True
    stored = read_known(path, _OF_POOLING)
    known = _pooling_names(cls_is_last=cls_is_last)
    chosen: object = stored.get("pooling_mode", [name for _, name, key in _POOLINGS if stored.get(key)] or ["mean"])
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name in known for name in names):
        raise UnsupportedConfig(
            f"{str(path)!r} chooses the pooling {chosen!r:.200}, which is not supported: expected one or several of "
            f"{', '.join(known)}."
        )
    for name in ("word_embedding_dimension", "embedding_dimension"):
        if stored.get(name, hidden) != hidden:
            raise CorruptCheckpoint(
                f"{str(path)!r} pools vectors of {stored[name]!r:.80} dimensions, but those of the encoder have "
                f"{hidden}: they do not belong together."
            )
    return tuple(known[name] for name in names), stored.get("include_prompt") is not False


def _prompts(path: Path, general: Mapping[str, object]) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default prompt."""
    stored, default = general.get("prompts", {}), general.get("default_prompt_name")
    if not isinstance(stored, dict) or not all(isinstance(text, str | None) for text in stored.values()):
        raise CorruptCheckpoint(f"{str(path)!r} must give prompts as an object of texts, but it gives {stored!r:.200}.")
    prompts = {name: text or "" for name, text in stored.items()}
    known = {"query", "document", *prompts}
    if default is not None and default not in known:
        raise CorruptCheckpoint(
            f"{str(path)!r} sets default_prompt_name to {default!r:.80}, which is not one of its prompts: "
            f"{', '.join(prompts) or 'it has none'}."
        )
    return prompts, None if default is None else str(default)


# --- models with and without a head ---


def encoder_tensors(
    family: Family, config: EncoderConfig, *modules: tuple[str, nn.Module], prefix: str = ""
) -> dict[str, Tensor]:
    """Return the tensors of modules, such as an encoder and its pooler, under the family's names.

    Each module comes with our prefix for its names (``""`` for the encoder, ``"pooler."``). ``prefix`` is the family's
    prefix for encoder names in a model with a head.
    """
    return write_weights(family.rows, config, _collect(modules), prefix)


def head_tensors(rows: tuple[WeightRow, ...], config: EncoderConfig, head: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a head under the family's names."""
    return write_weights(rows, config, _collect((("head.", head),)))


def write_model(
    folder: Path,
    settings: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    extras: Mapping[str, object] | None = None,
) -> None:
    """Write ``config.json``, ``model.safetensors`` and, with ``extras``, ``bothways.json`` with checksums.

    ``tensors`` have the family's names; the precision in ``config.json`` is set to theirs.
    """
    head = {name.removeprefix(_HEAD): value for name, value in tensors.items() if name.startswith(_HEAD)}
    beside = beside_settings(settings)
    kept = {name: value for name, value in settings.items() if head or name not in beside}
    write_json(folder / "config.json", {**kept, **_precision(settings, tensors)})
    write_tensors(folder / WEIGHTS, {name: value for name, value in tensors.items() if not name.startswith(_HEAD)})
    if head:
        length = None if extras is None else extras.get("max_length")
        max_length = length if isinstance(length, int) else None
        _write_head(folder, head, max_length, of_pairs=settings.get(HEAD_POOLING) == PAIR)
    if extras is not None:
        files = sorted(folder.rglob("*.safetensors"))
        checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
        write_json(folder / OURS, {"format_version": FORMAT_VERSION, **extras, "checksums": checksums})


def _write_head(folder: Path, head: Mapping[str, Tensor], max_length: int | None, *, of_pairs: bool) -> None:
    """Write the linear layer of a head that is stored beside the encoder.

    sentence-transformers can open the folder: it returns the head's outputs, or, for pairs, the embedding of each text.
    """
    labels, width = head["linear.weight"].shape
    hidden = (width - 1) // 3 if of_pairs else width
    layer = DenseLayer(HEAD_FOLDER, width, labels, bias=True, activation="Identity", residual=False)
    settings = SentenceSettings(
        poolings=("mean",), layers=() if of_pairs else (layer,), unit_length=of_pairs, max_length=max_length
    )
    settings.write(folder, hidden=hidden, cls_is_last=False)
    (folder / HEAD_FOLDER).mkdir(exist_ok=True)
    write_json(folder / HEAD_FOLDER / "config.json", layer_settings(layer))
    write_tensors(folder / HEAD_WEIGHTS, head)


def _precision(settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the settings for the precision in which transformers loads the weights."""
    floating = {str(value.dtype).removeprefix("torch.") for value in tensors.values() if value.is_floating_point()}
    if len(floating) != 1:
        return {}
    return {key: next(iter(floating)) for key in ("dtype", "torch_dtype") if key in settings}


def _collect(modules: tuple[tuple[str, nn.Module], ...]) -> dict[str, Tensor]:
    return {prefix + name: value for prefix, module in modules for name, value in module.state_dict().items()}
