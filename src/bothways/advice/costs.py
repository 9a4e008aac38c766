"""Costs of a model: arithmetic, and memory for inference and for training."""

from dataclasses import dataclass
from pathlib import Path

from bothways.advice.cards import full_name
from bothways.advice.dry import count_flops, inference_bytes, training_bytes
from bothways.checkpoints.files import read_json
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES, family_of
from bothways.families.catalogue import count_parts, find_published

FLOAT32 = 4  # bytes

# Python with torch, this package and what both load on first use; measured on Linux with torch for CPUs.
RUNTIME_BYTES = 280_000_000
# The same of a process that trains: torch's optimizers import its compiler (67 MiB when the first one is made).
TRAINING_RUNTIME_BYTES = RUNTIME_BYTES + 70_000_000

# The weights, those kept so far, AdamW's two moments and the gradients: the least that training holds at once.
TRAINING_COPIES = 5

# Places in a batch are int32.
MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class InferenceMemory:
    """Bytes for a forward pass, in float32.

    Attributes:
        weights: All parameters.
        activations: The most at any moment beyond them.
    """

    weights: int
    activations: int

    @property
    def peak(self) -> int:
        """Peak memory of the weights and of what is computed beside them, bytes."""
        return self.weights + self.activations


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes for training with AdamW in float32, as `bothways.training` does it on a CPU.

    Attributes:
        weights: All parameters.
        kept_weights: The copy of those kept so far.
        optimizer: AdamW's two moments.
        gradients: All gradients.
        activations: What the forward pass keeps for the backward pass.
        peak: The most at any moment. Less than the sum: gradients appear as activations go.
    """

    weights: int
    kept_weights: int
    optimizer: int
    gradients: int
    activations: int
    peak: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one model at one batch size and length.

    Attributes:
        batch: Texts in a batch.
        length: Tokens of each.
        parameters: Of the encoder.
        flops_per_token: Floating-point operations of a forward pass for each token; a training step takes three times
            as many.
        attention_share: The part of them that compares tokens with each other, and so grows with the length.
        inference: Memory of a forward pass.
        training: Memory of a training step.
    """

    batch: int
    length: int
    parameters: int
    flops_per_token: float
    attention_share: float
    inference: InferenceMemory
    training: TrainingMemory


def cost(config: EncoderConfig, *, batch: int = 1, length: int = 128, activation_checkpointing: bool = False) -> Cost:
    """Return the cost of an encoder, from a run that computes nothing.

    Args:
        config: The encoder.
        batch: Texts in a batch.
        length: Tokens of each text.
        activation_checkpointing: Train with the option of this name (`bothways.TrainingOptions`).

    Raises:
        InvalidInput: A number is below 1, the length is more than the model reads, or they make more tokens than a
            batch can have.
    """
    if batch < 1 or length < 1:
        raise InvalidInput(f"batch and length must be at least 1, but they are {batch} and {length}.")
    if config.max_length is not None and length > config.max_length:
        raise InvalidInput(
            f"the model reads at most {config.max_length} tokens at once, but the length is {length}. "
            f"Longer texts are read in windows: ask for {config.max_length} tokens and more texts."
        )
    if batch * length > MOST_TOKENS:
        raise InvalidInput(
            f"a batch has at most {MOST_TOKENS:,} tokens, but {batch:,} texts of {length:,} have more: "
            "ask for fewer or shorter texts."
        )
    per_token = count_flops(config, 1, length) / length
    alone = count_flops(config, 1, 1)
    embedding, backbone = count_parts(config)
    tables, others = embedding * FLOAT32, backbone * FLOAT32
    weights = tables + others
    working = training_bytes(config, batch, length, checkpointing=activation_checkpointing)
    return Cost(
        batch=batch,
        length=length,
        parameters=embedding + backbone,
        flops_per_token=per_token,
        attention_share=max(0.0, 1 - alone / per_token),
        inference=InferenceMemory(weights, inference_bytes(config, batch, length)),
        training=TrainingMemory(
            weights=weights,
            kept_weights=weights,
            optimizer=2 * weights,
            gradients=weights,
            activations=working.activations,
            peak=4 * weights + tables + max(working.most, others),
        ),
    )


def find_config(name_or_folder: str | Path) -> tuple[str, EncoderConfig]:
    """Return the name and the encoder of a model of the catalogue, or of a folder with a ``config.json``.

    No weights are read.

    Raises:
        UnknownModel: Neither a folder nor in the catalogue.
        UnsupportedConfig: The model is known of, but not built here.
        CorruptCheckpoint: The folder has no usable ``config.json``.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        settings = read_json(folder / "config.json")
        return str(name_or_folder), family_of(settings.get("model_type")).config(settings)
    name = full_name(str(name_or_folder))
    found = find_published(FAMILIES.values(), name)
    if found is None:
        raise UnsupportedConfig(f"{name} is of a family that is not built here, so its cost is not known.")
    family, published = found
    return name, family.config(published.settings)
