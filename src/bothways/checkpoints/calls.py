"""Inputs and outputs of an encoder that is called like a model of transformers.

Inputs are texts or padded ids, which are checked and packed.

Shapes: B texts (or windows of texts), S tokens of the longest, H hidden, N heads, L layers, V vocabulary, C labels,
G groups of K choices each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder import EncoderConfig
from bothways.errors import DeviceMismatch, IncompatibleWeights, InvalidInput, MissingOutput, TextTooLong
from bothways.families import HeadName
from bothways.packing import Packed, pack, unpad
from bothways.text import Overflow, TextTokenizer
from bothways.text.windows import Text

Group = Sequence[Text]


@dataclass(frozen=True, slots=True)
class PaddedIds:
    """Padded token ids, as models of transformers take them."""

    input_ids: Tensor  # (B, S), or (G, K, S) for groups of choices
    attention_mask: Tensor | None = None  # 1 for real tokens, in the same shape; all real when None
    token_type_ids: Tensor | None = None  # segment ids in the same shape; all 0 when None

    def rows(self) -> "PaddedIds":
        """Return the choices of groups (G, K, S) as single rows (G K, S)."""
        mask, types = self.attention_mask, self.token_type_ids
        return PaddedIds(
            self.input_ids.flatten(0, 1),
            None if mask is None else mask.flatten(0, 1),
            None if types is None else types.flatten(0, 1),
        )


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A batch, the index of each row's text, and the number of truncated tokens of each text."""

    packed: Packed
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputReader:
    """Checks and packs the inputs of one model."""

    tokenizer: TextTokenizer
    config: EncoderConfig
    device: torch.device

    def texts(self, texts: Sequence[Text], on_overflow: Overflow) -> ModelInput:
        """Tokenise texts, and pack their windows."""
        if not texts:
            raise InvalidInput("the encoder expects at least one text, but the list of texts is empty.")
        limit = self.config.max_length or 10**9
        encoded = self.tokenizer.encode(texts, max_length=limit, on_overflow=on_overflow)
        rows = tuple(index for index, text in enumerate(encoded) for _ in text.windows)
        windows = [window for text in encoded for window in text.windows]
        types, kinds = [window.types for window in windows], self.config.embedding.types
        highest = max(max(row) for row in types)
        if 0 < kinds <= highest:
            raise IncompatibleWeights(
                f"the tokenizer gives tokens the type {highest}, but the largest type of the model is {kinds - 1}: "
                "the tokenizer belongs to another model. Use the tokenizer of this model."
            )
        packed = pack([window.ids for window in windows], types, self.device)
        return ModelInput(packed, rows, tuple(text.dropped_tokens for text in encoded))

    def ids(self, given: PaddedIds) -> ModelInput:
        """Check padded ids (B, S), and pack them without the padding."""
        self.check_tensors(given)
        packed = self._checked(unpad(given.input_ids, given.attention_mask, given.token_type_ids))
        return ModelInput(packed, tuple(range(len(packed.lengths))), (0,) * len(packed.lengths))

    def groups(self, groups: Sequence[Group], on_overflow: Overflow) -> tuple[ModelInput, int]:
        """Tokenise and pack the texts of all groups; also return the number of choices in each group."""
        if on_overflow == "window":
            raise InvalidInput(
                "choices cannot be split into windows: use on_overflow='error' or 'truncate', or shorten the texts."
            )
        loose = next((group for group in groups if isinstance(group, str)), None)
        sizes = {len(group) for group in groups}
        if loose is not None or len(sizes) != 1 or 0 in sizes:
            found = f"a single text ({loose!r:.60})" if loose is not None else f"groups of {sorted(sizes)} texts"
            raise InvalidInput(
                "a multiple choice head expects groups of choices, all with the same number of texts or pairs, "
                f"but it got {found if groups else 'no group'}."
            )
        return self.texts([text for group in groups for text in group], on_overflow), sizes.pop()

    def group_ids(self, given: PaddedIds) -> tuple[ModelInput, int]:
        """Pack the padded ids (G, K, S) of all groups; also return the number of choices in each group."""
        self.check_tensors(given)
        shape = tuple(given.input_ids.shape)
        others = [value for value in (given.attention_mask, given.token_type_ids) if value is not None]
        wrong = next((tuple(value.shape) for value in others if tuple(value.shape) != shape), None)
        if len(shape) != 3 or wrong is not None:
            raise InvalidInput(
                "a multiple choice head expects input_ids, attention_mask and token_type_ids of one shape (groups, "
                f"choices, sequence), but it got {shape}{'' if wrong is None else f' and {wrong}'}."
            )
        return self.ids(given.rows()), shape[1]

    def check_tensors(self, given: PaddedIds) -> None:
        """Raise InvalidInput or DeviceMismatch if padded ids have a wrong type or lie on another device."""
        inputs = (given.input_ids, given.attention_mask, given.token_type_ids)
        for name, value in zip(("input_ids", "attention_mask", "token_type_ids"), inputs, strict=True):
            if value is not None and not isinstance(value, Tensor):
                raise InvalidInput(f"{name} must be a tensor (batch, sequence), but it is a {type(value).__name__}.")
            if value is not None and name != "attention_mask" and value.is_floating_point():
                raise InvalidInput(f"{name} must hold whole numbers, but its dtype is {value.dtype}.")
            if value is not None and value.device != self.device:
                raise DeviceMismatch(
                    f"{name} must be on the device of the model, {self.device}, but it is on {value.device}: "
                    "move one to the other."
                )

    def _checked(self, packed: Packed) -> Packed:
        limit = self.config.max_length
        if limit is not None and packed.max_length > limit:
            raise TextTooLong(
                f"the model reads at most {limit} tokens, but a row of input_ids has {packed.max_length}. "
                "Truncate it, or call with texts and on_overflow='window' or 'truncate'."
            )
        checks = (
            ("input_ids", packed.ids_T, self.config.vocabulary),
            # Without segment embeddings, types are ignored, or only compared (XLNet's [CLS] has a type of its own).
            ("token_type_ids", packed.types_T, self.config.embedding.types or None),
        )
        for name, values_T, count in checks:
            low, high = int(values_T.min()), int(values_T.max())
            if low < 0 or (count is not None and high >= count):
                wrong = low if low < 0 else high
                bounds = "be at least 0" if count is None else f"lie between 0 and {count - 1}"
                raise InvalidInput(f"{name} must {bounds}, but one of them is {wrong}.")
        return packed


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Absent:
    """Stands for an output that was not computed, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Padded outputs of an encoder.

    Attributes:
        last_hidden_state: (B, S, H); zeros in the padding.
        attention_mask: (B, S), 1 for real tokens.
        text_of_row: Index of the text of each of the B rows.
        dropped_tokens: Number of truncated tokens of each text.
    """

    last_hidden_state: Tensor
    attention_mask: Tensor
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]
    pooled: Tensor | Absent
    states: tuple[Tensor, ...] | Absent
    weights: tuple[Tensor, ...] | Absent

    @property
    def pooler_output(self) -> Tensor:
        """Linear and tanh on the first token (B, H); MissingOutput if the checkpoint has no trained pooler."""
        return _present("pooler_output", self.pooled)

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """The embedding and each layer's output: L + 1 tensors (B, S, H); MissingOutput unless requested."""
        return _present("hidden_states", self.states)

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """Attention weights: L tensors (B, N, S, S), zeros in the padding; MissingOutput unless requested."""
        return _present("attentions", self.weights)


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The output of a head.

    Attributes:
        head: Name of the head.
        logits: For ``masked_lm`` and ``permutation_lm`` (B, S, V), for ``token`` (B, S, C) and for ``replaced_token``
            (B, S), zeros in the padding; for ``span`` (B, S, 2), start and end, minus infinity in the padding; for
            ``sequence`` and ``sentence_order`` (B, C); for ``next_sentence`` (B, 2): the second text follows the first,
            or does not; for ``multiple_choice`` (G, K).
        labels: Names of the C labels; empty for a head without labels.
        attention_mask: (B, S), 1 for real tokens; for ``multiple_choice`` (G K, S).
        text_of_row: Index of the text of each row of the mask.
        dropped_tokens: Number of truncated tokens of each text.
    """

    head: HeadName
    logits: Tensor
    labels: tuple[str, ...]
    attention_mask: Tensor
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]

    @property
    def start_logits(self) -> Tensor:
        """Logits of an answer starting at each token (B, S), minus infinity in the padding; for ``span`` heads only."""
        return self._ends()[..., 0]

    @property
    def end_logits(self) -> Tensor:
        """Logits of an answer ending at each token (B, S), minus infinity in the padding; for ``span`` heads only."""
        return self._ends()[..., 1]

    def _ends(self) -> Tensor:
        if self.head != "span":
            raise MissingOutput(
                f"only a span head gives the start and end of an answer, and this one is a {self.head} head."
            )
        return self.logits


def _present(name: str, value: V | Absent) -> V:
    if isinstance(value, Absent):
        raise MissingOutput(f"{name} was not computed: {value.reason}")
    return value


def padded_weights(weights: list[Tensor], longest: int) -> Tensor:
    """Pad the attention weights (N, n, n) of each text to one tensor (B, N, S, S)."""
    paddings = [longest - weights_Nnn.shape[-1] for weights_Nnn in weights]
    return torch.stack(
        [F.pad(weights_Nnn, (0, size, 0, size)) for weights_Nnn, size in zip(weights, paddings, strict=True)]
    )
