"""Layout of a sentence embedder's folder: the ecosystem's files, and ``bothways.json``.

The ecosystem's files are those of sentence-transformers: ``modules.json``, ``sentence_bert_config.json``,
``1_Pooling/config.json`` and ``config_sentence_transformers.json``. ``bothways.json`` goes before them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast, get_args

from bothways.checkpoints.files import read_json
from bothways.checkpoints.hub import LocatedModel
from bothways.checkpoints.save import write_json, write_length, write_modules, write_pooling
from bothways.checkpoints.schema import StoredVectors, at_most
from bothways.checkpoints.sentence_layout import LENGTH_FILE, check_modules, stored_pooling
from bothways.choices import Overflow, Pooling
from bothways.errors import InvalidInput
from bothways.inference import TextOptions
from bothways.tasks.backend import USUAL_LENGTH, Backend, OpenOptions, kept_stride, open_backend
from bothways.tasks.embedding.spec import EmbeddingOpening

if TYPE_CHECKING:
    from bothways.tasks.torch_backend import TorchBackend


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Stored options of embedding.

    Attributes:
        pooling: The pooling of token states into one vector.
        unit_length: Whether vectors are scaled to length 1, so that their inner product is the cosine.
        dimensions: Leading dimensions kept; all when None.
        max_length: Maximum tokens of a window, special ones included.
        on_overflow: The treatment of longer texts.
        stride: Tokens that neighbouring windows share; a quarter of a window's room when None.
    """

    pooling: Pooling
    unit_length: bool
    dimensions: int | None
    max_length: int
    on_overflow: Overflow
    stride: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the settings as ``bothways.json`` stores them."""
        return asdict(self)


def open_sentence_model(name_or_path: str | Path, task: str, **options: Unpack[OpenOptions]) -> TorchBackend:
    """Open a checkpoint with the maximum length that its folder states; see `TorchBackend.open`.

    Raises:
        InvalidInput: An option is out of range.
        CorruptCheckpoint: A file is damaged. Also raises everything that `bothways.load` raises.
    """
    from bothways.tasks.torch_backend import TorchBackend

    apart, rest = _apart(options)
    backend = TorchBackend.open(name_or_path, task, **rest)
    return replace(backend, reading=_sentence_reading(backend, apart))


def open_sentence_located(located: LocatedModel, task: str, options: OpenOptions) -> Backend:
    """Open a located model, with weights or exported; see `open_sentence_model`.

    Raises:
        InvalidInput: An option is out of range.
        CorruptCheckpoint: A file is damaged. Also raises everything that `bothways.load` raises.
    """
    apart, rest = _apart(options)
    backend = open_backend(located, task, rest)
    return replace(backend, reading=_sentence_reading(backend, apart))


def _apart(options: OpenOptions) -> tuple[OpenOptions, OpenOptions]:
    """Split options into those for windows and the others."""
    rest = cast("OpenOptions", dict(options))
    length, stride = rest.pop("max_length", None), rest.pop("stride", None)
    return {"max_length": length, "stride": stride}, rest


def _sentence_reading(backend: Backend, options: OpenOptions) -> TextOptions:
    """Return the text options: explicit ones, else those in the folder."""
    length, stride = options.get("max_length"), options.get("stride")
    own, limit = StoredVectors.of(backend.extras), backend.config.max_length or USUAL_LENGTH
    stored = at_most("max_length", own.max_length, limit) or _whole(
        backend.folder / LENGTH_FILE, "max_seq_length", limit
    )
    before = stored or min(backend.tokenizer.model_max_length or limit, limit)
    length = before if length is None else check_whole("max_length", length, limit)
    if stride is not None:
        check_whole("stride", stride, length - 1, least=0)
    else:
        special, stored = backend.tokenizer.special_count(pair=False), at_most("stride", own.stride, limit - 1)
        stride = kept_stride(stored, length, before, special)
    return replace(backend.reading, max_length=length, stride=stride)


def settings_of(backend: Backend, asked: EmbeddingOpening) -> EmbeddingSettings:
    """Return the explicit settings, the checkpoint's, or the defaults, in this order.

    Raises:
        InvalidInput: A setting is out of range.
        UnsupportedConfig: The checkpoint's embedder has unsupported modules or an unsupported pooling.
        CorruptCheckpoint: A file is damaged.
    """
    folder, own, hidden = backend.folder, StoredVectors.of(backend.extras), backend.config.hidden
    check_modules(folder)
    pooling = own.pooling or stored_pooling(folder, cls_is_last=backend.tokenizer.cls_is_last) or "mean"
    dimensions = at_most("dimensions", own.dimensions, hidden) or _whole(folder / _GENERAL, "truncate_dim", hidden)
    reading = backend.reading
    stored = EmbeddingSettings(
        pooling, own.unit_length is not False, dimensions, reading.max_length, reading.on_overflow, reading.stride
    )
    return changed(stored, asked, hidden)


def changed(settings: EmbeddingSettings, asked: EmbeddingOpening, hidden: int) -> EmbeddingSettings:
    """Return settings with the explicit options applied; ``hidden`` is the encoder's width.

    Raises:
        InvalidInput: An option is out of range.
    """
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    if "pooling" in given:
        check_pooling(asked.pooling)
    if asked.dimensions is not None:
        check_whole("dimensions", asked.dimensions, hidden)
    return replace(settings, **given)


def check_pooling(pooling: object) -> Pooling:
    """Return the pooling of this name.

    Raises:
        InvalidInput: There is no such pooling.
    """
    known: tuple[Pooling, ...] = get_args(Pooling)
    for name in known:
        if pooling == name:
            return name
    raise InvalidInput(f"pooling must be one of {', '.join(known)}, but it is {pooling!r}.")


def write_sentence_layout(folder: Path, hidden: int, settings: EmbeddingSettings, *, cls_is_last: bool) -> None:
    """Write the files that make a checkpoint a sentence embedder for the ecosystem.

    Other libraries take the first token of a text as its [CLS] token, so an XLNet's is stored as the last token.
    """
    write_modules(folder, {"Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if settings.unit_length else {}))
    write_length(folder, settings.max_length)
    write_json(folder / _GENERAL, {"truncate_dim": settings.dimensions})
    write_pooling(folder, hidden, settings.pooling, cls_is_last=cls_is_last)


_GENERAL = "config_sentence_transformers.json"


def _whole(path: Path, name: str, highest: int) -> int | None:
    """Return a whole number from a file of the ecosystem, capped at ``highest`` as there."""
    value = read_json(path).get(name) if path.is_file() else None
    return min(value, highest) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def check_whole(name: str, value: int, highest: int, *, least: int = 1) -> int:
    """Check that a value is a whole number in a range, and return it.

    Raises:
        InvalidInput: It is not, or lies outside the range.
    """
    if not least <= value <= highest:
        raise InvalidInput(f"{name} must lie between {least} and {highest}, but it is {value}.")
    return value
