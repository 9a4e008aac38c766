"""The contestants of the GPU benchmark: this package beside transformers and sentence-transformers, at their best."""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor, nn

from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.head_kinds import FirstToken, MeanOfTokens
from bothways.encoder.heads import MaskedLMHead, ScoreHead, new_head, read_rows
from bothways.families import FAMILIES
from bothways.inference import Runner
from bothways.inference.runner import row_answers
from bothways.packing import Packed, SelectedRows, pack
from bothways.training.objective import MicroBatch, Update
from bothways.training.optimizers import NamedOptimizer, Stepper
from bothways.training.options import TrainingOptions
from bothways.training.workers import WholeParameters, Workers

VECTORS, FINE_TUNING, MASKED_LM = "vectors", "fine-tuning", "masked language modelling"
MASKED, FIRST_ID = 0.15, 10
# The padded batches that the peers are tried with, in texts.
BATCHES = (64, 128, 256)


@dataclass(frozen=True)
class Window:
    """Token ids of one text."""

    ids: list[int]

    @property
    def types(self) -> list[int]:
        return [0] * len(self.ids)


def drawn_windows(count: int, vocabulary: int = 30_000) -> list[Window]:
    """Draw texts of random ids; their lengths are those of mixed texts."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(np.log(100.0), 0.7, count), 8, 512).astype(int)
    return [Window(draw.integers(FIRST_ID, vocabulary, length).tolist()) for length in lengths]


class Ours:
    """This package: packed batches, its own backends, its training step."""

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
        self._objective = _Objective(module.to(device).train(), backend)
        training = TrainingOptions(learning_rate=1e-5, precision="bfloat16")
        optimizer = NamedOptimizer(module, training)
        self._stepper = Stepper(optimizer, training, 10**6, Workers(), WholeParameters())
        self._runner = Runner(row_answers(self._means, per_token=False), device)
        self._done = 0

    def _means(self, packed: Packed) -> Tensor:
        return read_rows(MeanOfTokens(), self._reader, packed, backend=self._backend)

    def vectors(self, windows: Sequence[Window], _: int) -> NDArray[np.float32]:
        """Return mean-pooled vectors of all texts, on the host; the runner makes its batches."""
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
        if work == FINE_TUNING:
            head = self.module["sequence"]
            assert isinstance(head, ScoreHead)
            read = head.kind.read if not isinstance(head.kind.read, MeanOfTokens) else FirstToken()
            scores_BC = head(read_rows(read, encoder, packed, backend=self._backend)).float()
            return F.cross_entropy(scores_BC, packed.ids_T[packed.first_tokens_B] % 2, reduction="sum")
        head = self.module["masked_lm"]
        assert isinstance(head, MaskedLMHead)
        # As many places as are masked, evenly apart.
        rows_M = torch.arange(0, packed.ids_T.shape[0], round(1 / MASKED), device=packed.ids_T.device)
        hidden_MH = encoder(packed, rows=SelectedRows(rows_M), backend=self._backend)
        logits_MV = head(hidden_MH, encoder.embedding.tokens.weight).float()
        return F.cross_entropy(logits_MV, packed.ids_T[rows_M])


class Transformers:
    """transformers: padded to the longest of a batch, in order of length for vectors, a fused optimizer."""

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

    def vectors(self, windows: Sequence[Window], batch: int) -> NDArray[np.float32]:
        order = sorted(range(len(windows)), key=lambda index: -len(windows[index].ids))
        means: list[Tensor] = []
        with torch.inference_mode():
            for start in range(0, len(order), batch):
                ids_BS, mask_BS = self._padded([windows[index] for index in order[start : start + batch]])
                hidden_BSH = self._reader(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
                means.append((hidden_BSH * mask_BS[..., None]).sum(1, dtype=torch.float32) / mask_BS.sum(1)[:, None])
            # Read once, so that no batch waits for the one before it.
            vectors_NH = torch.cat(means).cpu().numpy()
        found = np.empty_like(vectors_NH)
        found[order] = vectors_NH
        return found

    def step(self, windows: Sequence[Window], work: str) -> None:
        model, optimizer = self._models[work], self._optimizers[work]
        ids_BS, mask_BS = self._padded(windows)
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

    def _padded(self, windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
        longest = max(len(window.ids) for window in windows)
        ids = np.zeros((len(windows), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, window in enumerate(windows):
            ids[row, : len(window.ids)] = window.ids
            mask[row, : len(window.ids)] = 1
        return on_device(ids, self._device), on_device(mask, self._device)


Side = Ours | Transformers


# --- from texts to vectors ---


class OurEmbedder:
    """`SentenceEmbedder.encode` as it is called by default: bfloat16, its own batches."""

    batches = (0,)

    def __init__(self, folder: Path, device: torch.device) -> None:
        from bothways import SentenceEmbedder

        self._model = SentenceEmbedder.from_pretrained(folder, device=str(device))

    def encode(self, texts: list[str], _: int) -> NDArray[np.float32]:
        return np.asarray(self._model.encode(texts, show_progress=False))


class SentenceTransformers:
    """`SentenceTransformer.encode` in bfloat16 with torch's attention; it orders texts by length itself."""

    batches = (32, 128, 512)

    def __init__(self, folder: Path, device: torch.device, *, compiled: bool = False) -> None:
        from sentence_transformers import SentenceTransformer

        options = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
        self._model = SentenceTransformer(str(folder), device=str(device), model_kwargs=options, local_files_only=True)
        if compiled:
            self._model.compile(dynamic=True)

    def encode(self, texts: list[str], batch: int) -> NDArray[np.float32]:
        return np.asarray(self._model.encode(texts, batch_size=batch, show_progress_bar=False))


def write_embedder(folder: Path, model_type: str, settings: dict[str, Any], device: torch.device) -> None:
    """Write an embedder with drawn weights, and a WordPiece tokenizer of drawn words."""
    import transformers

    with device:
        config = transformers.AutoConfig.for_model(model_type, **settings)
        transformers.AutoModel.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(
            {token: number for number, token in enumerate([*special, *words(settings["vocab_size"] - len(special))])},
            unk_token="[UNK]",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, **dict(zip(names, special, strict=True))
    )
    fast.save_pretrained(folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds.items())
    ]
    pooling = {"word_embedding_dimension": settings["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


def words(count: int) -> list[str]:
    """Return different words of three to six letters; every fourth is an ending of a word."""
    draw, found = np.random.default_rng(2), dict[str, None]()
    while len(found) < count:
        letters = "".join(map(chr, draw.integers(97, 123, draw.integers(3, 7))))
        found["##" + letters if len(found) % 4 == 3 else letters] = None
    return [*found]


def drawn_texts(count: int, vocabulary: int) -> tuple[list[str], int]:
    """Draw texts of about the lengths of `drawn_windows`; return their tokens, too, the special ones included."""
    known, draw = words(vocabulary - 5), np.random.default_rng(3)
    starts, ends = [word for word in known if word[0] != "#"], [word[2:] for word in known if word[0] == "#"]
    texts, tokens = [], 0
    for window in drawn_windows(count):
        wanted = len(window.ids) - 2
        split = wanted // 5
        plain = draw.integers(0, len(starts), wanted - split).tolist()
        endings = draw.integers(0, len(ends), split).tolist()
        made = [starts[number] for number in plain]
        made[:split] = [start + ends[number] for start, number in zip(made, endings, strict=False)]
        texts.append(" ".join(made))
        tokens += len(window.ids)
    return texts, tokens
