"""A pretrained encoder with its tokenizer: one object, called with texts or with padded ids.

Shapes: B texts (or windows of texts), S tokens of the longest, H hidden, N heads, n tokens of one text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from bothways.checkpoints.calls import (
    Absent,
    EncoderOutput,
    Group,
    HeadOutput,
    InputReader,
    ModelInput,
    PaddedIds,
    padded_weights,
)
from bothways.checkpoints.checkpoint import Checkpoint, open_checkpoint, warn_of_unread
from bothways.checkpoints.pickling import Whole, built_again, is_as_stored
from bothways.checkpoints.schema import label_names, label_settings
from bothways.checkpoints.sentence_transformers import encoder_tensors, head_tensors, tokenizer_of, write_model
from bothways.choices import GoldenSource
from bothways.devices import AUTO, inference_dtype, pick_device
from bothways.encoder import Encoder, EncoderConfig, Head, Pooler, Recorder, ScoreHead
from bothways.encoder.encoder import linear_weights
from bothways.encoder.head_kinds import ChoiceLogit, Labels
from bothways.encoder.heads import head_logits
from bothways.encoder.linear import hold_bfloat16
from bothways.errors import InvalidInput
from bothways.families import Family, HeadName
from bothways.families.layout import quantization_of
from bothways.packing import to_padded
from bothways.products import has_bfloat16_product
from bothways.progress import phase
from bothways.storage import MODEL, new_folder
from bothways.text import Overflow, TextTokenizer
from bothways.text.windows import Text
from bothways.threads import loading

M = TypeVar("M", bound=nn.Module)


@dataclass(slots=True)
class PretrainedEncoder:
    """An encoder with its tokenizer, its loaded heads, and the name and folder that it was loaded from.

    Call it with texts, or like a model of transformers with ``input_ids`` and ``attention_mask``. It is in evaluation
    mode. Gradients are recorded as usual in torch, so wrap calls in ``torch.inference_mode()`` unless you train.
    """

    encoder: Encoder
    pooler: Pooler | Absent
    heads: Mapping[HeadName, Head]
    tokenizer: TextTokenizer
    family: Family
    settings: dict[str, object]
    name: str
    folder: Path
    revision: str | None
    trainings: int = 0
    """Number of trainings since the weights were loaded from the folder."""
    rounded: bool = False
    """True if the weights were rounded to bfloat16 for inference because no precision was chosen."""
    multiplies_bfloat16: bool = False
    """True if inference on a CPU multiplies by bfloat16 weights; the parameters and all other steps are float32."""

    def __post_init__(self) -> None:
        if self.multiplies_bfloat16:
            hold_bfloat16(linear_weights(self.encoder).values())

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config

    @property
    def device(self) -> torch.device:
        return self.encoder.embedding.tokens.weight.device

    @property
    def precision(self) -> str:
        """The precision of matrix products in inference: ``int8``, ``bfloat16``, or the dtype of the weights."""
        if self.quantization is not None:
            return "int8"
        return "bfloat16" if self.multiplies_bfloat16 else str(self.encoder.embedding.tokens.weight.dtype)[6:]

    @property
    def quantization(self) -> Mapping[str, object] | None:
        """The entry for int8 quantization in ``config.json``; None for a model without int8 layers."""
        return quantization_of(self.settings)

    def check_full(self, verb: str) -> None:
        """Raise InvalidInput if layers are int8; ``verb`` names what needs the trained weights, such as ``train``."""
        if self.quantization is not None:
            raise InvalidInput(
                f"expected a model with float32 weights to {verb}, got {self.name!r}, which is quantized to int8: "
                f"{verb} the original model."
            )

    def in_full(self, module: M) -> M:
        """Return the encoder or the pooler in its trained precision, read again if it was rounded for inference."""
        return built_again(module) if self.rounded else module

    def __reduce__(self) -> tuple[type["PretrainedEncoder"], tuple[object, ...]]:
        """Pickle by the folder if the encoder is unchanged since loading, else whole; see `checkpoints.pickling`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if not is_as_stored(self.encoder):
            heads = {name: Whole(head) for name, head in self.heads.items()}
            values |= {"heads": heads, "tokenizer": Whole(self.tokenizer)}
            values |= {"pooler": Whole(self.pooler)} if isinstance(self.pooler, Pooler) else {}
        return PretrainedEncoder, tuple(values.values())

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
            output_attentions: Keep every layer's attention weights, which the reference backend computes.
            on_overflow: Treatment of texts that are too long: ``"error"``, ``"truncate"`` (the output has the number of
                truncated tokens), or ``"window"`` (each window is a row).
            backend: Name of the attention backend.

        Raises:
            InvalidInput: Both or neither of texts and ids are given, or the ids are not valid token ids in a tensor.
            TextTooLong: A text or row is longer than the model's limit.
            DeviceMismatch: One of the tensors lies on another device than the model.
        """
        read = self._read(texts, _ids(texts, input_ids, attention_mask, token_type_ids), on_overflow)
        wanted = output_hidden_states or output_attentions
        record = Recorder(attentions=output_attentions) if wanted else None
        last_TH = self.encoder(read.packed, backend=backend, record=record)
        return self._output(read, last_TH, record, output_hidden_states)

    def apply_head(
        self,
        head: str,
        texts: str | Sequence[Text] | Sequence[Group] | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        on_overflow: Overflow = "error",
        backend: str | None = None,
    ) -> HeadOutput:
        """Return the output of a loaded head for texts, or for padded token ids.

        Args:
            head: Its name, one of those given to `load`.
            texts: As for `__call__`. A ``multiple_choice`` head takes groups instead: lists of equally many texts or
                pairs, one of which is to be chosen.
            input_ids: Token ids (B, S), or (G, K, S) for groups of choices, instead of texts.
            attention_mask: 1 for real tokens, 0 for padding, of the same shape.
            token_type_ids: Segment ids of the same shape.
            on_overflow: As for `__call__`, but a ``multiple_choice`` head does not support ``"window"``.
            backend: Name of the attention backend.

        Raises:
            InvalidInput: The head was not loaded, or the input is unusable.
            TextTooLong: A text or row is longer than the model's limit.
            DeviceMismatch: One of the tensors lies on another device than the model.
        """
        name, module = self._loaded_head(head)
        given = _ids(texts, input_ids, attention_mask, token_type_ids)
        if isinstance(module, ScoreHead) and isinstance(module.kind.scores, ChoiceLogit):
            reader = self._reader()
            read, choices = reader.groups(texts or (), on_overflow) if given is None else reader.group_ids(given)
        else:
            read, choices = self._read(cast("str | Sequence[Text] | None", texts), given, on_overflow), 1
        return HeadOutput(
            head=name,
            logits=head_logits(module, self.encoder, read.packed, choices=choices, backend=backend),
            labels=self.labels_of(name),
            attention_mask=to_padded(torch.ones_like(read.packed.ids_T), read.packed.lengths),
            text_of_row=read.text_of_row,
            dropped_tokens=read.dropped_tokens,
        )

    def labels_of(self, head: str) -> tuple[str, ...]:
        """Return the names of a loaded head's labels, in the order of its scores; empty for a head without labels.

        Raises:
            InvalidInput: The head was not loaded.
            CorruptCheckpoint: ``config.json`` does not map numbers to names.
            IncompatibleWeights: ``config.json`` has more or fewer names than the head has scores.
        """
        _, module = self._loaded_head(head)
        if isinstance(module, ScoreHead) and isinstance(module.kind.scores, Labels):
            return label_names(self.settings, module.output.out_features)
        return ()

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Write the encoder, the loaded heads and the tokenizer for use with transformers, whole or not at all.

        Heads that were not loaded are not written. A pooler is written if a head reads it or, without heads, if it was
        trained: in a family without a trained pooler (such as RoBERTa) the checkpoint's pooler is left out, and
        ``transformers`` then initialises a random one.

        ``golden`` chooses the inputs of the golden answers (`bothways.checkpoints.golden`): by default those of the
        folder that the encoder was loaded from, else neutral ones; ``"neutral"``; or None for no golden answers.

        Raises:
            InvalidInput: transformers has no model with just these heads; the message lists the possible sets.
            OutputExists: The folder exists and ``overwrite`` is false, or it is not a model.
            OutOfDisk: The disk is full; nothing is left behind.
        """
        with new_folder(folder, overwrite=overwrite, kind=MODEL) as new:
            self.write(new)
            self.write_golden(new, golden)

    def write_golden(self, folder: Path, golden: GoldenSource | None) -> None:
        """Write the golden answers of the encoder into its folder."""
        module = golden_encoder()
        module.write_golden(folder, module.AnsweringEncoder(self), golden)

    def write(self, folder: Path, extras: Mapping[str, object] | None = None) -> None:
        """Write the files of `save`, and ``bothways.json`` if there are extras, into an existing folder."""
        settings = {**self.settings, "architectures": [self.family.architecture(tuple(self.heads), self.settings)]}
        tensors = self.encoder_tensors(tuple(self.heads))
        for name, head in self.heads.items():
            tensors |= head_tensors(self.family.head(name, self.settings).rows, self.config, head)
            if "id2label" not in self.settings and self.labels_of(name):
                settings |= label_settings(self.labels_of(name))
        write_model(folder, settings, tensors, extras)
        self.tokenizer.save(folder, types=self.config.reads_types)

    def encoder_tensors(self, heads: tuple[HeadName, ...]) -> dict[str, Tensor]:
        """Return the encoder's tensors, named for a model with these heads; without heads, the pooler's tensors too."""
        self.check_full("save")
        family, encoder = self.family, self.in_full(self.encoder)
        if family.architecture(heads, self.settings) != family.base_architecture:
            return encoder_tensors(family, self.config, ("", encoder), prefix=family.prefix)
        pooler = [("pooler.", self.in_full(self.pooler))] if isinstance(self.pooler, Pooler) else []
        return encoder_tensors(family, self.config, ("", encoder), *pooler)

    def _read(self, texts: str | Sequence[Text] | None, given: PaddedIds | None, on_overflow: Overflow) -> ModelInput:
        reader = self._reader()
        if given is not None:
            return reader.ids(given)
        return reader.texts([texts] if isinstance(texts, str) else texts or (), on_overflow)

    def _reader(self) -> InputReader:
        return InputReader(self.tokenizer, self.config, self.device)

    def _loaded_head(self, name: str) -> tuple[HeadName, Head]:
        known = self.family.head_name(name)
        if known not in self.heads:
            raise InvalidInput(
                f"the {name} head was not loaded; loaded are: {', '.join(self.heads) or 'none'}. Open the model with "
                f"load(..., heads=[{name!r}])."
            )
        return known, self.heads[known]

    def _output(self, read: ModelInput, last_TH: Tensor, record: Recorder | None, hidden_states: bool) -> EncoderOutput:
        packed, lengths = read.packed, read.packed.lengths
        pooled = self.pooler(last_TH[packed.first_tokens_B]) if isinstance(self.pooler, Pooler) else self.pooler
        kept = [last_TH] if record is None else record.hidden_states
        states = tuple(to_padded(state_TH, lengths) for state_TH in kept)
        return EncoderOutput(
            last_hidden_state=states[-1],
            attention_mask=to_padded(torch.ones_like(packed.ids_T), lengths),
            text_of_row=read.text_of_row,
            dropped_tokens=read.dropped_tokens,
            pooled=pooled,
            states=states if hidden_states else Absent("call with output_hidden_states=True."),
            weights=(
                tuple(padded_weights(layer, packed.max_length) for layer in record.attentions)
                if record is not None and record.wants_attentions
                else Absent("call with output_attentions=True.")
            ),
        )


