"""Gradients of scores with respect to the first hidden states, the output of the embedding, for tasks on an encoder.

`Entrance` copies the structure of a model, but not its weights, and registers a hook on the embedding of the copy. The
hook can replace the first hidden states and gives access to their gradients. Other threads can use the model meanwhile.

Shapes: N inputs, B sequences of a batch, T packed tokens, H hidden.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from bothways.encoder.encoder import Embedding
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain.scoring import explain_targets
from bothways.explain.targets import ExplainTarget, Target
from bothways.packing import Batch, Packed, pack
from bothways.tasks.embedding.spec import ScoredPairs
from bothways.tasks.embedding.trained import TrainedEmbedder
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.task import AnyTask
from bothways.tasks.torch_backend import TorchBackend
from bothways.text import Places, Window


@dataclass(frozen=True, slots=True, eq=False)
class InputGradients:
    """Scores of inputs, and their gradients with respect to the first hidden states.

    If a head also embeds each text of a pair separately, the gradient of a token is the sum over its occurrences.
    """

    scores_N: Tensor
    gradient_TH: Tensor  # gradients; each token affects the score of its own input only
    hidden_TH: Tensor  # the first hidden states
    packed: Packed  # the tokens
    input_B: tuple[int, ...]  # index of the input that each sequence belongs to
    places: tuple[Places, ...]  # character positions of the tokens of each sequence
    targets: tuple[ExplainTarget, ...]  # the inputs with their words and the definitions of their scores


def input_gradients(model: AnyTask, inputs: Sequence[object], target: Target | None = None) -> InputGradients:
    """Return the gradients of scores with respect to the first hidden states, as one batch.

    Args:
        model: A trained classifier, tagger, question answerer, multiple-choice model or embedder.
        inputs: Inputs of the task; all are computed in one batch.
        target: The score to differentiate. Default: the score of the model's own prediction.

    Raises:
        NotFitted: The model was not trained.
        InvalidInput: The model has no gradients (an ensemble), or an input or the target is not usable.
        TextTooLong: A text does not fit into one window.
    """
    targets = explain_targets(model, inputs, target)
    entrance = Entrance.of(model)
    read = entrance.read(targets)
    run = entrance.run(read)
    return InputGradients(
        run.scores_N.detach(),
        run.on_tokens(run.gradients()),
        run.readings[0].hidden_TH.detach(),
        read.packed,
        read.input_B,
        read.places,
        read.targets,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Tokenised inputs."""

    targets: tuple[ExplainTarget, ...]  # the inputs
    windows: tuple[Window, ...]  # one for each text of each input, in order
    places: tuple[Places, ...]  # character positions of the tokens of each window
    packed: Packed  # the windows as a batch

    @property
    def input_B(self) -> tuple[int, ...]:
        """Index of the input that each sequence belongs to (B)."""
        return tuple(number for number, each in enumerate(self.targets) for _ in each.texts)


@dataclass(slots=True, eq=False)
class GradientInput:
    """The first hidden states from one call of the embedding."""

    batch: Batch  # the batch that was embedded
    hidden_TH: Tensor  # the first hidden states; interpolated between baseline and input if points were given


@dataclass(slots=True, eq=False)
class EntranceRun:
    """One forward pass that can be differentiated."""

    read: Read  # the inputs
    scores_N: Tensor
    # One for each call of the embedding: the batch, then the single texts of pairs if a head embeds them separately.
    readings: list[GradientInput]

    @property
    def tokens(self) -> int:
        """Tokens that were computed."""
        return sum(len(each.batch.ids_T) for each in self.readings)

    def gradients(self) -> list[Tensor]:
        """Return the gradients (T, H) of the sum of scores for each call of the embedding."""
        return list(torch.autograd.grad(self.scores_N.sum(), [each.hidden_TH for each in self.readings]))

    def on_tokens(self, values: Sequence[Tensor]) -> Tensor:
        """Sum the values (T, ...) of all calls of the embedding for each token of the batch."""
        total_T, *others = values
        for reading, value in zip(self.readings[1:], others, strict=True):
            total_T = total_T.index_add(0, _rows_in(self.readings[0].batch, reading.batch), value)
        return total_T


