"""A pretrained encoder with its tokenizer: one object, called with texts or with padded ids.

Shapes: B texts (or windows of texts), S longest of them in tokens, H hidden, N heads, n tokens of one text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.checkpoints.checkpoint import Checkpoint, open_checkpoint
from bothways.checkpoints.devices import pick_device, pick_dtype
from bothways.checkpoints.output import Absent, EncoderOutput
from bothways.checkpoints.save import encoder_tensors, write_model
from bothways.encoder import Encoder, EncoderConfig, Pooler, Trace
from bothways.errors import DeviceMismatch, InvalidInput, TextTooLong
from bothways.families import Family
from bothways.packing import Packed, pack, to_padded, unpad
from bothways.storage import new_folder
from bothways.text import Overflow, TextTokenizer
from bothways.text.texts import Text


@dataclass(slots=True)
class PretrainedEncoder:
    """An encoder, its tokenizer, and what is known of where they came from.

    Call it with texts, or as a model of the ecosystem with ``input_ids`` and ``attention_mask``. It is in evaluation
    mode; gradients are recorded as torch is set, so wrap calls in ``torch.inference_mode()`` unless you train.
    """

    encoder: Encoder
    pooler: Pooler | Absent
    tokenizer: TextTokenizer
    family: Family
    settings: dict[str, object]
    name: str
    folder: Path
    revision: str | None

    @property
    def config(self) -> EncoderConfig:
        """The encoder's configuration."""
        return self.encoder.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder.embedding.tokens.weight.device

    def __call__(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        on_overflow: Overflow = "error",
        backend: str | None = None,
    ) -> EncoderOutput:
        """Encode texts, or padded token ids.

        Args:
            texts: One text, or texts and pairs of texts.
            input_ids: Token ids (B, S), instead of texts.
            attention_mask: 1 for real tokens, 0 for padding (B, S).
            token_type_ids: Segment ids (B, S).
            output_hidden_states: Keep every layer's output.
            output_attentions: Keep every layer's attention weights; they come from the reference backend.
            on_overflow: What becomes of a text that is too long: ``"error"``, ``"truncate"`` (and how much was cut
                stands in the output), or ``"window"`` (each window is a row of its own).
            backend: Name of the attention backend to hold to.

        Raises:
            InvalidInput: Both or neither of texts and ids are given, or what is no tensor of ids that the model has.
            TextTooLong: A text or row is longer than the model reads.
            DeviceMismatch: One of the tensors lies on another device than the model.
        """
        if (texts is None) is (input_ids is None):
            raise InvalidInput("call the encoder with either texts or input_ids, not with both or neither.")
        if input_ids is not None:
            self._check_tensors(input_ids, attention_mask, token_type_ids)
            packed = self._checked(unpad(input_ids, attention_mask, token_type_ids))
            rows, dropped = tuple(range(len(packed.lengths))), (0,) * len(packed.lengths)
        else:
            packed, rows, dropped = self._tokenized([texts] if isinstance(texts, str) else texts or (), on_overflow)
        if output_hidden_states or output_attentions:
            trace = self.encoder.trace(packed, attentions=output_attentions, backend=backend)
        else:
            trace = Trace((self.encoder(packed, backend=backend),), ())
        return self._output(packed, trace, rows, dropped, output_hidden_states, output_attentions)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the encoder and tokenizer in the ecosystem's layout, whole or not at all.

        A head is not written, and of poolers only one that was trained: what the checkpoint of a family without such a
        one (RoBERTa's, for instance) carried under that name is left out, and ``transformers`` then draws it anew.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        with new_folder(folder, overwrite=overwrite) as new:
            self.write(new)

    def write(self, folder: Path, extras: Mapping[str, object] | None = None) -> None:
        """Write the files of `save`, and ``bothways.json`` if there are extras, into a folder that is there."""
        modules = [("", self.encoder), *([("pooler.", self.pooler)] if isinstance(self.pooler, Pooler) else [])]
        tensors = encoder_tensors(self.family, self.config, *modules)
        write_model(folder, {**self.settings, "architectures": [self.family.base_architecture]}, tensors, extras)
        self.tokenizer.save(folder)

    def _tokenized(
        self, texts: Sequence[Text], on_overflow: Overflow
    ) -> tuple[Packed, tuple[int, ...], tuple[int, ...]]:
        if not texts:
            raise InvalidInput("the encoder expects at least one text, but the list of texts is empty.")
        limit = self.config.max_length or 10**9
        encoded = self.tokenizer.encode(texts, max_length=limit, on_overflow=on_overflow)
        rows = tuple(index for index, text in enumerate(encoded) for _ in text.windows)
        windows = [window for text in encoded for window in text.windows]
        packed = pack([window.ids for window in windows], [window.types for window in windows], self.device)
        return packed, rows, tuple(text.dropped_tokens for text in encoded)

    def _check_tensors(self, *inputs: Tensor | None) -> None:
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
                "Cut it, or call with texts and on_overflow='window' or 'truncate'."
            )
        checks = (
            ("input_ids", packed.ids_T, self.config.vocabulary),
            ("token_type_ids", packed.types_T, self._types()),
        )
        for name, values_T, count in checks:
            low, high = int(values_T.min()), int(values_T.max())
            if low < 0 or high >= count:
                wrong = low if low < 0 else high
                raise InvalidInput(f"{name} must lie between 0 and {count - 1}, but one of them is {wrong}.")
        return packed

    def _types(self) -> int:
        # A family without segment embeddings ignores segment ids, as it does elsewhere.
        return self.config.embedding.types or 2

    def _output(
        self,
        packed: Packed,
        trace: Trace,
        rows: tuple[int, ...],
        dropped: tuple[int, ...],
        hidden_states: bool,
        attentions: bool,
    ) -> EncoderOutput:
        lengths = packed.lengths
        last_TH = trace.hidden_states[-1]
        pooled = self.pooler(last_TH[packed.first_tokens_B]) if isinstance(self.pooler, Pooler) else self.pooler
        states = tuple(to_padded(state_TH, lengths) for state_TH in trace.hidden_states)
        return EncoderOutput(
            last_hidden_state=states[-1],
            attention_mask=to_padded(torch.ones_like(packed.ids_T), lengths),
            text_of_row=rows,
            dropped_tokens=dropped,
            pooled=pooled,
            states=states if hidden_states else Absent("call with output_hidden_states=True."),
            weights=(
                tuple(_padded_weights(layer, packed.max_length) for layer in trace.attentions)
                if attentions
                else Absent("call with output_attentions=True.")
            ),
        )