def golden_encoder() -> ModuleType:
    """Return the module for golden answers of encoders, which predictions do not need."""
    from bothways.checkpoints import golden_encoder

    return golden_encoder


@loading()
def load(
    name_or_path: str | Path,
    *,
    heads: str | Sequence[str] = (),
    revision: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = "float32",
    download: bool = False,
    allow_pickle: bool = False,
    check: bool = False,
) -> PretrainedEncoder:
    """Load a pretrained encoder, its tokenizer and, if requested, its heads.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        heads: Names of the trained heads to load with it, one or several: ``masked_lm``, ``permutation_lm``,
            ``next_sentence``, ``sentence_order``, ``replaced_token``, ``sequence``, ``token``, ``span``,
            ``multiple_choice``.
        revision: The commit of a model on the hub. Default: the commit recorded by its download.
        device: ``"auto"`` takes a GPU if there is one.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``. None, for inference only, means bfloat16 on a GPU
            that has it, else float32. ``auto`` is like None, but reports its choice, and on a CPU with instructions for
            bfloat16 it computes matrix products in bfloat16, and weights, sums, norms and residuals in float32. Whether
            a GPU multiplies float32 in TF32 is torch's setting, ``torch.set_float32_matmul_precision``.
        download: Allow a download from the hub.
        allow_pickle: Read a ``.bin`` file if there is nothing else, after a scan.
        check: Compare the encoder with the golden answers in its folder, if these are of an encoder.

    Raises:
        AnswersChanged: With ``check``, the encoder differs from its golden answers.
        UnknownModel: There is no such model, a file is missing, or its family is unknown or consists of decoders.
        UnsafeCheckpoint: Its weights are a pickle, which is not allowed or holds code.
        CorruptCheckpoint: A file is truncated or was changed.
        IncompatibleWeights: Tensors are missing, left over or of another shape; or it has no such head.
        InvalidInput: The family has no such head; the message lists its heads.
        UnsupportedConfig: A setting is not supported.
        DeviceMismatch: There is no such device.
        OfflineError: It needs a download that is not allowed or failed.
    """
    checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
    model = pretrained(checkpoint, heads=heads, device=device, dtype=dtype)
    if check:
        module = golden_encoder()
        answering = partial(module.AnsweringEncoder, model)
        module.check_folder(checkpoint.folder, checkpoint.name, answering, answering)
    return model


