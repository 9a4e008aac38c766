"""Costs of a model: arithmetic, and memory for inference and training."""

from dataclasses import dataclass

from bothways.advice.cost_tracing import count_flops, inference_bytes, training_bytes
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.families.catalogue import count_parts

FLOAT32 = 4  # bytes

# Python with torch, this package and their lazy imports; measured on Linux with torch for CPUs.
RUNTIME_BYTES = 280_000_000
# The same for training: torch's optimizers import its compiler (67 MiB when the first one is made).
TRAINING_RUNTIME_BYTES = RUNTIME_BYTES + 70_000_000

# The weights, a copy of the best ones, AdamW's two moments and the gradients: the minimum that training holds.
TRAINING_COPIES = 5

# Positions in a batch are int32.
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class InferenceMemory:
    """Bytes of a forward pass in float32: the weights, and the peak of everything else."""

    weights: int
    activations: int

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        return self.weights + self.activations


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes for training with AdamW in float32 on a CPU.

    Attributes:
        weights: All parameters.
        kept_weights: A copy of the best ones so far.
        optimizer: AdamW's two moments.
        gradients: All gradients.
        activations: Tensors that the forward pass keeps for the backward pass.
        peak: The maximum at any moment; less than the sum, since gradients appear as activations are freed.
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
        parameters: Parameters of the encoder.
        flops_per_token: Floating-point operations per token in a forward pass; a training step takes three times as
            many.
        attention_share: Share of the operations that compares tokens with each other, and so grows with the length.
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
    """Return the cost of an encoder, traced without computing anything.

    Args:
        config: The encoder.
        batch: Texts in a batch.
        length: Tokens of each text.
        activation_checkpointing: Train with this option of `bothways.TrainingOptions`.

    Raises:
        InvalidInput: A number is below 1, the length exceeds the model's limit, or a batch has too many tokens.
    """
    if batch < 1 or length < 1:
        raise InvalidInput(f"batch and length must be at least 1, got {batch} and {length}.")
    if config.max_length is not None and length > config.max_length:
        raise InvalidInput(
            f"the model reads at most {config.max_length} tokens at once, got a length of {length}. "
            f"Longer texts are read in windows: give {config.max_length} tokens and more texts."
        )
    if batch * length > MAX_TOKENS:
        raise InvalidInput(
            f"a batch has at most {MAX_TOKENS:,} tokens, got {batch:,} texts of {length:,}. Give fewer or shorter ones."
        )
    per_token, alone = flops_per_token(config, length), count_flops(config, 1, 1)
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
            peak=4 * weights + tables + max(working.peak, others),
        ),
    )


def flops_per_token(config: EncoderConfig, length: int) -> float:
    """Return the floating-point operations per token of a forward pass over one text."""
    return count_flops(config, 1, length) / length