@dataclass(slots=True, eq=False)
class Entrance:
    """A copy of a model whose first hidden states can be replaced, and for which gradients can be computed."""

    module: nn.Module  # a copy of the module's structure that shares the model's weights, without gradients for them
    backend: TorchBackend  # the encoder, with its text options
    per_token: bool  # True if the head has an output for each token
    _points: tuple[float, ...] | None = None
    _readings: list[GradientInput] = field(default_factory=list)

    @classmethod
    def of(cls, model: AnyTask) -> "Entrance":
        """Create the copy of a trained model.

        Raises:
            NotFitted: The model was not trained.
            InvalidInput: The model is not a single encoder with a single head.
        """
        fitted = model.fitted
        match fitted:
            case TrainedHead():
                backend = with_weights(fitted.backend, "explain by gradients")
                network = _over_same_weights(backend.with_layers(0).head_model)
                made = cls(network, backend, fitted.outputs.per_token)
            case TrainedEmbedder():
                backend = with_weights(fitted.backend, "explain by gradients")
                vectors = fitted.module(backend.model, fitted.prompt_ids(ScoredPairs()))
                made = cls(_over_same_weights(vectors), backend, per_token=False)
            case _:
                raise InvalidInput(
                    f"gradients: expected a model of one encoder and one head, got {model.name!r}, a "
                    f"{type(model).__name__}: use leave-one-out."
                )
        made.embedding.register_forward_hook(made._enter)
        return made

    def read(self, targets: Sequence[ExplainTarget], copies: int = 1) -> Read:
        """Tokenise the inputs; repeat the list of inputs ``copies`` times.

        Raises:
            TextTooLong: A text does not fit into one window.
        """
        texts = [text for each in targets for text in each.texts]
        reading = replace(self.backend.reading, on_overflow="truncate", stride=None)
        encoded = reading.encode(self.backend.tokenizer, texts, offsets=True)
        most = max(each.dropped_tokens for each in encoded)
        if most:
            raise TextTooLong(
                f"gradients: expected a text that fits into one window of {reading.max_length} tokens, got a text with "
                f"{most} tokens too many. Shorten it, raise max_length, or use leave-one-out."
            )
        windows = tuple(each.windows[0] for each in encoded) * copies
        packed = pack([each.ids for each in windows], [each.types for each in windows], self.backend.model.device)
        return Read(tuple(targets) * copies, windows, tuple(map(Places.of, windows)), packed)

    def run(self, read: Read, points: Sequence[float] | None = None) -> EntranceRun:
        """Compute the scores of inputs; with points, copy i is at ``points[i]`` between baseline (0) and input (1)."""
        self._points, self._readings = None if points is None else tuple(points), []
        with torch.inference_mode(mode=False), torch.enable_grad():
            given: Tensor = self.module(read.packed)
            lengths = read.packed.lengths if self.per_token else (1,) * read.packed.count
            each = [rows if self.per_token else rows[0] for rows in given.split_with_sizes(list(lengths))]
            scores = [
                target.score(target.rows(each[texts], read.places[texts])) for target, texts in _texts(read.targets)
            ]
            return EntranceRun(read, torch.stack(scores), self._readings)

    @property
    def embedding(self) -> Embedding:
        """The module whose output is the first hidden states."""
        return next(each for each in self.module.modules() if isinstance(each, Embedding))

    def baseline(self, batch: Batch) -> Tensor:
        """Return the first hidden states (T, H) if all tokens but special ones are replaced by the padding token."""
        tokenizer = self.backend.model.tokenizer
        special = torch.tensor([tokenizer.cls_id, tokenizer.sep_id], device=batch.ids_T.device)
        ids_T = torch.where(torch.isin(batch.ids_T, special), batch.ids_T, tokenizer.pad_id)
        with torch.no_grad():
            return self.embedding.forward(replace(batch, ids_T=ids_T))

    def way(self, batch: Batch) -> Tensor:
        """Return the first hidden states (T, H) of a batch minus those of its baseline."""
        with torch.no_grad():
            return self.embedding.forward(batch) - self.baseline(batch)

    def _enter(self, module: nn.Module, given: tuple[Batch, ...], hidden_TH: Tensor) -> Tensor:
        del module
        (batch,) = given
        if self._points is not None:
            hidden_TH = self._between(self._points, batch)
        hidden_TH = hidden_TH.detach().requires_grad_()
        self._readings.append(GradientInput(batch, hidden_TH))
        return hidden_TH

    def _between(self, points: tuple[float, ...], batch: Batch) -> Tensor:
        """Return states (T, H) interpolated between baseline and input; the copies of all inputs follow each other."""
        # Texts of pairs that are embedded separately: all first texts in the order of the pairs, then all second texts.
        count = self._readings[0].batch.count if self._readings else batch.count
        point_B = torch.from_numpy(np.repeat(points, count // len(points)))
        way_TH = self.way(batch)
        point_T = point_B.to(way_TH)[batch.sequence_T % count]
        return self.baseline(batch) + point_T[:, None] * way_TH


def _over_same_weights(module: nn.Module) -> nn.Module:
    """Copy the structure of a module, sharing its weights, in evaluation mode and without gradients for weights."""
    shared: dict[int, Tensor] = {id(each): nn.Parameter(each.data, requires_grad=False) for each in module.parameters()}
    shared |= {id(each): each for each in module.buffers()}
    return deepcopy(module, shared).eval()


def _texts(targets: Sequence[ExplainTarget]) -> Iterator[tuple[ExplainTarget, slice]]:
    """Yield each target with the slice of its texts in the concatenated texts of all targets."""
    start = 0
    for each in targets:
        yield each, slice(start, start + len(each.texts))
        start += len(each.texts)


def _rows_in(pairs: Batch, texts: Batch) -> Tensor:
    """Return the row in the batch of pairs for each token of separately embedded texts (see `texts_of_pairs`).

    The first text is at the beginning of its pair, the second text at the end.
    """
    count = pairs.count
    second_T = texts.sequence_T >= count
    pair_T = texts.sequence_T % count
    from_end_T = texts.lengths_B[texts.sequence_T] - texts.positions_T
    starts, ends = pairs.cu_seqlens[:-1].long(), pairs.cu_seqlens[1:].long()
    return torch.where(second_T, ends[pair_T] - from_end_T, starts[pair_T] + texts.positions_T)
