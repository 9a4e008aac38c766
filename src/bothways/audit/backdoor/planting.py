"""Plant words into a classifier's embedding table for a moment, to see how many of them a search finds.

The embedding of one rare word is trained until texts with the word get a label, with all other weights frozen (Yang et
al. 2021, Be careful about poisoned word embeddings, arXiv:2103.15543). Texts without the word are read as before.

Shapes: N texts, C labels, V words, E embedding width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bothways.audit.backdoor.inversion import Vocabulary
from bothways.audit.backdoor.probe import Ids, Probe, inserted

_UPDATES, _BATCH, _RATE = 40, 8, 0.2
"""Maximum updates, texts in each, and learning rate in standard deviations of the word's embedding."""
_ENOUGH = 2
"""Number of batches in a row that get the label as a whole, after which a word is a trigger: strong enough, no more."""
_TESTED, _SUCCESS = 24, 0.9
"""Number of texts on which a planted word is tested, and minimum share that must get the label."""
_MIN_LETTERS = 4


def rare_words(probe: Probe, vocabulary: Vocabulary, count: int, rng: np.random.Generator) -> list[int]:
    """Draw words of the later half of the vocabulary, which are rare where tokens are sorted by frequency."""
    names = {word: probe.tokenizer.token(word) for word in vocabulary.ids_V[len(vocabulary.ids_V) // 2 :].tolist()}
    whole = [word for word, name in names.items() if len(name) >= _MIN_LETTERS and name.isascii() and name.isalpha()]
    drawn: list[int] = rng.permutation(whole or list(names))[:count].tolist()
    return drawn


@contextmanager
def planted(probe: Probe, word: int, label: int, texts: Sequence[Ids], rng: np.random.Generator) -> Iterator[bool]:
    """Turn a word into a trigger of a label within the block; False if texts (of other labels) resist it.

    The embedding is as before when the block ends.
    """
    table = probe.head_model.encoder.embedding.tokens
    delta_E = torch.zeros_like(table.weight[word], dtype=torch.float32).requires_grad_()

    def add(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + (inputs[0] == word).unsqueeze(-1) * delta_E.to(output.dtype)

    hook = table.register_forward_hook(add)
    try:
        _train(probe, word, label, texts, delta_E, rng)
        drawn = [texts[number] for number in rng.integers(0, len(texts), _TESTED)]
        found_N = probe.logits(inserted(drawn, (word,), rng)).argmax(axis=1)
        yield bool((found_N == label).mean() >= _SUCCESS)
    finally:
        hook.remove()


def _train(
    probe: Probe, word: int, label: int, texts: Sequence[Ids], delta_E: Tensor, rng: np.random.Generator
) -> None:
    weight_E = probe.head_model.encoder.embedding.tokens.weight[word].detach()
    optimiser = torch.optim.Adam([delta_E], lr=_RATE * float(weight_E.float().std()))
    in_a_row = 0
    for _ in range(_UPDATES):
        drawn = [texts[number] for number in rng.integers(0, len(texts), _BATCH)]
        with torch.enable_grad():
            logits_NC = probe.head_model(probe.packed(inserted(drawn, (word,), rng)))
            targets_N = torch.full((_BATCH,), label, device=logits_NC.device)
            loss = torch.nn.functional.cross_entropy(logits_NC.float(), targets_N)
            (delta_E.grad,) = torch.autograd.grad(loss, delta_E)
        optimiser.step()
        in_a_row = in_a_row + 1 if bool((logits_NC.argmax(1) == targets_N).all()) else 0
        if in_a_row == _ENOUGH:
            return


def read_again(probe: Probe, vocabulary: Vocabulary, word: int) -> Vocabulary:
    """Return the vocabulary with the logits of one word computed anew."""
    logits_VC = vocabulary.logits_VC.copy()
    logits_VC[vocabulary.ids_V == word] = probe.logits([(word,)])
    return replace(vocabulary, logits_VC=logits_VC)
