"""How a checkpoint folder says that it is a sentence embedder: in the ecosystem's files, and in ``bothways.json``.

The ecosystem's files are those of sentence-transformers: ``modules.json``, ``sentence_bert_config.json``,
``1_Pooling/config.json`` and ``config_sentence_transformers.json``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bothways.checkpoints.files import read_json
from bothways.checkpoints.save import write_json
from bothways.errors import CorruptCheckpoint, InvalidInput, UnsupportedConfig
from bothways.tasks.embedding.pooling import Pooling, check_pooling
from bothways.checkpoints.stored import damaged, stored_length, stored_overflow, stored_whole
from bothways.text import Overflow

TASK = "embedding"

# Three files of one layout: its old and new names of the poolings, and the modules that are computed here.
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


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How texts become vectors.

    Attributes:
        pooling: From token states to one vector.
        unit_length: Whether vectors are scaled to length 1, so that their inner product is the cosine.
        dimensions: Leading dimensions kept; all when None.
        max_length: Most tokens in a window, special ones included.
        on_overflow: What becomes of longer texts.
        stride: Tokens that neighbouring windows share; a quarter of a window's room when None.
    """

    pooling: Pooling
    unit_length: bool
    dimensions: int | None
    max_length: int
    on_overflow: Overflow
    stride: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The part of `EmbeddingSettings` that a folder names; None where it does not."""

    pooling: Pooling | None
    unit_length: bool | None
    dimensions: int | None
    max_length: int | None
    on_overflow: Overflow | None
    stride: int | None


def read_settings(
    folder: Path, extras: Mapping[str, object], *, hidden: int, limit: int, cls_is_last: bool
) -> StoredSettings:
    """What a folder says; ``bothways.json`` before the ecosystem's files.

    Args:
        folder: The checkpoint.
        extras: Its ``bothways.json``.
        hidden: Width of the encoder.
        limit: Most tokens that it reads.
        cls_is_last: Whether the tokenizer puts [CLS] at the end (XLNet).

    Raises:
        UnsupportedConfig: The embedder has modules or a pooling that are not built.
        CorruptCheckpoint: A file is damaged.
    """
    _check_modules(folder)
    unit_length = extras.get("unit_length")
    if unit_length is not None and not isinstance(unit_length, bool):
        raise damaged("unit_length", "true or false", unit_length)
    return StoredSettings(
        pooling=_own_pooling(extras) or _pooling(folder, cls_is_last=cls_is_last),
        unit_length=unit_length,
        dimensions=stored_whole(extras, "dimensions", hidden) or _whole(folder / _GENERAL, "truncate_dim", hidden),
        max_length=stored_length(extras, limit) or _whole(folder / LENGTH_FILE, "max_seq_length", limit),
        on_overflow=stored_overflow(extras),
        stride=stored_whole(extras, "stride", limit - 1, least=0),
    )


def settings_to_store(settings: EmbeddingSettings) -> dict[str, object]:
    """What ``bothways.json`` says of an embedder."""
    return {
        "task": TASK,
        "pooling": settings.pooling,
        "unit_length": settings.unit_length,
        "dimensions": settings.dimensions,
        "max_length": settings.max_length,
        "on_overflow": settings.on_overflow,
        "stride": settings.stride,
    }


def write_sentence_layout(folder: Path, hidden: int, settings: EmbeddingSettings, *, cls_is_last: bool) -> None:
    """Write the files that make a checkpoint a sentence embedder for the ecosystem.

    What is called the [CLS] token there is the first token of a text, so an XLNet's is stored as its last token.
    """
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if settings.unit_length else {})
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(paths.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / LENGTH_FILE, {"max_seq_length": settings.max_length, "do_lower_case": False})
    write_json(folder / _GENERAL, {"truncate_dim": settings.dimensions})
    for path in filter(None, paths.values()):
        (folder / path).mkdir()
    # The old keys, one for each pooling: new releases read them too.
    modes = {key: pooling == settings.pooling for pooling, key in OLD_KEYS.items()}
    if cls_is_last:
        modes |= {OLD_KEYS["cls"]: False, LAST_TOKEN: settings.pooling == "cls"}
    write_json(folder / _POOLING, {"word_embedding_dimension": hidden, **modes})


_GENERAL = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"
_POOLING = Path("1_Pooling", "config.json")
_OLD_NAMES = {OLD_KEYS[pooling]: name for name, pooling in NEW_NAMES.items()} | {LAST_TOKEN: "lasttoken"}


def _check_modules(folder: Path) -> None:
    """Refuse an embedder that computes more than is computed here: its vectors would come out different."""
    path = folder / "modules.json"
    if not path.is_file():
        return
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON list of modules with a type, but it is not.") from error
    unknown = [kind for kind in kinds if kind not in MODULES]
    if unknown:
        raise UnsupportedConfig(
            f"{str(path)!r} puts the modules {', '.join(unknown)} into its sentence embedder, which are not built; "
            f"only {', '.join(MODULES)} are."
        )


def _own_pooling(extras: Mapping[str, object]) -> Pooling | None:
    value = extras.get("pooling")
    try:
        return None if value is None else check_pooling(value)
    except InvalidInput as error:
        raise damaged("pooling", "the name of a pooling", value) from error


def _pooling(folder: Path, *, cls_is_last: bool) -> Pooling | None:
    if not (folder / _POOLING).is_file():
        return None
    stored = read_json(folder / _POOLING)
    named: list[object] = [name for key, name in _OLD_NAMES.items() if stored.get(key) is True]
    chosen = [stored["pooling_mode"]] if stored.get("pooling_mode") is not None else named
    known = NEW_NAMES
    if cls_is_last:
        known = {name: pooling for name, pooling in NEW_NAMES.items() if pooling != "cls"} | {"lasttoken": "cls"}
    only = chosen[0] if len(chosen) == 1 else None
    if isinstance(only, str) and only in known:
        return known[only]
    hint = " There it is the first token, while this tokenizer's [CLS] is the last." if only == "cls" else ""
    raise UnsupportedConfig(
        f"{str(folder / _POOLING)!r} must choose one of the poolings {', '.join(known)}, "
        f"but it chooses {', '.join(map(str, chosen)) or 'none of them'}.{hint}"
    )


def _whole(path: Path, name: str, highest: int) -> int | None:
    """A whole number in a file of the ecosystem; no more than ``highest``, as there too."""
    value = read_json(path).get(name) if path.is_file() else None
    return min(value, highest) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
