"""Pre-training speed: real tokens per second of the training loop, ours beside transformers.

Masked language modelling (MLM) and replaced token detection (RTD) with random weights, at MiniLM's and BERT-base's
shapes, on sequences of one length and of mixed lengths from Wikipedia. One process per contestant for all rounds. The
clock runs from the first forward to the end of the last optimizer step, as in `benchmarks.finetuning`. An update has 32
sequences on both sides; the peer's batches are as large as is fastest in a trial, and it accumulates their gradients.
Ours is the objective that `bothways pretrain` trains by. The peer is transformers' Trainer: with its collator for
masked language modelling, and with ELECTRA put together from its generator and discriminator.

Shapes: B sequences of a batch, S tokens of the longest, M masked places, V vocabulary.
"""

import gzip
import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.finetuning import step_clock
from benchmarks.harness import DATA, Options, Spread, interleaved, minilm_folder, ratios, say, table, write_results
from benchmarks.reference import MatrixProducts
from benchmarks.trainer import LEARNING_RATE, WARM_UP, WEIGHT_DECAY, quiet_settings, quiet_transformers
from benchmarks.workers import AbsentPeerError, Worker

OURS, PEER = "bothways", "transformers"
PRODUCTS = "matrix products"
SHAPES: dict[str, dict[str, int]] = {
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
UPDATE = 32  # sequences of an update
UPDATES = {"MiniLM": 4, "BERT-base": 1}  # of a round
BATCHES = (4, 8, 16, 32)  # of the peer, tried
FIXED = 128  # tokens of a sequence where all have one length
GENERATOR = 4  # the generator has a quarter of the discriminator's width and heads, as in ELECTRA-small
# How many times as fast as the peer ours is meant to be.
TARGETS = {("MLM", "128 tokens"): 1.9, ("MLM", "mixed lengths"): 2.5, ("RTD", "128 tokens"): 1.8}


@dataclass(frozen=True)
class Work:
    """An objective, and the name of the encoder's shape."""

    objective: Literal["MLM", "RTD"]
    shape: str

    def settings(self, *, part: int = 1) -> dict[str, Any]:
        """Return a BERT's or an ELECTRA's settings; with a part of the width and heads."""
        sizes = dict(SHAPES[self.shape])
        for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
            sizes[name] //= part
        common = {
            "vocab_size": 30522, "type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
        }  # fmt: skip
        return {**sizes, **common, "embedding_size": SHAPES[self.shape]["hidden_size"]}

    def flop(self, lengths: Sequence[int]) -> float:
        """Return the floating-point operations of matrix products in updates on sequences of these lengths.

        Padding is not counted; logits are those of the 15 % of tokens that are masked; a backward pass counts twice.
        """
        narrow = self.settings(part=1 if self.objective == "MLM" else GENERATOR)
        forward = 0.0
        for settings in (self.settings(), narrow) if self.objective == "RTD" else (narrow,):
            hidden, inner = settings["hidden_size"], settings["intermediate_size"]
            linear = 2 * (4 * hidden**2 + 2 * hidden * inner)
            forward += settings["num_hidden_layers"] * sum(n * (linear + 4 * n * hidden) for n in lengths)
        width, vocabulary = narrow["embedding_size"], narrow["vocab_size"]
        forward += 0.15 * sum(lengths) * 2 * width * (narrow["hidden_size"] + vocabulary)
        return 3.0 * forward


def run(options: Options) -> Path:
    """Time and write the results."""
    text = DATA / "wikipedia_text" / "validation.txt.gz"
    if not text.exists():
        raise SystemExit("the pre-training benchmark needs ../shared/data/wikipedia_text, which is not there")
    figures: dict[str, Any] = {"absent": {}, "cases": []}
    shapes = list(SHAPES)[:1] if options.quick else SHAPES
    for work in (Work(objective, shape) for shape in shapes for objective in ("MLM", "RTD")):
        for name, sequences in _data(text, 1 if options.quick else UPDATES[work.shape]).items():
            figures["cases"].append(_case(work, name, sequences, options, figures["absent"]))
    header = (
        "objective", "shape", "sequences", f"{OURS}, tokens/s", f"{PEER}, tokens/s", "its batch", f"times {PEER}",
        "target", "of the matrix-product rate", f"{OURS}, peak MiB", f"{PEER}, peak MiB",
    )  # fmt: skip
    rows = [_row(case) for case in figures["cases"]]
    note = "Real tokens a second of processor time, without padding; medians, smallest and largest of the rounds."
    return write_results("pretraining", options, figures, f"{note}\n\n{table(header, rows)}")


def _data(text: Path, updates: int) -> dict[str, list[np.ndarray]]:
    """Return sequences of one length, and paragraphs of all lengths up to 512 tokens, in random order."""
    from bothways import load

    tokenizer = load(minilm_folder()).tokenizer
    with gzip.open(text, "rt", encoding="utf-8") as lines:
        paragraphs = [line.strip() for line in islice(lines, 2000) if len(line) > 60 and not line.startswith("=")]
    drawn = np.random.default_rng(0).permutation(len(paragraphs))[: updates * UPDATE]
    bare = tokenizer.encode_bare(paragraphs)
    stream = np.concatenate([np.array(ids) for ids in bare])

    def framed(ids: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], dtype=np.int32)

    width = FIXED - 2
    return {
        f"{FIXED} tokens": [framed(stream[place * width : (place + 1) * width]) for place in range(len(drawn))],
        "mixed lengths": [framed(bare[place][:510]) for place in drawn],
    }


