"""The files of sentence-transformers in a checkpoint folder.

``modules.json`` lists the modules in their order, and ``1_Pooling/config.json`` configures the pooling of the tokens'
hidden states.
"""

from pathlib import Path

from bothways.checkpoints.files import read_json
from bothways.choices import Pooling
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
from bothways.reading import parse_json, read_bytes

# The old and new names of the poolings, and the supported modules.
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


def embeds_mean(folder: Path, *, cls_is_last: bool) -> bool:
    """Return True if the vectors of a checkpoint are the mean of the tokens, without further modules."""
    try:
        check_modules(folder)
        return stored_pooling(folder, cls_is_last=cls_is_last) == "mean"
    except UnsupportedConfig:
        return False


def check_modules(folder: Path) -> None:
    """Raise UnsupportedConfig for an embedder with other modules, which would give other vectors."""
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
    """Return the pooling in ``1_Pooling/config.json``, or None without this file.

    Raises:
        UnsupportedConfig: It names no supported pooling, or several.
    """
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
    hint = " There it is the first token, while this tokenizer's [CLS] is the last." if only == "cls" else ""
    raise UnsupportedConfig(
        f"{str(folder / POOLING_FILE)!r} must choose one of the poolings {', '.join(known)}, "
        f"but it chooses {', '.join(map(str, chosen)) or 'none of them'}.{hint}"
    )
