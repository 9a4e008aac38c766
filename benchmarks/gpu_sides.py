"""The contestants of the GPU benchmark, this package and transformers at their best, and the texts that they read."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.embedders import mean_vectors, padded
from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.head_kinds import FirstToken, MeanOfTokens
from bothways.encoder.heads import new_head, read_rows
from bothways.families import FAMILIES
from bothways.inference import Runner
from bothways.inference.runner import row_answers
from bothways.packing import Packed, SelectedRows, pack
from bothways.text.windows import Window
from bothways.training.objective import MicroBatch, Update
from bothways.training.optimizers import NamedOptimizer, Stepper
from bothways.training.options import TrainingOptions
from bothways.training.workers import WholeParameters, Workers

VECTORS, FINE_TUNING, MASKED_LM = "vectors", "fine-tuning", "masked language modelling"
MASKED, FIRST_ID = 0.15, 10


def drawn_windows(count: int, vocabulary: int = 30_000) -> list[Window]:
    """Draw texts of random ids; their lengths are those of mixed texts."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(np.log(100.0), 0.7, count), 8, 512).astype(int)
    return [Window(draw.integers(FIRST_ID, vocabulary, length).tolist(), [0] * length) for length in lengths]


class Ours:
    """This package: packed batches, its own backends, its training step, of which this is the objective."""

    batches = (0,)

    def __init__(
        self, model_type: str, settings: dict[str, Any], device: torch.device, backend: str | None = None
    ) -> None:
        family = FAMILIES[model_type]
        config = family.config(settings)
        self._device, self._backend = device, backend
        with device:
            self._reader = Encoder(config).to(torch.bfloat16).eval()
            module = nn.ModuleDict({"encoder": Encoder(config)})
            for name in ("sequence", "masked_lm"):
                module[name] = new_head(config, family.head(name, settings).kind, labels=2)
        self._module = module.to(device).train()
        training = TrainingOptions(learning_rate=1e-5, precision="bfloat16")
        self._stepper = Stepper(NamedOptimizer(module, training), training, 10**6, Workers(), WholeParameters())
        self._runner = Runner(row_answers(self._means, per_token=False), device)
        self._done = 0

    def _means(self, packed: Packed) -> Tensor:
        return read_rows(MeanOfTokens(), self._reader, packed, backend=self._backend)

    def encode(self, windows: Sequence[Window]) -> NDArray[np.float32]:
        """Return mean-pooled vectors of all texts, on the host; the runner makes its batches."""
        return np.stack(self._runner.run(windows))

    def step(self, windows: Sequence[Window], work: str) -> None:
        """Take one optimizer step on a batch."""
        packed = pack([window.ids for window in windows]).to(self._device)
        batch = MicroBatch((work, packed), float(len(windows)), packed.ids_T.shape[0])
        self._stepper.step(self, Update((batch,)), self._done)
        self._done += 1

    def loss(self, payload: tuple[str, Packed]) -> Tensor:
        """Return the loss of two classes, or of as many tokens as are masked, evenly apart."""
        work, packed = payload
        encoder, head = (self._module[name] for name in ("encoder", "sequence" if work == FINE_TUNING else "masked_lm"))
        if work == FINE_TUNING:
            read = head.kind.read if not isinstance(head.kind.read, MeanOfTokens) else FirstToken()
            scores_BC = head(read_rows(read, encoder, packed, backend=self._backend)).float()
            return F.cross_entropy(scores_BC, packed.ids_T[packed.first_tokens_B] % 2, reduction="sum")
        rows_M = torch.arange(0, packed.ids_T.shape[0], round(1 / MASKED), device=packed.ids_T.device)
        hidden_MH = encoder(packed, rows=SelectedRows(rows_M), backend=self._backend)
        logits_MV = head(hidden_MH, encoder.embedding.tokens.weight).float()
        return F.cross_entropy(logits_MV, packed.ids_T[rows_M])


class Transformers:
    """transformers: padded to the longest of a batch, in order of length for vectors, a fused optimizer."""

    batches = (64, 128, 256)

    def __init__(
        self,
        model_type: str,
        settings: dict[str, Any],
        device: torch.device,
        attention: str = "sdpa",
        *,
        compiled: bool = False,
    ) -> None:
        import transformers

        config = transformers.AutoConfig.for_model(model_type, **settings, num_labels=2)
        self._device = device

        def made(kind: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 (classes without types)
            with device:
                return kind.from_config(config, attn_implementation=attention, dtype=dtype).to(device)

        reader = made(transformers.AutoModel, torch.bfloat16).eval()
        trained = {
            FINE_TUNING: made(transformers.AutoModelForSequenceClassification, torch.float32).train(),
            MASKED_LM: made(transformers.AutoModelForMaskedLM, torch.float32).train(),
        }
        self._optimizers = {
            work: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for work, model in trained.items()
        }
        compile_ = functools.partial(torch.compile, dynamic=True) if compiled else lambda model: model
        self._parameters = {work: [*model.parameters()] for work, model in trained.items()}
        self._reader, self._models = compile_(reader), {work: compile_(model) for work, model in trained.items()}

    def encode(self, windows: Sequence[Window], batch: int) -> NDArray[np.float32]:
        return mean_vectors(self._reader, [window.ids for window in windows], batch, self._device)

    def step(self, windows: Sequence[Window], work: str) -> None:
        model, optimizer = self._models[work], self._optimizers[work]
        ids_BS, mask_BS = (on_device(each, self._device) for each in padded([window.ids for window in windows]))
        labels = ids_BS[:, 0] % 2
        if work == MASKED_LM:
            chosen_BS = torch.rand(ids_BS.shape, device=self._device) < MASKED
            labels = ids_BS.masked_fill(~(chosen_BS & (mask_BS != 0)), -100)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = model(input_ids=ids_BS, attention_mask=mask_BS, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters[work], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def words(count: int) -> list[str]:
    """Return different words of three to six letters; every fourth is an ending of a word."""
    draw, found = np.random.default_rng(2), dict[str, None]()
    while len(found) < count:
        letters = "".join(map(chr, draw.integers(97, 123, draw.integers(3, 7))))
        found["##" + letters if len(found) % 4 == 3 else letters] = None
    return [*found]


def drawn_texts(windows: Sequence[Window], words: Sequence[str]) -> list[str]:
    """Return texts of as many tokens as the windows have, special ones included; every fifth is an ending."""
    draw = np.random.default_rng(3)
    starts, ends = ([word for word in words if word.startswith("##") == ending] for ending in (False, True))
    texts = []
    for window in windows:
        pieces = draw.choice(starts, len(window.ids) - 2).tolist()
        pieces[1::5] = draw.choice(ends, len(pieces[1::5])).tolist()
        texts.append(" ".join(pieces).replace(" ##", ""))
    return texts
