"""A GPU: vectors, fine-tuning and masked language modelling in bfloat16, ours beside transformers.

Models of the published base sizes with drawn weights read drawn token ids, so that nothing is downloaded and nobody's
tokenizer is timed. Lengths are those of mixed texts: log-normal, 8 to 512 tokens, 128 on average. Ours batches as it
does by itself; the peer at its best: sentences in order of length for vectors, batches padded to their longest for
training, a fused optimizer. DeBERTa is also timed with each attention backend that supports its distances. Rounds are
interleaved in one process.

"Of the product rate" divides the floating point operations of the real tokens by the rate of a product of two large
matrices in bfloat16 in the same minute. On a CPU (`--quick`) the figures mean nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.harness import Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.reference import TRAINING_FACTOR, floating_point_operations
from bothways.encoder import Encoder
from bothways.encoder.head_kinds import FirstToken, MeanOfTokens
from bothways.encoder.heads import MaskedLMHead, ScoreHead, new_head, read_rows
from bothways.errors import UnsupportedAttention
from bothways.families import FAMILIES
from bothways.inference import Runner
from bothways.inference.runner import row_answers
from bothways.packing import Packed, SelectedRows, pack
from bothways.training.objective import MicroBatch, Update
from bothways.training.optimizers import NamedOptimizer, Stepper
from bothways.training.options import TrainingOptions
from bothways.training.workers import WholeParameters, Workers

# Those that support relative positions on a GPU, beside the one that is chosen there.
BACKENDS = ("skewed", "flex")
OURS, PEER, FLASH = "bothways", "transformers", "transformers, flash_attention_2"
MODELS = {"BERT-base": ("bert", "bert-base-uncased"), "DeBERTa-v3-base": ("deberta-v2", "deberta-v3-base")}
WORK = ("vectors", "fine-tuning", "masked language modelling")
BATCH, MASKED, FIRST_ID = 32, 0.15, 10
SIZE_OF_PRODUCT = 8192


@dataclass(frozen=True)
class Window:
    """Token ids of one text."""

    ids: list[int]

    @property
    def types(self) -> list[int]:
        return [0] * len(self.ids)


def run(options: Options) -> Path:
    """Time and write the results."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.quick:
        raise SystemExit("the GPU benchmark needs a CUDA device; --quick runs a tiny model on a CPU")
    windows = _windows(24 if options.quick else 2048)
    figures: dict[str, Any] = {"absent": {}, "tokens": sum(len(each.ids) for each in windows), "models": {}}
    if device.type == "cuda":
        figures["gpu"] = torch.cuda.get_device_name(device)
    sections = []
    for title, (model_type, name) in MODELS.items():
        settings = _settings(model_type, name, quick=options.quick)
        sides = _sides(model_type, settings, device, options, figures["absent"])
        sections.append(_timed(title, sides, settings, windows, device, options, figures))
        del sides
    about = f"{figures.get('gpu', 'CPU')}; {len(windows):,} texts, {figures['tokens']:,} tokens, bfloat16."
    return write_results("gpu", options, figures, "\n\n".join([about, *sections]))


