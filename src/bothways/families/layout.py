"""The layout of a family's files: settings of ``config.json``, and reversible maps of its tensor names to ours.

A map is a table of rows. In a row, ``{i}`` stands for the index of a layer with its own weights, ``{g}`` and ``{j}``
for a group of layers that share weights and a layer inside the group, and ``{wb}`` for ``weight`` or ``bias``. The
prefix precedes the encoder's tensor names in a model with a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bothways.encoder.config import (
    AbsolutePositions,
    Activation,
    DenseFeedForward,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    NoPooler,
    NoProjection,
    OwnWeights,
    PostNorm,
    ProjectedAfterNorm,
    SharedGroups,
    Sharing,
    TanhPooler,
)
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, UnsupportedConfig, shown
from bothways.families.keys import HARMLESS, INT8_METHOD, QUANTIZATION

if TYPE_CHECKING:
    from torch import Tensor


Settings = Mapping[str, object]

ACTIVATION_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

# Far above any published encoder; a model of these sizes, built without weights, still takes little memory.
MOST_LAYERS, _MOST, _MOST_NUMBER = 1_000, 2**24, 2.0**40


@dataclass(frozen=True, slots=True)
class Fault:
    """A reason to refuse the settings of a model; `without` names those that may be left out of a standard model."""

    problem: str
    without: str = ""

    @property
    def alone(self) -> str:
        """The problem and what to do about it."""
        return self.problem + (
            " If you know that the weights are of a standard model, open a copy of the folder without "
            f"{self.without} in config.json."
            if self.without
            else ""
        )


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """The settings of ``config.json`` that a family knows, besides those in `bothways.families.keys`.

    Attributes:
        required: Settings that it reads and that every file has.
        defaults: Settings that it reads, with the values of missing ones.
        harmless: Settings of unsupported features, with the values that leave the computation unchanged.
        neutral: Settings that change no hidden state.
        aliases: Other names of settings that it reads.
    """

    required: tuple[str, ...]
    defaults: Settings = field(default_factory=dict)
    harmless: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    neutral: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def read(self) -> frozenset[str]:
        """The settings that the family reads."""
        return frozenset((*self.required, *self.defaults))

    def unsupported(self, settings: Settings) -> Fault | None:
        """Return the fault of settings that switch on an unsupported feature; None for others."""
        for name, values in {**HARMLESS, **self.harmless}.items():
            if settings.get(name) not in values:
                return Fault(
                    f"config.json sets {name} to {shown(settings[name], 200)}, which is not supported; "
                    f"only {' or '.join(repr(value) for value in values if value is not None) or 'leaving it out'} is."
                )
        return None


class ConfigReader(Protocol):
    """A family's function from settings to an `EncoderConfig`, with the settings that it knows."""

    @property
    def known(self) -> KnownSettings:
        """The settings that it knows."""
        ...

    def __call__(self, reader: SettingsReader) -> EncoderConfig:
        """Return the encoder that the settings describe."""
        ...


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """Names of a family's settings; None for settings that it lacks.

    `padding` names the padding id if positions are numbered from there: the first ``padding id + 1`` rows of the table
    are then unused. `sharing_groups` and `sharing_inner` name the numbers of layer groups that share weights
    and of layers in a group. `always_projected` adds a projection after the embedding even for equal widths;
    `defaults` are values of settings that old files omit. For `harmless` and `aliases` see `KnownSettings`.
    """

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    activation: str = "hidden_act"
    positions: str = "max_position_embeddings"
    hidden_dropout: str = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"
    head_dropout: str = "classifier_dropout"
    initializer_range: str = "initializer_range"
    eps: str | None = "layer_norm_eps"
    types: str | None = "type_vocab_size"
    embedding: str | None = None
    sharing_groups: str | None = None
    sharing_inner: str | None = None
    padding: str | None = None
    always_projected: bool = False
    pooler: bool = True
    defaults: Settings = field(default_factory=dict)
    harmless: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> KnownSettings:
        """The settings that the family knows."""
        defaults: dict[str, object] = {
            self.activation: "gelu",
            self.hidden_dropout: 0.1,
            self.attention_dropout: 0.1,
            self.head_dropout: None,
            self.initializer_range: 0.02,
            **({self.eps: 1e-12} if self.eps else {}),
            **self.defaults,
        }
        sizes = (self.hidden, self.layers, self.heads, self.inner, self.positions)
        more = (self.types, self.embedding, self.sharing_groups, self.sharing_inner, self.padding)
        required = ("vocab_size", *(name for name in (*sizes, *more) if name and name not in defaults))
        return KnownSettings(required, defaults, self.harmless, aliases=self.aliases)

    def __call__(self, reader: SettingsReader) -> EncoderConfig:
        hidden, positions = reader.integer(self.hidden), reader.integer(self.positions)
        width = reader.integer(self.embedding) if self.embedding else hidden
        offset = reader.integer(self.padding) + 1 if self.padding else 0
        hidden_dropout = reader.number(self.hidden_dropout)
        return EncoderConfig(
            vocabulary=reader.integer("vocab_size"),
            hidden=hidden,
            layers=reader.layers(self.layers),
            heads=reader.integer(self.heads),
            embedding=EmbeddingConfig(
                width=width,
                types=reader.integer(self.types) if self.types else 0,
                projection=ProjectedAfterNorm() if self.always_projected or width != hidden else NoProjection(),
            ),
            positions=AbsolutePositions(positions - offset, offset),
            norm=PostNorm(reader.number(self.eps) if self.eps else 1e-12),
            feed_forward=DenseFeedForward(reader.integer(self.inner), reader.activation(self.activation)),
            sharing=_sharing(self, reader),
            pooler=TanhPooler() if self.pooler else NoPooler(),
            dropout=DropoutRates(
                hidden=hidden_dropout,
                attention=reader.number(self.attention_dropout),
                head=reader.number(self.head_dropout, hidden_dropout),
                embedding=hidden_dropout,
            ),
            initializer_range=reader.number(self.initializer_range),
        )


