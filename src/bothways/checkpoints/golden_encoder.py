"""Golden answers of an encoder without a task: the mean of its last hidden states.

Shapes: S tokens of a text, H hidden.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import nn

from bothways.checkpoints.calls import EncoderOutput
from bothways.checkpoints.golden import ENCODER, ModelAnswer
from bothways.checkpoints.golden import write_golden as write_golden
from bothways.checkpoints.golden_check import check_folder as check_folder
from bothways.encoder import Encoder, EncoderConfig
from bothways.families import Family
from bothways.text import Overflow, TextTokenizer
from bothways.text.windows import Text, check_text


class AnyEncoder(Protocol):
    """An encoder with its tokenizer, see `bothways.checkpoints.pretrained.PretrainedEncoder`."""

    encoder: Encoder
    tokenizer: TextTokenizer
    family: Family
    folder: Path
    trainings: int

    @property
    def config(self) -> EncoderConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> str: ...

    def __call__(self, texts: Sequence[Text], *, on_overflow: Overflow = ...) -> EncoderOutput: ...


@dataclass(frozen=True, slots=True)
class AnsweringEncoder:
    """An encoder as its golden answers see it, see `bothways.checkpoints.golden.Answering`.

    The answer to a text is the mean of its last hidden states.
    """

    model: AnyEncoder

    task: ClassVar = ENCODER
    runtime: ClassVar = "torch"
    held_out: ClassVar[tuple[object, ...]] = ()

    @property
    def architecture(self) -> dict[str, object]:
        """The family and the size of the encoder."""
        config = self.model.config
        return {"model_type": self.model.family.model_type, "hidden": config.hidden, "layers": config.layers}

    @property
    def arithmetic(self) -> tuple[str, str]:
        """The precision and the device."""
        return self.model.precision, self.model.device.type

    @property
    def opened_from(self) -> Path | None:
        """The folder with these weights; None for a new model, and for one that was trained."""
        model = self.model
        return None if model.trainings or model.folder == Path() else model.folder

    def inputs_of(self, values: Sequence[object]) -> list[object]:
        """Return texts."""
        for number, value in enumerate(values):
            check_text(number, value)
        return list(values)

    def neutral(self, texts: Sequence[str]) -> list[object]:
        """Return the texts."""
        return list(texts)

    def answers(self, inputs: Sequence[object]) -> Iterator[ModelAnswer]:
        """Yield the tokens and the mean state of each text; a text that is too long is truncated."""
        model = self.model
        for text in map(str, inputs):
            with evaluating(model.encoder), torch.inference_mode():
                states_1SH = model([text], on_overflow="truncate").last_hidden_state
            tokens = model.tokenizer.encode([text], max_length=model.config.max_length or 10**9, on_overflow="truncate")
            yield ModelAnswer(
                [(model.tokenizer, each) for each in tokens], states_1SH[0].double().mean(0).cpu().numpy()
            )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Keep a module in evaluation mode."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)
