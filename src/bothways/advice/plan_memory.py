"""Memory of a pre-training step: how many sequences go through the model at once, and what they take."""

import math
from collections.abc import Sequence

import torch

from bothways.advice.costs import FLOAT32, TRAINING_COPIES, TrainingMemory, cost
from bothways.encoder.config import EncoderConfig
from bothways.families.catalogue import count_parts
from bothways.objectives.vocabulary import rows_of_chunk
from bothways.pretraining.recipes import PermutationLanguageModelling, PretrainingTask, ReplacedTokenDetection
from bothways.training.objective import micro_batch_tokens
from bothways.training.options import TrainingOptions


def sequences_at_once(task: PretrainingTask, length: int, device: str) -> int:
    """Return the full sequences of a micro-batch of `Pretrainer` on a kind of device; at least one."""
    tokens = micro_batch_tokens(TrainingOptions().max_tokens, torch.device(device))
    return max(1, tokens // (length + _remembered(task)))


def training_memory(
    task: PretrainingTask,
    models: Sequence[EncoderConfig],
    size: tuple[int, int],
    device: str,
    shards: int,
    *,
    checkpointing: bool = False,
) -> float:
    """Return the bytes of a training step in float32, on each of so many devices that share a model.

    Args:
        task: What is learnt.
        models: The encoder, and a generator; the last one predicts tokens.
        size: Sequences in a micro-batch, and tokens of each.
        device: Kind of device, as torch names it.
        shards: Devices that share weights, gradients and moments.
        checkpointing: Activation checkpointing.
    """
    batch, length = size
    total = 0.0
    for config in models:
        # Keys and values of remembered tokens, and the second stream of targets, are about as much as these tokens.
        read = length + _remembered(task)
        training = cost(config, batch=batch, length=read, activation_checkpointing=checkpointing).training
        total += training.peak if shards == 1 else _sharded(training, config, shards)
    if isinstance(task, ReplacedTokenDetection) and task.embeddings == "shared":
        total -= TRAINING_COPIES * FLOAT32 * models[-1].vocabulary * models[-1].embedding.width / shards
    return total + _predictions(task, models[-1], batch * length, torch.device(device))


def _remembered(task: PretrainingTask) -> int:
    return task.memory if isinstance(task, PermutationLanguageModelling) else 0


def _predictions(task: PretrainingTask, config: EncoderConfig, tokens: int, device: torch.device) -> float:
    """Return the bytes of a chunk of logits, and of the gradient by the table that is added to the lookup's."""
    share = 1 / task.partial if isinstance(task, PermutationLanguageModelling) else task.masking.fraction
    rows = min(math.ceil(share * tokens), rows_of_chunk(device, config.vocabulary))
    return FLOAT32 * config.vocabulary * (rows + config.embedding.width)


def _sharded(training: TrainingMemory, config: EncoderConfig, shards: int) -> float:
    """Return the most that a device holds of a sharded training: in a pass, or in a validation with whole weights."""
    held = (training.weights + training.kept_weights + training.optimizer) / shards
    embedding, others = (FLOAT32 * count for count in count_parts(config))
    # The embedding and its gradient, the layer that computes and the one that is fetched meanwhile.
    gathered = 2 * embedding + 2 * others / config.layers
    return held + max(training.gradients / shards + gathered + training.activations, training.weights)