def _case(
    work: Work, data: str, sequences: list[np.ndarray], options: Options, absent: dict[str, str]
) -> dict[str, Any]:
    """Time both sides on the same sequences."""
    label = f"{work.objective}, {work.shape}, {data}"
    batches = {OURS: UPDATE, PEER: UPDATE}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.chosen((OURS, PEER)):
            try:
                workers[name] = stack.enter_context(Worker(build, name, work, options.threads))
            except AbsentPeerError as error:
                absent[name] = str(error)
                continue
            if name == PEER:
                say(f"{label}: trial of the peer's batch")
                batches[name] = _fastest(work, sequences, options)
            workers[name].call("train", sequences[:UPDATE], batches[name], 0)
        products = stack.enter_context(Worker(MatrixProducts, options.threads))

        def once(name: str, number: int) -> dict[str, float]:
            if name == PRODUCTS:
                return dict(products.call("rates", 1024, 0.5))
            return dict(workers[name].call("train", sequences, batches[name], 1 + number))

        rounds = interleaved([*workers, PRODUCTS], options.rounds, once, what=label)
        peaks = {name: worker.call("peak_memory") for name, worker in workers.items()}
    rates = [single["encoder"] for single in rounds.pop(PRODUCTS)]
    lengths = [len(each) for each in sequences]
    seconds = {name: [single["cpu"] for single in singles] for name, singles in rounds.items()}
    flop, tokens = work.flop(lengths), sum(lengths)
    case: dict[str, Any] = {"objective": work.objective, "shape": work.shape, "data": data, "tokens": tokens}
    case |= {"batch": batches[PEER], "rounds": rounds, "peak": peaks}
    case["tokens_per_second"] = {name: Spread.of([tokens / each for each in cpu]) for name, cpu in seconds.items()}
    if OURS in seconds:
        shares = [flop / cpu / rate for cpu, rate in zip(seconds[OURS], rates, strict=True)]
        case["of_products"] = Spread.of(shares)
    if len(seconds) == 2:
        case["times"] = ratios(seconds[PEER], seconds[OURS])
    return case


def _fastest(work: Work, sequences: list[np.ndarray], options: Options) -> int:
    """Return the peer's fastest batch on one update, in a process that does not count."""
    with Worker(build, PEER, work, options.threads) as worker:
        worker.call("train", sequences[:UPDATE], UPDATE, 0)
        seconds = {batch: worker.call("train", sequences[:UPDATE], batch, 0)["cpu"] for batch in BATCHES}
    return min(seconds, key=seconds.__getitem__)


def _row(case: dict[str, Any]) -> list[str]:
    rates, peak = case["tokens_per_second"], case["peak"]
    target = TARGETS.get((case["objective"], case["data"]))
    return [
        case["objective"],
        case["shape"],
        case["data"],
        *(rates[name].text(0) if name in rates else "" for name in (OURS, PEER)),
        str(case["batch"]),
        case["times"].ratio() if "times" in case else "",
        "" if target is None else f"{target:.1f}",
        case["of_products"].text() if "of_products" in case else "",
        *(f"{peak[name] / 2**20:,.0f}" if name in peak else "" for name in (OURS, PEER)),
    ]


