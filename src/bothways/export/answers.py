"""The output that this package adds to an exported graph for its own use: a task's outputs for each window.

Shapes: B windows, S longest window, T tokens of a batch, K outputs of a window or token, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bothways.checkpoints import Checkpoint, PretrainedEncoder
from bothways.checkpoints.schema import StoredGraph
from bothways.encoder import Encoder, Head, MaskedLMHead
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import HeadName
from bothways.inference.graph import ASKED
from bothways.packing import Packed, PaddedRows, SelectedRows, to_padded
from bothways.tasks.embedding.trained import TrainedEmbedder
from bothways.tasks.masked_lm.trained import TrainedMaskedLM
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead, outputs_type
from bothways.tasks.registry import SPECS, task_class, task_of_heads
from bothways.tasks.spec import TaskSpec


class WindowRows(nn.Module):
    """Adapts a model to padded batches: its outputs for each window or, with ``per_token``, for each token."""

    def __init__(self, module: nn.Module, *, per_token: bool) -> None:
        super().__init__()
        self.module = module
        self.per_token = per_token

    def forward(self, batch: PaddedRows, attention_mask: Tensor) -> Tensor:
        """Return the outputs of each window (B, K), or of each token (B, S, K)."""
        del attention_mask
        rows: Tensor = self.module(batch)
        return batch.padded(rows) if self.per_token else rows

    def packed(self, packed: Packed) -> Tensor:
        """Return the outputs for a packed batch, in the shape that `forward` gives."""
        rows: Tensor = self.module(packed)
        return to_padded(rows, packed.lengths) if self.per_token else rows


class AskedTokens(nn.Module):
    """Computes the log-probability of every vocabulary entry at one position of each sequence.

    ``attention_mask`` is 2 at that position; if it is 2 nowhere, the first token's position is used.
    """

    per_token: ClassVar[bool] = False

    def __init__(self, encoder: Encoder, head: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, batch: PaddedRows, attention_mask: Tensor) -> Tensor:
        """Return the log-probabilities (B, V)."""
        asked_B = batch.cu_seqlens[:-1].long() + (attention_mask == ASKED).long().argmax(1)
        first_B = batch.first_tokens_B
        return self._logs(batch, torch.where((attention_mask == ASKED).any(1), asked_B, first_B))

    def packed(self, packed: Packed) -> Tensor:
        """Return the log-probabilities (B, V) at the first token of each sequence."""
        return self._logs(packed, packed.first_tokens_B)

    def _logs(self, batch: Packed | PaddedRows, rows_B: Tensor) -> Tensor:
        hidden_BH = self.encoder(batch, rows=SelectedRows(rows_B))
        logits_BV: Tensor = self.head(hidden_BH, self.encoder.embedding.tokens.weight)
        return logits_BV.log_softmax(-1)


RowsModule = WindowRows | AskedTokens
"""A module that computes a task's outputs for a padded batch, or for the same windows as a packed batch."""


@dataclass(frozen=True, slots=True)
class TaskRows:
    """A task's model, the module that computes its outputs for a graph, and their description."""

    model: PretrainedEncoder  # encoder and tokenizer
    head: dict[HeadName, Head]  # the head in the module, by its name; empty for an embedder
    module: RowsModule  # computes the outputs
    stored: StoredGraph  # describes the outputs


def rows_of_task(checkpoint: Checkpoint, head: HeadName | None) -> TaskRows | None:
    """Return the model and module for the outputs of a checkpoint's task, with float32 weights on the CPU.

    Return None if the checkpoint has no task, or if ``head``, the head to export, belongs to another task.
    """
    spec, ours = _spec(checkpoint, head)
    if spec is None:
        return None
    try:
        task = task_class(spec).from_pretrained(
            checkpoint.folder, device="cpu", dtype="float32", allow_pickle=checkpoint.allow_pickle
        )
    except (InvalidInput, UnsupportedConfig):
        if ours:
            raise
        return None  # trained elsewhere, with a head that is not supported here; other programs can read it
    return None if task._fitted is None else _rows(task.fitted)


def _rows(fitted: object) -> TaskRows | None:
    match fitted:
        case TrainedHead():
            return _rows_of_head(fitted)
        case TrainedMaskedLM():
            name: HeadName = "masked_lm"
            model, head = fitted.backend.model, fitted.model.head
            stored = StoredGraph(
                head=name, per_token=False, size=model.config.vocabulary, width=model.config.vocabulary
            )
            return TaskRows(model, {name: head}, AskedTokens(model.encoder, head).eval(), stored)
        case TrainedEmbedder():
            return _rows_of_embedder(fitted)
        case _:
            return None


def _rows_of_embedder(fitted: TrainedEmbedder) -> TaskRows:
    model, settings = with_weights(fitted.backend, "export").model, fitted.settings
    if not settings.include_prompt and any(settings.prompts.values()):
        raise UnsupportedConfig(
            f"{model.name!r} does not pool the tokens of its prompts (include_prompt: false), and an exported graph "
            "does not know which tokens these are: use the model itself."
        )
    module = WindowRows(fitted.module(model), per_token=False).eval()
    width, pooling = settings.width, settings.pooling
    return TaskRows(
        model, {}, module, StoredGraph(head=None, per_token=False, size=width, width=width, pooling=pooling)
    )


def _rows_of_head(fitted: TrainedHead) -> TaskRows:
    outputs, backend = fitted.outputs, with_weights(fitted.backend, "export")
    network = backend.head_model
    module = WindowRows(network, per_token=outputs.per_token).eval()
    size = network.head.output.out_features
    stored = StoredGraph(
        head=outputs.head,
        per_token=outputs.per_token,
        size=size,
        width=size + outputs.layers * backend.config.hidden,
    )
    return TaskRows(backend.model, {outputs.head: network.head}, module, stored)


def _spec(checkpoint: Checkpoint, head: HeadName | None) -> tuple[TaskSpec | None, bool]:
    """Return the task of a checkpoint, and True if this package trained the checkpoint for it."""
    name = checkpoint.extras.get("task")
    if isinstance(name, str):
        spec = SPECS.get(name)
        own = None if spec is None else _head_of(spec)
        return (spec if head in (None, own) else None), True
    found = SPECS[task_of_heads(checkpoint.folder) or "embedding"]
    if head in (None, _head_of(found)):
        return found, False
    return next((spec for spec in SPECS.values() if spec.head == head), None), False


def _head_of(spec: TaskSpec) -> HeadName | None:
    if spec.name == "masked_lm":
        return "masked_lm"
    return outputs_type(spec).head if spec.outputs else None