def load(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    download: bool = False,
    allow_pickle: bool = False,
) -> PretrainedEncoder:
    """Load a pretrained encoder and its tokenizer.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        revision: The commit that a hub name is pinned to.
        device: ``"auto"`` takes a GPU where there is one.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``.
        download: Whether the hub may be asked for it.
        allow_pickle: Whether a ``.bin`` file may be read, after a scan, where there is nothing else.

    Raises:
        UnknownModel: No such model, a file is missing, or its family is not known.
        UnsafeCheckpoint: Its weights are a pickle, and that was not allowed or holds code.
        CorruptCheckpoint: A file is truncated or altered.
        IncompatibleWeights: Tensors are missing, left over or of another shape.
        UnsupportedConfig: Its configuration asks for something that is not built.
        DeviceMismatch: There is no such device.
        OfflineError: It would have to be downloaded, and that was not asked for or failed.
    """
    checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
    return pretrained(checkpoint, device=device, dtype=dtype)


def pretrained(
    checkpoint: Checkpoint, *, device: str | torch.device = "auto", dtype: str | torch.dtype = "float32"
) -> PretrainedEncoder:
    """The encoder and tokenizer of a checkpoint that is already open."""
    place, precision = pick_device(device), pick_dtype(dtype)
    tokenizer = TextTokenizer.from_folder(checkpoint.folder, checkpoint.family.tokenizer)
    tokenizer.check_vocabulary(checkpoint.config.vocabulary)
    pooler = _pooler(checkpoint)
    return PretrainedEncoder(
        encoder=checkpoint.build_encoder().to(place, precision),
        pooler=pooler.to(place, precision) if isinstance(pooler, Pooler) else pooler,
        tokenizer=tokenizer,
        family=checkpoint.family,
        settings=checkpoint.settings,
        name=checkpoint.name,
        folder=checkpoint.folder,
        revision=checkpoint.revision,
    )


def _pooler(checkpoint: Checkpoint) -> Pooler | Absent:
    advice = "For sentence embeddings take SentenceEmbedder, which averages the last hidden states."
    if checkpoint.family.pooler_training is None:
        return Absent(f"{checkpoint.family.title} was not trained with a pooler: its output means nothing. {advice}")
    pooler = checkpoint.build_pooler()
    if pooler is None:
        return Absent(f"this checkpoint has no weights for one, and an untrained one is not handed out. {advice}")
    return pooler


def _padded_weights(weights: list[Tensor], longest: int) -> Tensor:
    rooms = [longest - weights_Nnn.shape[-1] for weights_Nnn in weights]
    return torch.stack(
        [F.pad(weights_Nnn, (0, room, 0, room)) for weights_Nnn, room in zip(weights, rooms, strict=True)]
    )
