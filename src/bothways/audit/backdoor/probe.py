"""A classifier asked by token ids: logits of many short texts, and gradients at its table of tokens.

Shapes: N texts, C labels, V tokens of the vocabulary, E embedding width, T packed tokens, B texts of a batch.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.errors import InvalidInput
from bothways.inference.batching import by_token_budget, pack_in_blocks
from bothways.packing import pack
from bothways.tasks import TextClassifier

Ids = tuple[int, ...]
_BATCH_TOKENS, _GRADIENT_TOKENS = 2048, 1024


@dataclass(frozen=True, slots=True)
class SurroundingTokens:
    """The special tokens that stand around a text."""

    before: Ids
    after: Ids

    def around(self, ids: Ids) -> Ids:
        """Return a text as the model reads it."""
        return (*self.before, *ids, *self.after)


class Probe:
    """Ask a classifier by token ids.

    Args:
        classifier: A trained classifier of one label.
        check: Called between batches; raises where time is up.

    Attributes:
        labels: Names of the labels.
        tokenizer: The classifier's tokenizer.
        frame: Special tokens around a text.
        limit: Most tokens of a text that are read, special ones not counted; what is behind them is cut.
    """

    def __init__(self, classifier: TextClassifier[Any], check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self.labels: tuple[str, ...] = tuple(classifier.labels)
        self.tokenizer = classifier.model.tokenizer
        self.frame = frame_of(classifier)
        self._head_model = classifier.backend.weights("audit").with_layers(0).head_model
        self.limit = min(classifier.backend.reading.max_length, 128) - len(self.frame.before) - len(self.frame.after)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of texts without special tokens, cut at 128 tokens at most."""
        return [tuple(ids[: self.limit]) for ids in self.tokenizer.encode_bare(texts)]

    def logits(self, texts: Sequence[Ids]) -> NDArray[np.float32]:
        """Return the logits (N, C) of texts without special tokens."""
        return run(self._head_model, [self.frame.around(each[: self.limit]) for each in texts], self._check)

    def words(self) -> list[int]:
        """Return the ids of all tokens that a text can have, in the order of the vocabulary."""
        special = self.tokenizer.special_ids
        unused = re.compile(r"\[unused\d+\]$|<unused\d+>$|<extra_id_\d+>$|madeupword\d+$")
        named = sorted(self.tokenizer.vocabulary().items())
        return [number for number, name in named if number not in special and not unused.match(name)]

    @property
    def blank(self) -> int:
        """A token that stands for none: the mask, else the padding."""
        try:
            return self.tokenizer.mask_id
        except InvalidInput:
            return self.tokenizer.pad_id

    @property
    def unknown(self) -> int:
        """The token of what the vocabulary cannot spell; -1 where it can spell everything."""
        try:
            return self.tokenizer.unk_id
        except InvalidInput:
            return -1

    def table(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the token vectors of some ids (V, E)."""
        weight = self._head_model.encoder.embedding.tokens.weight.detach()
        vectors: NDArray[np.float32] = weight[torch.as_tensor(ids, device=weight.device)].float().cpu().numpy()
        return vectors

    def gradients(self, texts: Sequence[Ids], places: Sequence[int], target: int) -> NDArray[np.float32]:
        """Return how the margin of a label grows with the token vector at one place of each text: (N, E).

        The margin is the label's logit minus the largest of the others.
        """
        texts = [each[: self.limit] for each in texts]
        places = [min(place, len(each) - 1) for place, each in zip(places, texts, strict=True)]
        table = self._head_model.encoder.embedding.tokens
        found: list[tuple[int, Tensor]] = []
        lengths = [len(each) for each in texts]
        for batch in by_token_budget(lengths, _GRADIENT_TOKENS):
            packed = pack([self.frame.around(texts[index]) for index in batch], device=self._head_model.device)
            rows_B = packed.first_tokens_B + torch.tensor([places[i] + len(self.frame.before) for i in batch])
            with torch.enable_grad(), _Watched(table) as watched:
                logits_BC = self._head_model(packed)
                others_BC = logits_BC.clone()
                others_BC[:, target] = -torch.inf
                margin = (logits_BC[:, target] - others_BC.amax(1)).sum()
                (gradient_TE,) = torch.autograd.grad(margin, watched.output)
            found.extend(zip(batch, gradient_TE[rows_B].float().cpu(), strict=True))
        ordered = [row for _, row in sorted(found, key=lambda each: each[0])]
        return torch.stack(ordered).numpy()


class _Watched:
    """Keeps what a module gives, as a leaf of the graph."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.output: Tensor

    def __enter__(self) -> "_Watched":
        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            self.output = output.detach().requires_grad_()
            return self.output

        self._hook = self._module.register_forward_hook(keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def run(module: nn.Module, texts: Sequence[Ids], check: Callable[[], None]) -> NDArray[np.float32]:
    """Return what a module of packed batches gives for each text (N, K)."""
    device = next(module.parameters()).device
    found: list[tuple[int, NDArray[np.float32]]] = []
    with torch.inference_mode():
        for batch in by_token_budget([len(each) for each in texts], _BATCH_TOKENS):
            check()
            ids = [list(texts[index]) for index in batch]
            packed = pack_in_blocks(ids, [[0] * len(each) for each in ids]) if device.type == "cpu" else pack(ids)
            rows_BK = module(packed.to(device))[: len(batch)].float().cpu().numpy()
            found.extend(zip(batch, rows_BK, strict=True))
    return np.stack([row for _, row in sorted(found, key=lambda each: each[0])])


def frame_of(classifier: TextClassifier[Any]) -> SurroundingTokens:
    """Return the special tokens around a text."""
    tokenizer = classifier.model.tokenizer
    (bare,), (encoded,) = tokenizer.encode_bare(["a"]), tokenizer.encode(["a"], max_length=64)
    ids = tuple(encoded.windows[0].ids)
    start = next(place for place in range(len(ids)) if list(ids[place : place + len(bare)]) == bare)
    return SurroundingTokens(ids[:start], ids[start + len(bare) :])