def pretrained(
    checkpoint: Checkpoint,
    *,
    heads: str | Sequence[str] = (),
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = "float32",
) -> PretrainedEncoder:
    """Return the encoder and tokenizer of an open checkpoint, with the requested heads."""
    place = pick_device(device)
    precision = inference_dtype(dtype, place)
    rounded = dtype in (None, AUTO) and precision != torch.float32
    multiplies_bfloat16 = dtype == AUTO and not rounded and place.type == "cpu" and has_bfloat16_product()
    if rounded:
        _tell(f"computing in bfloat16 on {place.type}; for float32 choose dtype='float32' (--dtype float32)")
    elif multiplies_bfloat16:
        _tell("matrix products in bfloat16 on the CPU, all else in float32")
    elif dtype == AUTO:
        _tell(f"computing in float32: this {place.type} has no instructions for bfloat16")
    tokenizer = tokenizer_of(checkpoint.folder, checkpoint.family)
    tokenizer.check_vocabulary(checkpoint.config.vocabulary, checkpoint.config.embedding.types)
    pooler = _pooler(checkpoint)
    names = [checkpoint.family.head_name(name) for name in ([heads] if isinstance(heads, str) else heads)]
    encoder = _placed(checkpoint.build_encoder(), place, precision)
    warn_of_unread(checkpoint)
    model = PretrainedEncoder(
        encoder=encoder,
        pooler=_placed(pooler, place, precision) if isinstance(pooler, Pooler) else pooler,
        heads={name: _placed(checkpoint.build_head(name), place, precision) for name in names},
        tokenizer=tokenizer,
        family=checkpoint.family,
        settings=checkpoint.settings,
        name=checkpoint.name,
        folder=checkpoint.folder,
        revision=checkpoint.revision,
        rounded=rounded,
        multiplies_bfloat16=multiplies_bfloat16,
    )
    for name in names:
        model.labels_of(name)
    return model