def _timed(
    title: str,
    sides: dict[str, "Ours | Transformers"],
    settings: dict[str, Any],
    windows: list[Window],
    device: torch.device,
    options: Options,
    figures: dict[str, Any],
) -> str:
    rows = []
    for work in WORK:
        able = []
        for name, side in sides.items():
            try:
                _work(side, work, windows[: 2 * BATCH])
                able.append(name)
            except UnsupportedAttention as error:
                figures["absent"][f"{title}: {name}, {work}"] = str(error).splitlines()[0]

        def once(name: str, _: int, work: str = work) -> dict[str, float]:
            rate = _product_rate(device, 64 if options.quick else SIZE_OF_PRODUCT)
            _wait(device)
            began = time.perf_counter()
            _work(sides[name], work, windows)
            _wait(device)
            return {"seconds": time.perf_counter() - began, "rate": rate}

        rounds = interleaved(able, options.rounds, once, what=f"{title}, {work}")
        shape = (settings[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
        forward = floating_point_operations([len(each.ids) for each in windows], *shape)
        operations = forward if work == "vectors" else TRAINING_FACTOR * forward
        for name, singles in rounds.items():
            seconds = [single["seconds"] for single in singles]
            speed = Spread.of([figures["tokens"] / each for each in seconds])
            share = Spread.of([operations / single["seconds"] / single["rate"] for single in singles])
            faster = ratios([single["seconds"] for single in rounds[PEER]], seconds) if PEER in rounds else None
            figures["models"].setdefault(title, {}).setdefault(work, {})[name] = {
                "seconds": seconds,
                "tokens_per_second": speed,
                "of_product_rate": share,
            }
            rows.append([work, name, speed.text(0), share.text(), faster.ratio() if faster else ""])
    header = ("work", "contestant", "tokens/s", "of the product rate", f"times {PEER}")
    return f"## {title}\n\n{table(header, rows)}"


def _work(side: "Ours | Transformers", work: str, windows: Sequence[Window]) -> None:
    if work == "vectors":
        side.vectors(windows)
        return
    for start in range(0, len(windows), BATCH):
        side.step(windows[start : start + BATCH], work)


class Ours:
    """This package: packed batches, its own backends, its training step."""

    def __init__(
        self, model_type: str, settings: dict[str, Any], device: torch.device, backend: str | None = None
    ) -> None:
        family = FAMILIES[model_type]
        config = family.config(settings)
        self._device = device
        self._reader = Encoder(config).to(device, torch.bfloat16).eval()
        module = nn.ModuleDict({"encoder": Encoder(config)})
        for name in ("sequence", "masked_lm"):
            module[name] = new_head(config, family.head(name, settings).kind, labels=2)
        self._objective = _Objective(module.to(device).train(), backend)
        self._backend = backend
        training = TrainingOptions(learning_rate=1e-5, precision="bfloat16")
        optimizer = NamedOptimizer(module, training)
        self._stepper = Stepper(optimizer, training, 10**6, Workers(), WholeParameters())
        self._runner = Runner(row_answers(self._means, per_token=False), device)
        self._done = 0

    def _means(self, packed: Packed) -> Tensor:
        return read_rows(MeanOfTokens(), self._reader, packed, backend=self._backend)

    def vectors(self, windows: Sequence[Window]) -> NDArray[np.float32]:
        """Return mean-pooled vectors of all texts, on the host."""
        return np.stack(self._runner.run(windows))

    def step(self, windows: Sequence[Window], work: str) -> None:
        """Take one optimizer step on a batch."""
        packed = pack([window.ids for window in windows]).to(self._device)
        batch = MicroBatch((work, packed), float(len(windows)), packed.ids_T.shape[0])
        self._stepper.step(self._objective, Update((batch,)), self._done)
        self._done += 1


class _Objective:
    """Two classes, or the tokens at drawn places."""

    def __init__(self, module: nn.ModuleDict, backend: str | None) -> None:
        self.module = module
        self._backend = backend
        self.identity: dict[str, str] = {}
        self.baseline, self.min_updates = None, 0

    def updates_per_epoch(self) -> int:
        return 1

    def updates(self, epoch: int, start: int) -> Iterator[Update[tuple[str, Packed]]]:
        raise NotImplementedError("the benchmark makes its own updates")

    def validate(self) -> None:
        return None

    def loss(self, payload: tuple[str, Packed]) -> Tensor:
        work, packed = payload
        encoder = self.module["encoder"]
        assert isinstance(encoder, Encoder)
        if work == "fine-tuning":
            head = self.module["sequence"]
            assert isinstance(head, ScoreHead)
            read = head.kind.read if not isinstance(head.kind.read, MeanOfTokens) else FirstToken()
            scores_BC = head(read_rows(read, encoder, packed, backend=self._backend)).float()
            return F.cross_entropy(scores_BC, packed.ids_T[packed.first_tokens_B] % 2, reduction="sum")
        head = self.module["masked_lm"]
        assert isinstance(head, MaskedLMHead)
        rows_M = _places(packed.ids_T.shape[0], packed.ids_T.device)
        hidden_MH = encoder(packed, rows=SelectedRows(rows_M), backend=self._backend)
        logits_MV = head(hidden_MH, encoder.embedding.tokens.weight).float()
        return F.cross_entropy(logits_MV, packed.ids_T[rows_M])


class Transformers:
    """transformers at its best: padded to the longest of a batch, in order of length for vectors, torch's attention."""

    def __init__(self, model_type: str, settings: dict[str, Any], device: torch.device, attention: str) -> None:
        import transformers

        config = transformers.AutoConfig.for_model(model_type, **settings, num_labels=2)
        self._device = device

        def made(kind: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 (classes without types)
            return kind.from_config(config, attn_implementation=attention, dtype=dtype).to(device)

        self._reader = made(transformers.AutoModel, torch.bfloat16).eval()
        self._models = {
            "fine-tuning": made(transformers.AutoModelForSequenceClassification, torch.float32).train(),
            "masked language modelling": made(transformers.AutoModelForMaskedLM, torch.float32).train(),
        }
        self._optimizers = {
            work: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for work, model in self._models.items()
        }

    def vectors(self, windows: Sequence[Window]) -> NDArray[np.float32]:
        order = sorted(range(len(windows)), key=lambda index: -len(windows[index].ids))
        found: list[Any] = [None] * len(windows)
        with torch.inference_mode():
            for start in range(0, len(order), 2 * BATCH):
                chosen = order[start : start + 2 * BATCH]
                ids_BS, mask_BS = self._padded([windows[index] for index in chosen])
                hidden_BSH = self._reader(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
                mean_BH = (hidden_BSH * mask_BS[..., None]).sum(1) / mask_BS.sum(1, keepdim=True)
                for index, vector_H in zip(chosen, mean_BH.float().cpu().numpy(), strict=True):
                    found[index] = vector_H
        return np.stack(found)

    def step(self, windows: Sequence[Window], work: str) -> None:
        model, optimizer = self._models[work], self._optimizers[work]
        ids_BS, mask_BS = self._padded(windows)
        labels = ids_BS[:, 0] % 2
        if work != "fine-tuning":
            chosen_BS = torch.rand(ids_BS.shape, device=self._device) < MASKED
            labels = ids_BS.masked_fill(~(chosen_BS & (mask_BS != 0)), -100)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = model(input_ids=ids_BS, attention_mask=mask_BS, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _padded(self, windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
        longest = max(len(window.ids) for window in windows)
        ids_BS = torch.zeros(len(windows), longest, dtype=torch.int64)
        mask_BS = torch.zeros_like(ids_BS)
        for row, window in enumerate(windows):
            ids_BS[row, : len(window.ids)] = torch.tensor(window.ids)
            mask_BS[row, : len(window.ids)] = 1
        return ids_BS.to(self._device), mask_BS.to(self._device)


def _sides(
    model_type: str, settings: dict[str, Any], device: torch.device, options: Options, absent: dict[str, str]
) -> dict[str, "Ours | Transformers"]:
    makers: dict[str, Callable[[], Ours | Transformers]] = {
        OURS: lambda: Ours(model_type, settings, device),
        **{
            f"{OURS}, {name}": partial(Ours, model_type, settings, device, name)
            for name in BACKENDS
            if model_type != "bert"
        },
        PEER: lambda: Transformers(model_type, settings, device, "sdpa" if model_type == "bert" else "eager"),
        FLASH: lambda: Transformers(model_type, settings, device, "flash_attention_2"),
    }
    sides: dict[str, Ours | Transformers] = {}
    for name in options.chosen([*makers]):
        say(f"making {name}")
        try:
            sides[name] = makers[name]()
        except (ImportError, ValueError) as error:
            absent[f"{model_type}: {name}"] = str(error).splitlines()[0]
    return sides


def _settings(model_type: str, name: str, *, quick: bool) -> dict[str, Any]:
    size = next(size for size in FAMILIES[model_type].published if size.name.endswith(name))
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return {**size.settings, **(small if quick else {})}


def _windows(count: int) -> list[Window]:
    """Draw texts of random ids."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(np.log(100.0), 0.7, count), 8, 512).astype(int)
    return [Window(draw.integers(FIRST_ID, 30_000, length).tolist()) for length in lengths]


def _places(tokens: int, device: torch.device) -> Tensor:
    """Return as many places as are masked, evenly apart."""
    return torch.arange(0, tokens, round(1 / MASKED), device=device)


def _product_rate(device: torch.device, size: int) -> float:
    """Return FLOP/s of a product of two square matrices in bfloat16."""
    first, second = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        first @ second
    _wait(device)
    began = time.perf_counter()
    for _ in range(10):
        first @ second
    _wait(device)
    return 10 * 2 * size**3 / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
