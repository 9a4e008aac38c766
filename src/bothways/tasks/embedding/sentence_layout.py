"""How a checkpoint folder says that it is a sentence embedder: in the ecosystem's files, and in ``bothways.json``.

The ecosystem's files are those of sentence-transformers: ``modules.json``, ``sentence_bert_config.json``,
``1_Pooling/config.json`` and ``config_sentence_transformers.json``. ``bothways.json`` goes before them.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack

from bothways.checkpoints.files import read_json
from bothways.checkpoints.save import write_json
from bothways.checkpoints.schema import StoredVectors, at_most
from bothways.choices import Overflow, Pooling
from bothways.errors import CorruptCheckpoint, InvalidInput, UnsupportedConfig
from bothways.reading import parse_json, read_bytes
from bothways.tasks.embedding.pooling import check_pooling
from bothways.tasks.embedding.spec import EmbeddingOpening
from bothways.tasks.opening import USUAL_LENGTH, OpenedModel, OpenOptions, kept_stride, open_model

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

    def to_dict(self) -> dict[str, object]:
        """Return them as ``bothways.json`` has them."""
        return asdict(self)


def open_sentence_model(name_or_path: str | Path, task: str, **options: Unpack[OpenOptions]) -> OpenedModel:
    """Open a checkpoint that reads as many tokens as its folder says, here or for the ecosystem; see `open_model`.

    Raises:
        InvalidInput: An option is out of range.
        CorruptCheckpoint: A file is damaged. And everything that `bothways.load` raises.
    """
    length, stride = options.pop("max_length", None), options.pop("stride", None)
    opened = open_model(name_or_path, task, **options)
    model, own = opened.model, StoredVectors.of(opened.extras)
    limit = model.config.max_length or USUAL_LENGTH
    stored = at_most("max_length", own.max_length, limit) or _whole(model.folder / LENGTH_FILE, "max_seq_length", limit)
    before = stored or min(model.tokenizer.model_max_length or limit, limit)
    length = before if length is None else check_whole("max_length", length, limit)
    if stride is not None:
        check_whole("stride", stride, length - 1, least=0)
    else:
        special, stored = model.tokenizer.special_count(pair=False), at_most("stride", own.stride, limit - 1)
        stride = kept_stride(stored, length, before, special)
    return replace(opened, reading=replace(opened.reading, max_length=length, stride=stride))


def settings_of(opened: OpenedModel, asked: EmbeddingOpening) -> EmbeddingSettings:
    """Return what is asked for, else what the checkpoint says, else what is usual.

    Raises:
        InvalidInput: A setting is out of range.
        UnsupportedConfig: The checkpoint's embedder has modules or a pooling that are not built.
        CorruptCheckpoint: A file is damaged.
    """
    folder, own, hidden = opened.model.folder, StoredVectors.of(opened.extras), opened.model.config.hidden
    _check_modules(folder)
    pooling = own.pooling or _pooling(folder, cls_is_last=opened.model.tokenizer.cls_is_last) or "mean"
    dimensions = at_most("dimensions", own.dimensions, hidden) or _whole(folder / _GENERAL, "truncate_dim", hidden)
    reading = opened.reading
    stored = EmbeddingSettings(
        pooling, own.unit_length is not False, dimensions, reading.max_length, reading.on_overflow, reading.stride
    )
    return changed(stored, asked, hidden)


def changed(settings: EmbeddingSettings, asked: EmbeddingOpening, hidden: int) -> EmbeddingSettings:
    """Return settings with what is asked for; ``hidden`` is the encoder's width.

    Raises:
        InvalidInput: It is out of range.
    """
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    if "pooling" in given:
        check_pooling(asked.pooling)
    if asked.dimensions is not None:
        check_whole("dimensions", asked.dimensions, hidden)
    return replace(settings, **given)


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
        kinds = [str(module["type"]).rpartition(".")[2] for module in parse_json(read_bytes(path))]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON list of modules with a type, but it is not.") from error
    unknown = [kind for kind in kinds if kind not in MODULES]
    if unknown:
        raise UnsupportedConfig(
            f"{str(path)!r} puts the modules {', '.join(unknown)} into its sentence embedder, which are not built; "
            f"only {', '.join(MODULES)} are."
        )


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
    """Return a whole number in a file of the ecosystem; no more than ``highest``, as there too."""
    value = read_json(path).get(name) if path.is_file() else None
    return min(value, highest) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def check_whole(name: str, value: int, highest: int, *, least: int = 1) -> int:
    """Return a whole number.

    Raises:
        InvalidInput: It is out of its range.
    """
    if not least <= value <= highest:
        raise InvalidInput(f"{name} must lie between {least} and {highest}, but it is {value}.")
    return value