class Ours:
    """This package's objective and training loop."""

    def __init__(self, work: Work, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._work = work

    def train(self, sequences: Sequence[np.ndarray], batch: int, seed: int) -> dict[str, float]:
        """Train one pass; ``batch`` is not read, for batches go by tokens here."""
        import torch

        from bothways.objectives.masking import Masker, Masking
        from bothways.objectives.pretraining import PretrainingObjective
        from bothways.training.loop import train
        from bothways.training.options import TrainingOptions

        del batch
        options = TrainingOptions(
            epochs=1, batch_size=UPDATE, learning_rate=LEARNING_RATE, warmup_fraction=WARM_UP,
            weight_decay=WEIGHT_DECAY, seed=seed, show_progress=False,
        )  # fmt: skip
        tokenizer, model = _our_model(self._work, seed)
        masking = Masking() if self._work.objective == "MLM" else Masking(masked=0.85, random=0.0)
        objective = PretrainingObjective.in_epochs(
            model, _Sequences(sequences), None, Masker(tokenizer, masking, seed),
            batch_size=UPDATE, tokens=options.max_tokens,
        )  # fmt: skip
        hidden, updates = SHAPES[self._work.shape]["hidden_size"], objective.updates_per_epoch()
        resolved = options.resolved(hidden, torch.device("cpu"), updates_per_epoch=updates)
        with step_clock() as clock:
            train(objective, resolved)
        return clock.times()


def _our_model(work: Work, seed: int) -> tuple[Any, Any]:
    """Return a tokenizer, and a model with random weights and its losses."""
    from bothways import load
    from bothways.encoder.heads import ScoreHead
    from bothways.families import FAMILIES
    from bothways.objectives.masked_lm import MaskedLM
    from bothways.objectives.replaced_tokens import ReplacedTokens, SharedEmbeddings
    from bothways.pretraining.models import masked_lm_head, new_model

    tokenizer = load(minilm_folder()).tokenizer
    if work.objective == "MLM":
        made = new_model(FAMILIES["bert"], work.settings(), tokenizer, ("masked_lm",), seed=seed)
        return tokenizer, MaskedLM(made.encoder, masked_lm_head(made))
    family = FAMILIES["electra"]
    made = new_model(family, work.settings(), tokenizer, ("replaced_token",), seed=seed)
    narrow = new_model(family, work.settings(part=GENERATOR), tokenizer, ("masked_lm",), seed=seed + 1)
    head = made.heads["replaced_token"]
    assert isinstance(head, ScoreHead)
    shared = SharedEmbeddings()
    return tokenizer, ReplacedTokens(narrow.encoder, masked_lm_head(narrow), made.encoder, head, embeddings=shared)


class _Sequences:
    """Sequences in memory."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        self._sequences = sequences
        self.digest = hashlib.sha256(b"".join(each.tobytes() for each in sequences)).hexdigest()

    def __len__(self) -> int:
        return len(self._sequences)

    def read(self, places: Sequence[int], epoch: int) -> list[Any]:
        """Return the sequences at these places."""
        from bothways.objectives.sequences import TrainingSequence

        del epoch
        chosen = [(place, self._sequences[place]) for place in places]
        return [TrainingSequence(ids, np.zeros(len(ids), dtype=np.uint8), int(place)) for place, ids in chosen]


class Peer:
    """transformers' Trainer, which accumulates gradients where a batch is smaller than an update."""

    def __init__(self, work: Work, threads: int) -> None:
        self._transformers, self._work = quiet_transformers(threads), work
        self._tokenizer = self._transformers.AutoTokenizer.from_pretrained(minilm_folder())

    def train(self, sequences: Sequence[np.ndarray], batch: int, seed: int) -> dict[str, float]:
        """Train one pass in batches of so many sequences."""
        transformers = self._transformers
        transformers.set_seed(seed)
        mlm = self._work.objective == "MLM"
        shares = {} if mlm else {"mask_replace_prob": 0.85, "random_replace_prob": 0.0}
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = transformers.Trainer(
                model=self._masked_lm() if mlm else electra(transformers, self._work),
                args=transformers.TrainingArguments(
                    **quiet_settings(folder, seed),
                    use_cpu=True,
                    dataloader_pin_memory=False,
                    num_train_epochs=1,
                    per_device_train_batch_size=batch,
                    gradient_accumulation_steps=UPDATE // batch,
                    learning_rate=LEARNING_RATE,
                    lr_scheduler_type="linear",
                    warmup_steps=WARM_UP,
                    weight_decay=WEIGHT_DECAY,
                ),
                train_dataset=[{"input_ids": each.tolist()} for each in sequences],
                data_collator=transformers.DataCollatorForLanguageModeling(self._tokenizer, **shares),
            )
            trainer.remove_callback(transformers.PrinterCallback)
            with step_clock() as clock:
                trainer.train()
        return clock.times()

    def _masked_lm(self) -> Any:  # noqa: ANN401
        settings = self._work.settings()
        settings.pop("embedding_size")
        return self._transformers.BertForMaskedLM(self._transformers.BertConfig(**settings))


def electra(transformers: Any, work: Work) -> Any:  # noqa: ANN401
    """Return ELECTRA's pre-training (Clark et al. 2020, arXiv:2003.10555) put together from transformers' parts."""
    import torch

    class Electra(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = transformers.ElectraForMaskedLM(
                transformers.ElectraConfig(**work.settings(part=GENERATOR))
            )
            self.discriminator = transformers.ElectraForPreTraining(transformers.ElectraConfig(**work.settings()))
            self.discriminator.electra.embeddings = self.generator.electra.embeddings

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:  # noqa: ANN401
            found = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            chosen_BS = labels != -100
            with torch.no_grad():
                logits_MV = found.logits[chosen_BS]
                sampled_M = (logits_MV - torch.empty_like(logits_MV).exponential_().log()).argmax(-1)  # Gumbel
                original_BS = torch.where(chosen_BS, labels, input_ids)
                corrupted_BS = original_BS.masked_scatter(chosen_BS, sampled_M)
            replaced_BS = (corrupted_BS != original_BS).long()
            told = self.discriminator(input_ids=corrupted_BS, attention_mask=attention_mask, labels=replaced_BS)
            return {"loss": found.loss + 50.0 * told.loss}

    return Electra()


def build(name: str, work: Work, threads: int) -> Ours | Peer:
    """Build the subject of a worker."""
    return Ours(work, threads) if name == OURS else Peer(work, threads)
