"""A classifier queried by token ids: logits of many short texts, and gradients with respect to token embeddings.

Shapes: N texts, C labels, V tokens of the vocabulary, E embedding width, T packed tokens, B texts of a batch.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.errors import InvalidInput
from bothways.inference.runner import pack_in_blocks
from bothways.inference.texts import by_token_budget
from bothways.packing import Packed, pack
from bothways.tasks import TextClassifier
from bothways.tasks.opening import with_weights

Ids = tuple[int, ...]
Floats = NDArray[np.float32]

_BATCH_TOKENS, _GRADIENT_TOKENS = 2048, 1024
_MAX_TOKENS = 128
_UNUSED = re.compile(r"\[unused\d+\]$|<unused\d+>$|<extra_id_\d+>$|madeupword\d+$")


def inserted(texts: Sequence[Ids], trigger: Ids, rng: np.random.Generator) -> list[Ids]:
    """Insert a trigger into each text, at a random place."""
    places = [int(rng.integers(0, len(text) + 1)) for text in texts]
    return [(*text[:place], *trigger, *text[place:]) for text, place in zip(texts, places, strict=True)]


class Probe:
    """A classifier that is queried by token ids; texts beyond ``limit`` tokens are truncated."""

    def __init__(self, classifier: TextClassifier, check: Callable[[], None] = lambda: None) -> None:
        self.labels: tuple[str, ...] = classifier.fitted.outputs.labels
        self.tokenizer = classifier.model.tokenizer
        backend = classifier.fitted.backend
        self.head_model = with_weights(backend, "audit").with_layers(0).head_model
        self._check = check
        (bare,), (encoded,) = self.tokenizer.encode_bare(["a"]), self.tokenizer.encode(["a"], max_length=64)
        ids = tuple(encoded.windows[0].ids)
        start = next(place for place in range(len(ids)) if list(ids[place : place + len(bare)]) == bare)
        self._before, self._after = ids[:start], ids[start + len(bare) :]
        self.limit = min(backend.reading.max_length, _MAX_TOKENS) - len(self._before) - len(self._after)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of texts, truncated and without special tokens."""
        return [tuple(ids[: self.limit]) for ids in self.tokenizer.encode_bare(texts)]

    def within(self, words: Sequence[str]) -> list[Ids]:
        """Return the token ids of words or phrases as they stand within a text, behind another word."""
        first = len(self.encode(["a"])[0])
        return [ids[first:] for ids in self.encode([f"a {each}" for each in words])]

    def spelled(self, triggers: Sequence[Ids]) -> list[Ids]:
        """Return the triggers that a text can have, since the tokenizer spells their words like this."""
        words = self.tokenizer.spellings(triggers)
        return [ids for ids, again in zip(triggers, self.within(words), strict=True) if ids == again]

    def logits(self, texts: Sequence[Ids]) -> Floats:
        """Return the logits (N, C) of texts, given without special tokens."""
        return self.run(self.head_model, texts, self.head_model.device)

    def run(self, forward: Callable[[Packed], Tensor], texts: Sequence[Ids], device: torch.device) -> Floats:
        """Apply a function of packed batches to texts, given without special tokens; return its outputs (N, K)."""
        framed = [self._framed(each) for each in texts]
        rows: dict[int, Floats] = {}
        with torch.inference_mode():
            for batch in by_token_budget([len(each) for each in framed], _BATCH_TOKENS):
                self._check()
                ids = [list(framed[index]) for index in batch]
                packed = pack_in_blocks(ids, [[0] * len(each) for each in ids]) if device.type == "cpu" else pack(ids)
                rows_BK = forward(packed.to(device))[: len(batch)].float().cpu().numpy()
                rows.update(zip(batch, rows_BK, strict=True))
        return np.stack([rows[number] for number in range(len(texts))])

    def packed(self, texts: Sequence[Ids]) -> Packed:
        """Return a batch of texts, given without special tokens."""
        return pack([self._framed(each) for each in texts], device=self.head_model.device)

    def words(self) -> list[int]:
        """Return the ids of all tokens that can occur in a text, in order."""
        special = self.tokenizer.special_ids
        named = sorted(self.tokenizer.vocabulary().items())
        return [number for number, name in named if number not in special and not _UNUSED.match(name)]

    @property
    def blank(self) -> int:
        """A placeholder token: the mask, else the padding."""
        try:
            return self.tokenizer.mask_id
        except InvalidInput:
            return self.tokenizer.pad_id

    @property
    def unknown(self) -> int:
        """The unknown token; -1 if the vocabulary can spell every text."""
        try:
            return self.tokenizer.unk_id
        except InvalidInput:
            return -1

    def table(self, ids: NDArray[np.int64]) -> Floats:
        """Return the embeddings of tokens (V, E)."""
        weight = self.head_model.encoder.embedding.tokens.weight.detach()
        vectors: Floats = weight[torch.as_tensor(ids, device=weight.device)].float().cpu().numpy()
        return vectors

    def gradients(self, texts: Sequence[Ids], places: Sequence[int], target: int) -> Floats:
        """Return the gradient (N, E) of a label's margin with respect to the embedding at one position of each text."""
        texts = [each[: self.limit] for each in texts]
        table = self.head_model.encoder.embedding.tokens
        outputs: list[Tensor] = []

        def watch(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            outputs.append(output.detach().requires_grad_())
            return outputs[-1]

        rows: dict[int, Tensor] = {}
        hook = table.register_forward_hook(watch)
        try:
            for batch in by_token_budget([len(each) for each in texts], _GRADIENT_TOKENS):
                packed = self.packed([texts[index] for index in batch])
                inside = [len(self._before) + min(places[index], len(texts[index]) - 1) for index in batch]
                with torch.enable_grad():
                    logits_BC = self.head_model(packed)
                    others_BC = logits_BC.clone()
                    others_BC[:, target] = -torch.inf
                    margin = (logits_BC[:, target] - others_BC.amax(1)).sum()
                    (gradient_TE,) = torch.autograd.grad(margin, outputs.pop())
                places_B = packed.first_tokens_B + torch.tensor(inside, device=gradient_TE.device)
                rows_BE = gradient_TE[places_B].float().cpu()
                rows.update(zip(batch, rows_BE, strict=True))
        finally:
            hook.remove()
        return torch.stack([rows[number] for number in range(len(texts))]).numpy()

    def _framed(self, ids: Ids) -> Ids:
        return (*self._before, *ids[: self.limit], *self._after)