def _sharing(keys: ConfigKeys, reader: SettingsReader) -> Sharing:
    if keys.sharing_groups is None or keys.sharing_inner is None:
        return OwnWeights()
    groups, inner = reader.layers(keys.sharing_groups), reader.layers(keys.sharing_inner)
    if inner * reader.layers(keys.layers) > MOST_LAYERS:
        raise CorruptCheckpoint(f"config.json must give at most {MOST_LAYERS} layers in all, but it gives more.")
    return SharedGroups(groups, inner)


@dataclass(frozen=True, slots=True)
class SettingsReader:
    """Settings of a ``config.json`` by name, with checks of their types."""

    settings: Settings

    @classmethod
    def of(cls, settings: Settings, known: KnownSettings) -> SettingsReader:
        """Return a reader of the settings that a family reads."""
        given = {name: value for name, value in settings.items() if value is not None}
        for alias, name in known.aliases.items():
            if alias in given and given.setdefault(name, given[alias]) != given[alias]:
                raise UnsupportedConfig(
                    f"config.json sets {name} to {given[name]!r:.80} and {alias}, another name of it, to "
                    f"{given[alias]!r:.80}; remove the wrong one."
                )
        return cls({**known.defaults, **{name: given[name] for name in known.read if given.get(name) is not None}})

    def flag(self, name: str) -> bool:
        """Return a boolean setting."""
        value = self.settings.get(name)
        if not isinstance(value, bool):
            raise CorruptCheckpoint(f"config.json must give {name} as true or false, but it gives {value!r}.")
        return value

    def integer(self, name: str, most: int = _MOST) -> int:
        """Return an integer setting, from 0 to ``most``."""
        value = self.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise CorruptCheckpoint(
                f"config.json must give {name} as a whole number up to {most}, but it gives {value!r:.80}."
            )
        return value

    def layers(self, name: str) -> int:
        """Return a setting that is a number of layers."""
        return self.integer(name, MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a setting that is a finite number."""
        value = self.settings.get(name)
        value = default if value is None else value
        # Compared before it is converted: 10**400 is no float. NaN is not below any number.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_NUMBER:
            raise CorruptCheckpoint(f"config.json must give {name} as a finite number, but it gives {value!r:.80}.")
        return float(value)

    def activation(self, name: str) -> Activation:
        """Return a setting that names an activation function."""
        value = self.settings.get(name)
        if not isinstance(value, str) or value not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise UnsupportedConfig(
                f"config.json sets {name} to {value!r}, which is not supported; known are: {known}."
            )
        return ACTIVATION_NAMES[value]


def quantization_of(settings: Settings) -> Mapping[str, object] | None:
    """Return the description of a model's int8 layers in ``config.json``; None if it has none."""
    found = settings.get(QUANTIZATION)
    return found if isinstance(found, Mapping) and found.get("quant_method") == INT8_METHOD else None


@dataclass(frozen=True, slots=True)
class Layout:
    """Conversions of a tensor from the layout on disk to ours, and back."""

    read: Callable[[Tensor, EncoderConfig], Tensor]
    write: Callable[[Tensor, EncoderConfig], Tensor]


MAPPED: ContextVar[bool] = ContextVar("mapped", default=False)
"""True keeps weights that are stored as they are used in their file, mapped into memory, which processes share; the
file must not be written into meanwhile. False copies them."""

_BLOCK = 2**16  # numbers that stay in a processor's cache

AS_IT_IS = Layout(lambda theirs, _: theirs, lambda ours, _: ours)
# On disk (..., heads, head width); here heads are concatenated in one dimension.
BY_HEAD = Layout(
    lambda theirs, _: theirs.flatten(-2), lambda ours, config: ours.reshape(*ours.shape[:-1], config.heads, -1)
)
# On disk, a vector has two more leading dimensions, of size 1.
IN_TWO_DIMENSIONS_MORE = Layout(lambda theirs, _: theirs.flatten(), lambda ours, _: ours[None, None])
# On disk, a projection is (in, heads, head width); here it is (out, in).
BY_HEAD_TRANSPOSED = Layout(
    lambda theirs, _: theirs.flatten(1).t(), lambda ours, config: ours.t().reshape(ours.shape[1], config.heads, -1)
)
# On disk, query, key and value of the first head, then of the second; here all queries, all keys, all values.
HEAD_AFTER_HEAD = Layout(
    lambda theirs, config: theirs.reshape(config.heads, 3, -1, theirs.shape[1]).transpose(0, 1).flatten(0, 2),
    lambda ours, config: ours.reshape(3, config.heads, -1, ours.shape[1]).transpose(0, 1).flatten(0, 2),
)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor on disk that is one tensor here."""

    theirs: str
    ours: str
    layout: Layout = AS_IT_IS


@dataclass(frozen=True, slots=True)
class Fused:
    """Several tensors on disk that are one here, concatenated along the first dimension."""

    theirs: tuple[str, ...]
    ours: str
    layout: Layout = AS_IT_IS


@dataclass(frozen=True, slots=True)
class Ignored:
    """A tensor of some checkpoints that is not read, since it is a copy of another one or a buffer."""

    theirs: str


WeightRow = TensorRow | Fused | Ignored


@dataclass(frozen=True, slots=True)
class Mapped:
    """One row of a map for one layer: the tensors on disk that form one tensor here."""

    theirs: tuple[str, ...]
    ours: str
    layout: Layout


def expand(rows: Iterable[WeightRow], config: EncoderConfig, prefix: str = "") -> Iterator[Mapped]:
    """Expand the rows of a map for all layers of ``config``; ignored rows have an empty ``ours``."""
    inner = 1 if isinstance(config.sharing, OwnWeights) else config.sharing.inner
    distinct = config.layers if isinstance(config.sharing, OwnWeights) else config.sharing.groups * inner
    for row in rows:
        theirs = row.theirs if isinstance(row, Fused) else (row.theirs,)
        ours, layout = ("", AS_IT_IS) if isinstance(row, Ignored) else (row.ours, row.layout)
        indices = range(distinct) if any("{i}" in name or "{g}" in name for name in theirs) else range(1)
        kinds = ("weight", "bias") if any("{wb}" in name for name in theirs) else ("",)
        for index in indices:
            for kind in kinds:
                places = {"i": index, "g": index // inner, "j": index % inner, "wb": kind}
                yield Mapped(tuple(prefix + name.format(**places) for name in theirs), ours.format(**places), layout)


def read_weights(
    rows: Iterable[WeightRow], config: EncoderConfig, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """Return copies of a checkpoint's tensors under our names, see `MAPPED`; a fused tensor needs all of its parts."""
    import torch

    ours: dict[str, Tensor] = {}
    for mapped in expand(rows, config, prefix):
        present = [name for name in mapped.theirs if name in tensors]
        if not mapped.ours or not present:
            continue
        if len(present) != len(mapped.theirs):
            absent = ", ".join(sorted(set(mapped.theirs) - set(present)))
            raise IncompatibleWeights(
                f"the checkpoint has {present[0]} but not {absent}; both belong to {mapped.ours}."
            )
        parts = [tensors[name] for name in mapped.theirs]
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            kinds = (
                f"{name} {tuple(part.shape)} {part.dtype}" for name, part in zip(mapped.theirs, parts, strict=True)
            )
            raise IncompatibleWeights(
                f"the parts of {mapped.ours} must have the same shape and type, but they are: {', '.join(kinds)}."
            )
        for name, part in zip(mapped.theirs, parts, strict=True):
            check_numbers(name, part)
        read = [mapped.layout.read(part.reshape(part.shape or (1,)), config) for part in parts]
        ours[mapped.ours] = read[0] if MAPPED.get() and len(read) == 1 else torch.cat(read)
    return ours


def check_numbers(name: str, value: Tensor) -> None:
    """Raise an error for a stored tensor that holds anything but finite floating point numbers.

    The bits of each number are checked, since a sum could overflow and would start torch's threads.
    """
    import torch

    known = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    if value.dtype not in known or value.layout != torch.strided:
        raise IncompatibleWeights(
            f"expected floating point weights in {name}, but they are {value.dtype}. Quantised weights "
            "are not supported: use the original checkpoint."
        )
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[value.element_size()]
    # The bits of the exponent (IEEE 754): infinity has only these, and only infinities and NaN have all of them.
    exponent = int(torch.tensor(torch.inf, dtype=value.dtype, device="cpu").view(kind))
    bits = value.detach().cpu().reshape(-1).view(kind).numpy()
    for start in range(0, len(bits), _BLOCK):
        if ((bits[start : start + _BLOCK] & exponent) == exponent).any():
            raise CorruptCheckpoint(
                f"expected finite numbers in {name}, but one is infinite or NaN: the file is damaged, or its training "
                "diverged. Get the model again from where it came."
            )


def write_weights(
    rows: Iterable[WeightRow], config: EncoderConfig, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """Invert `read_weights`: return ``tensors`` under the family's names, without those that no row names."""
    theirs: dict[str, Tensor] = {}
    for mapped in expand(rows, config, prefix):
        if mapped.ours in tensors:
            parts = tensors[mapped.ours].detach().chunk(len(mapped.theirs))
            stored = (mapped.layout.write(part, config).contiguous() for part in parts)
            theirs.update(zip(mapped.theirs, stored, strict=True))
    return theirs


def known_names(rows: Iterable[WeightRow], config: EncoderConfig, prefix: str = "") -> set[str]:
    """Return all names on disk that the rows cover."""
    return {name for mapped in expand(rows, config, prefix) for name in mapped.theirs}