@cache
def _tell(precision: str) -> None:
    """Report the precision once per process."""
    phase(precision)


def _placed(module: M, place: torch.device, precision: torch.dtype) -> M:
    """Return a module on a device and in a precision; refuse a precision that cannot hold the weights."""
    largest = torch.finfo(precision).max
    wider = {name for name, value in module.named_parameters() if torch.finfo(value.dtype).max > largest}
    placed = module.to(place, precision)
    for name in wider:
        if not placed.get_parameter(name).isfinite().all():
            raise InvalidInput(
                f"{name} has weights beyond {largest:g}, the largest number of {precision}: choose dtype='bfloat16' or "
                "'float32', which can hold them."
            )
    return placed


def _ids(
    texts: object, input_ids: Tensor | None, attention_mask: Tensor | None, token_type_ids: Tensor | None
) -> PaddedIds | None:
    if (texts is None) is (input_ids is None):
        raise InvalidInput("call the encoder with either texts or input_ids, not with both or neither.")
    return None if input_ids is None else PaddedIds(input_ids, attention_mask, token_type_ids)


def _pooler(checkpoint: Checkpoint) -> Pooler | Absent:
    advice = "For sentence embeddings use SentenceEmbedder, which averages the last hidden states."
    if checkpoint.family.pooler_training is None:
        return Absent(f"{checkpoint.family.title} was not trained with a pooler: its output is meaningless. {advice}")
    pooler = checkpoint.build_pooler()
    if pooler is None:
        return Absent(f"this checkpoint has no weights for the pooler. {advice}")
    return pooler
