"""Texts in, rows of numbers out of a torch module, in packed batches.

Shapes: B windows of a batch, T tokens of a batch, K numbers that the model gives for each window, or for each token.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bothways.inference.batching import TokenBudget
from bothways.inference.runner import Runner, row_answers
from bothways.inference.texts import TextEngine, TextOptions
from bothways.inference.windows import Rows, TokenIds
from bothways.packing import Packed
from bothways.text import TextTokenizer


class InferenceEngine(TextEngine):
    """Runs a function of packed batches over any number of texts; several threads may use it at once.

    Args:
        tokenizer: Cuts texts into tokens and windows.
        forward: From a packed batch of B windows to (B, K), or to (T, K) for `run_tokens`.
        device: Where batches go.
        options: How texts are cut into windows.
        tokens: Token budget of a batch, or one to share with other engines; what suits the device when None.

    Raises:
        InvalidInput: The token budget is below 1.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        forward: Callable[[Packed], Tensor],
        device: torch.device,
        options: TextOptions,
        tokens: int | TokenBudget | None = None,
    ) -> None:
        super().__init__(tokenizer, options, TokenBudget.of(tokens, device))
        self.forward = forward
        self.device = device

    def runner(self, *, per_token: bool) -> Runner[TokenIds, Rows]:
        """Return what computes the windows of a block."""
        return Runner(row_answers(self.forward, per_token=per_token), self.device, self.budget)
