"""Files in the layouts of Hugging Face: writing them for other libraries, and reading those of sentence-transformers.

``modules.json`` lists the modules of sentence-transformers in their order, and ``1_Pooling/config.json`` configures the
pooling of the tokens' hidden states.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from bothways.checkpoints.files import HEAD_WEIGHTS, WEIGHTS, read_json, sha256_of
from bothways.checkpoints.schema import FORMAT_VERSION, OURS
from bothways.choices import Pooling
from bothways.encoder.config import EncoderConfig
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
from bothways.families import Family
from bothways.families.family import HEAD_FOLDER, HEAD_POOLING, PAIR, beside_settings
from bothways.families.layout import WeightRow, write_weights
from bothways.reading import parse_json, read_bytes
from bothways.storage import give_usual_mode

if TYPE_CHECKING:
    from torch import Tensor, nn


# The names of the poolings in old and new releases of sentence-transformers, and the supported modules.
OLD_KEYS: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "weighted_mean": "pooling_mode_weightedmean_tokens",
    "mean_sqrt_length": "pooling_mode_mean_sqrt_len_tokens",
}
LAST_TOKEN = "pooling_mode_lasttoken"
NEW_NAMES: dict[str, Pooling] = {
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
}
MODULES = ("Transformer", "Pooling", "Normalize")

POOLING_FILE = Path("1_Pooling", "config.json")
LENGTH_FILE = "sentence_bert_config.json"
_OLD_NAMES = {OLD_KEYS[pooling]: name for name, pooling in NEW_NAMES.items()} | {LAST_TOKEN: "lasttoken"}
_HEAD = f"{HEAD_FOLDER}/"


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
        max_length = None if extras is None else extras.get("max_length")
        _write_head(folder, head, max_length, of_pairs=settings.get(HEAD_POOLING) == PAIR)
    if extras is not None:
        files = sorted(folder.rglob("*.safetensors"))
        checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
        write_json(folder / OURS, {"format_version": FORMAT_VERSION, **extras, "checksums": checksums})


def write_json(path: Path, content: Mapping[str, object] | Sequence[object]) -> None:
    """Write a JSON object or list, indented, in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file, or raise the operating system's OSError."""
    from safetensors.torch import save_file

    on_host = {name: value.cpu() for name, value in tensors.items()}
    with _written(path):
        save_file(on_host, path, metadata={"format": "pt"})


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write one safetensors file of NumPy arrays, or raise the operating system's OSError."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    with _written(path):
        save_file(contiguous, path, metadata={"format": "pt"})


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Convert errors of safetensors to the operating system's error that they mention; set the usual file mode."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found.group(1)) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    # The library makes it readable for its owner only.
    give_usual_mode(path)


def write_modules(folder: Path, behind: Mapping[str, str]) -> None:
    """Write ``modules.json`` for the encoder and the modules ``behind`` it (kind to folder); create their folders."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate({"Transformer": "", **behind}.items())
    ]
    write_json(folder / "modules.json", modules)
    for path in behind.values():
        (folder / path).mkdir()


def write_pooling(folder: Path, hidden: int, pooling: Pooling, *, cls_is_last: bool) -> None:
    """Write the configuration of the pooling.

    In this format [CLS] is the first token of a text, so the [CLS] of XLNet, which is last, is stored as "last token".
    """
    # The old keys, one per pooling, which new releases read too.
    modes = {key: known == pooling for known, key in OLD_KEYS.items()}
    if cls_is_last:
        modes |= {OLD_KEYS["cls"]: False, LAST_TOKEN: pooling == "cls"}
    write_json(folder / POOLING_FILE, {"word_embedding_dimension": hidden, **modes})


def write_length(folder: Path, max_length: object) -> None:
    """Write the maximum number of tokens of a text into ``sentence_bert_config.json``."""
    write_json(folder / LENGTH_FILE, {"max_seq_length": max_length, "do_lower_case": False})


def embeds_mean(folder: Path, *, cls_is_last: bool) -> bool:
    """Return True if the folder is set to mean pooling, and lists no modules but `MODULES`."""
    try:
        check_modules(folder)
        return stored_pooling(folder, cls_is_last=cls_is_last) == "mean"
    except UnsupportedConfig:
        return False


def check_modules(folder: Path) -> None:
    """Raise UnsupportedConfig if ``modules.json`` lists other modules than `MODULES`: these would change vectors."""
    path = folder / "modules.json"
    if not path.is_file():
        return
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in parse_json(read_bytes(path))]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON list of modules with a type, but it is not.") from error
    unknown = [kind for kind in kinds if kind not in MODULES]
    if unknown:
        raise UnsupportedConfig(
            f"{str(path)!r} lists the modules {', '.join(unknown)}, which are not supported; "
            f"only {', '.join(MODULES)} are."
        )


def stored_pooling(folder: Path, *, cls_is_last: bool) -> Pooling | None:
    """Return the pooling in ``1_Pooling/config.json``, or None without this file."""
    if not (folder / POOLING_FILE).is_file():
        return None
    stored = read_json(folder / POOLING_FILE)
    named: list[object] = [name for key, name in _OLD_NAMES.items() if stored.get(key) is True]
    chosen = [stored["pooling_mode"]] if stored.get("pooling_mode") is not None else named
    known = NEW_NAMES
    if cls_is_last:
        known = {name: pooling for name, pooling in NEW_NAMES.items() if pooling != "cls"} | {"lasttoken": "cls"}
    only = chosen[0] if len(chosen) == 1 else None
    if isinstance(only, str) and only in known:
        return known[only]
    hint = " 'cls' is the first token, but the [CLS] of this tokenizer is the last." if only == "cls" else ""
    raise UnsupportedConfig(
        f"{str(folder / POOLING_FILE)!r} must choose one of the poolings {', '.join(known)}, "
        f"but it chooses {', '.join(map(str, chosen)) or 'none of them'}.{hint}"
    )


def _write_head(folder: Path, head: Mapping[str, Tensor], max_length: object, *, of_pairs: bool) -> None:
    """Write the linear layer of a head that is stored beside the encoder.

    sentence-transformers can open the folder: it returns the head's outputs, or, for pairs, the embedding of each text.
    """
    if max_length is not None:
        write_length(folder, max_length)
    labels, width = head["linear.weight"].shape
    hidden = (width - 1) // 3 if of_pairs else width
    write_modules(
        folder,
        {"Pooling": POOLING_FILE.parent.name, **({"Normalize": "2_Normalize"} if of_pairs else {"Dense": HEAD_FOLDER})},
    )
    write_pooling(folder, hidden, "mean", cls_is_last=False)
    (folder / HEAD_FOLDER).mkdir(exist_ok=True)
    dense = {"in_features": width, "out_features": labels, "bias": True}
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(folder / HEAD_FOLDER / "config.json", {**dense, **activation})
    write_tensors(folder / HEAD_WEIGHTS, head)


def _precision(settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the settings for the precision in which transformers loads the weights."""
    floating = {str(value.dtype).removeprefix("torch.") for value in tensors.values() if value.is_floating_point()}
    if len(floating) != 1:
        return {}
    return {key: next(iter(floating)) for key in ("dtype", "torch_dtype") if key in settings}


def _collect(modules: tuple[tuple[str, nn.Module], ...]) -> dict[str, Tensor]:
    return {prefix + name: value for prefix, module in modules for name, value in module.state_dict().items()}
