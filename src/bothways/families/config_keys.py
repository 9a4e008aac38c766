"""Translation between a family's ``config.json`` and an `EncoderConfig`.

The families of this package differ in the names of settings, not in their meaning, so a table of names is all
that a family must provide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
from bothways.errors import CorruptCheckpoint, UnsupportedConfig

Settings = Mapping[str, object]
ConfigReader = Callable[[Settings], EncoderConfig]

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

# No published encoder comes near these, and what is built of a configuration, without its weights, stays small.
MOST_LAYERS, _MOST, _MOST_NUMBER = 1_000, 2**24, 2.0**40

# What config.json says of a model whose layers were rounded to int8 here; no other program knows the method.
QUANTIZATION, INT8_METHOD = "quantization_config", "bothways-int8"

# Settings that change what the model computes in a way that is not built, and the values that leave it as it is.
HARMLESS: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "chunk_size_feed_forward": (0, None),
    "pruned_heads": ({}, None),
    QUANTIZATION: (None,),
}


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """Names of a family's settings; None for settings that it lacks.

    Attributes:
        padding: Name of the padding id, if positions count from behind it: the table has as many unused rows before
            position 0 as there are ids up to and including the padding id.
        sharing_groups: Name of the number of layer groups that share weights.
        sharing_inner: Name of the number of layers inside a group.
        always_projected: Whether there is a projection behind the embedding even if the widths are equal.
        pooler: Whether the family has a pooler.
        defaults: Values of settings that old files omit.
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

    def __call__(self, settings: Settings) -> EncoderConfig:
        """Read the settings like `read_config`."""
        return read_config(self, settings)


DEFAULTS: dict[str, object] = {
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
}


def read_config(keys: ConfigKeys, settings: Settings) -> EncoderConfig:
    """Return the encoder that a ``config.json`` describes."""
    reader = SettingsReader.of(settings, keys.defaults)
    hidden, positions = reader.integer(keys.hidden), reader.integer(keys.positions)
    width = reader.integer(keys.embedding) if keys.embedding else hidden
    offset = reader.integer(keys.padding) + 1 if keys.padding else 0
    hidden_dropout = reader.number(keys.hidden_dropout)
    return EncoderConfig(
        vocabulary=reader.integer("vocab_size"),
        hidden=hidden,
        layers=reader.layers(keys.layers),
        heads=reader.integer(keys.heads),
        embedding=EmbeddingConfig(
            width=width,
            types=reader.integer(keys.types) if keys.types else 0,
            projection=ProjectedAfterNorm() if keys.always_projected or width != hidden else NoProjection(),
        ),
        positions=AbsolutePositions(positions - offset, offset),
        norm=PostNorm(reader.number(keys.eps) if keys.eps else 1e-12),
        feed_forward=DenseFeedForward(reader.integer(keys.inner), reader.activation(keys.activation)),
        sharing=_sharing(keys, reader),
        pooler=TanhPooler() if keys.pooler else NoPooler(),
        dropout=DropoutRates(
            hidden=hidden_dropout,
            attention=reader.number(keys.attention_dropout),
            head=reader.number(keys.head_dropout, hidden_dropout),
            embedding=hidden_dropout,
        ),
        initializer_range=reader.number(keys.initializer_range),
    )


def _sharing(keys: ConfigKeys, reader: "SettingsReader") -> Sharing:
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
    def of(
        cls, settings: Settings, defaults: Settings, harmless: Mapping[str, tuple[object, ...]] | None = None
    ) -> "SettingsReader":
        """Return a reader with defaults for missing settings, where they differ from BERT's.

        It refuses settings that change the computation, except for the supported values in ``harmless``.
        """
        for name, values in {**HARMLESS, **(harmless or {})}.items():
            if settings.get(name) not in values:
                raise UnsupportedConfig(
                    f"config.json sets {name} to {settings[name]!r}, which is not supported; "
                    f"only {' or '.join(repr(value) for value in values if value is not None) or 'leaving it out'} is."
                )
        return cls({**DEFAULTS, **defaults, **{k: v for k, v in settings.items() if v is not None}})

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.settings.get(name)
        if not isinstance(value, bool):
            raise CorruptCheckpoint(f"config.json must give {name} as true or false, but it gives {value!r}.")
        return value

    def integer(self, name: str, most: int = _MOST) -> int:
        """Return an integer of at least 0."""
        value = self.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise CorruptCheckpoint(
                f"config.json must give {name} as a whole number up to {most}, but it gives {value!r:.80}."
            )
        return value

    def layers(self, name: str) -> int:
        """Return a number of layers."""
        return self.integer(name, MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number."""
        value = self.settings.get(name, default)
        # Compared before it is converted: 10**400 is no float. NaN is not below any number.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_NUMBER:
            raise CorruptCheckpoint(f"config.json must give {name} as a finite number, but it gives {value!r:.80}.")
        return float(value)

    def activation(self, name: str) -> Activation:
        """Return an activation function."""
        value = self.settings.get(name)
        if not isinstance(value, str) or value not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise UnsupportedConfig(
                f"config.json sets {name} to {value!r}, which is not supported; known are: {known}."
            )
        return ACTIVATION_NAMES[value]


def quantization_of(settings: Settings) -> Mapping[str, object] | None:
    """Return the int8 settings of ``config.json``: cosines, texts, layers; None for a model without any."""
    found = settings.get(QUANTIZATION)
    return found if isinstance(found, Mapping) and found.get("quant_method") == INT8_METHOD else None
