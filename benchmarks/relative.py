"""Families with relative or rotary positions: ours beside transformers, at random weights, without tokenising.

DeBERTa-v3-base and XLNet-base are computed eagerly by transformers, with an index of n x n for each head or a shift of
the whole score matrix; ModernBERT-base with torch's fused attention and a mask of n x n in its local layers. Each side
has a process of its own for inference and one for training, so that peak memory is that of the work named.

Mixed lengths are those of the passages of the embedding benchmark, up to 512 tokens. "Given order" and "sorted" are
how transformers' batches are made, of as many sequences as a short trial in another process finds the fastest; in
training its gradients of the batches add up to those of all sequences at once. Ours are made by the inference engine's
rules either way, and all at once in training. ``--contestants`` takes names of scenarios and of sides.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.texts import workloads
from benchmarks.trials import Trial
from benchmarks.workers import Worker

OURS, THEIRS, BERT = "bothways", "transformers", "bothways, BERT-base"
VOCABULARY = 1_000
MIXED, TRAINING_BATCH = 64, 8
PRESETS = {
    "deberta-v2": "microsoft/deberta-v3-base",
    "xlnet": "xlnet/xlnet-base-cased",
    "modernbert": "answerdotai/ModernBERT-base",
    "bert": "google-bert/bert-base-uncased",
}


@dataclass(frozen=True)
class Scenario:
    """One table row.

    Attributes:
        name: What the table calls it.
        family: The model type.
        lengths: Tokens of each sequence.
        ordered: Whether transformers gets them sorted by length.
        training: Forward and backward instead of forward alone.
        target: How many times faster ours should be.
    """

    name: str
    family: str
    lengths: tuple[int, ...]
    ordered: bool
    training: bool
    target: float


def scenarios(*, quick: bool) -> list[Scenario]:
    """What is measured."""
    passages = workloads(quick=quick)[1].tokens
    mixed, few = passages[: TRAINING_BATCH if quick else MIXED], passages[:TRAINING_BATCH]
    long = 256 if quick else 4096
    return [
        Scenario("DeBERTa-v3-base, mixed, given order", "deberta-v2", mixed, False, False, 2.2),
        Scenario("DeBERTa-v3-base, mixed, sorted", "deberta-v2", mixed, True, False, 1.35),
        Scenario("DeBERTa-v3-base, 8 x 256", "deberta-v2", (256,) * 8, True, False, 1.35),
        Scenario("DeBERTa-v3-base, 4 x 512", "deberta-v2", (512,) * 4, True, False, 1.35),
        Scenario("DeBERTa-v3-base, training, mixed, given order", "deberta-v2", few, False, True, 1.8),
        Scenario("DeBERTa-v3-base, training, 8 x 256", "deberta-v2", (256,) * 8, True, True, 1.3),
        Scenario("XLNet-base, mixed, sorted", "xlnet", mixed, True, False, 1.3),
        Scenario(f"ModernBERT-base, 1 x {long}", "modernbert", (long,), True, False, 1.5),
    ]


class Side:
    """One encoder with random weights, on either side."""

    def __init__(self, name: str, family: str, training: bool, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        from bothways.families import FAMILIES

        published = {one.name: one.settings for one in FAMILIES[family].published}[PRESETS[family]]
        settings = {**published, "vocab_size": VOCABULARY}
        make: Callable[..., Any] = _theirs if name == THEIRS else _ours
        self.model, self._run = make(family, settings, training)
        self.model.train(training)
        self._training = training

    def run(self, lengths: tuple[int, ...], ordered: bool, batch: int) -> None:
        """All sequences once: forward, and backward in training; ``batch`` is that of transformers."""
        import torch

        generator = torch.Generator().manual_seed(1)
        order = sorted(lengths, reverse=True) if ordered else lengths
        ids = [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in order]
        if self._training:
            self._run(ids, batch)
            self.model.zero_grad(set_to_none=True)
        else:
            with torch.inference_mode():
                self._run(ids, batch)


def _ours(
    family: str, settings: dict[str, object], training: bool
) -> tuple[Any, Callable[[list[list[int]], int], None]]:
    import torch

    from bothways.encoder import Encoder
    from bothways.families import FAMILIES
    from bothways.inference import Runner
    from bothways.packing import pack
    from bothways.text import Window

    encoder = Encoder(FAMILIES[family].config(settings))
    runner = Runner(lambda packed, windows: encoder(packed)[: len(windows)], torch.device("cpu"))

    def run(ids: list[list[int]], batch: int) -> None:  # noqa: ARG001
        if training:
            encoder(pack(sorted(ids, key=len, reverse=True))).square().mean().backward()
            return
        runner.run([Window(one, [0] * len(one)) for one in ids])

    return encoder, run


def _theirs(
    family: str, settings: dict[str, object], training: bool
) -> tuple[Any, Callable[[list[list[int]], int], None]]:
    import torch
    import transformers

    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **settings, pad_token_id=0))

    def run(ids: list[list[int]], batch: int) -> None:
        tokens = sum(map(len, ids))
        for start in range(0, len(ids), batch):
            part = ids[start : start + batch]
            longest = max(map(len, part))
            ids_BS = torch.tensor([one + [0] * (longest - len(one)) for one in part])
            mask_BS = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in part])
            hidden_BSH = model(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
            if training:
                # Every token counts alike, so that the sum of the gradients is that of the mean over all of them.
                (hidden_BSH[mask_BS.bool()].square().mean() * mask_BS.sum() / tokens).backward()

    return model, run


def run(options: Options) -> Path:
    """Measure every scenario and write the results."""
    figures: dict[str, Any] = {"scenarios": {}}
    rows = []
    made = {each.name: each for each in scenarios(quick=options.quick)}
    for scenario in [made[name] for name in options.chosen([*made])] or made.values():
        say(scenario.name)
        entry = _measure(scenario, options)
        figures["scenarios"][scenario.name] = entry
        rows.append(_row(scenario, entry))
        say(" | ".join(rows[-1]))
    header = (
        "what", "tokens", "ours, CPU s", "transformers, CPU s", "transformers' batch", "times faster", "aim",
        "our peak memory, share", "times BERT-base of ours",
    )  # fmt: skip
    note = (
        f"float32, vocabulary of {VOCABULARY:,}, published base sizes. transformers' batch: the fastest of a trial; in "
        "training its gradients are added up. A tie: the spread of the ratio includes 1. Memory: what a process grew "
        "by over the loaded model, at its peak. BERT-base: ours on the same lengths."
    )
    return write_results(f"relative-{options.threads}-thread", options, figures, f"{note}\n\n{table(header, rows)}")


def _trial(scenario: Scenario, options: Options) -> Trial:
    """The fastest batch of transformers, in a process of its own, whose memory is not that of the measured one."""
    with Worker(Side, THEIRS, scenario.family, scenario.training, options.threads) as worker:
        worker.call("run", (min(scenario.lengths),) * 2, True, 2)
        return Trial.of(
            lambda batch: worker.timed("run", scenario.lengths, scenario.ordered, batch)["cpu"], len(scenario.lengths)
        )


def _measure(scenario: Scenario, options: Options) -> dict[str, Any]:
    names = options.chosen((OURS, THEIRS, BERT)) or [OURS, THEIRS, BERT]
    trial = _trial(scenario, options) if THEIRS in names and len(scenario.lengths) > 1 else Trial(1, {})
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker(Side, name, "bert" if name == BERT else scenario.family, scenario.training, options.threads)
            )
            for name in names
            if name != BERT or max(scenario.lengths) <= 512
        }
        loaded = {name: worker.call("peak_memory") for name, worker in workers.items()}
        warm = (min(scenario.lengths),) * 2
        for worker in workers.values():
            worker.call("run", warm, True, 2)
        rounds = interleaved(
            [*workers],
            options.rounds,
            lambda name, _: workers[name].timed("run", scenario.lengths, scenario.ordered, trial.batch),
            what=scenario.name,
        )
        peaks = {name: worker.call("peak_memory") for name, worker in workers.items()}
    seconds = {name: [single["cpu"] for single in singles] for name, singles in rounds.items()}
    entry: dict[str, Any] = {"tokens": sum(scenario.lengths), "rounds": rounds, "loaded": loaded, "peaks": peaks}
    entry["seconds"] = {name: Spread.of(values) for name, values in seconds.items()}
    if THEIRS in seconds:
        entry["batch"], entry["batch_trial"] = trial.batch, trial.seconds
    if THEIRS in seconds and OURS in seconds:
        entry["speedup"] = ratios(seconds[THEIRS], seconds[OURS])
        grown = {name: peaks[name] - loaded[name] for name in (OURS, THEIRS)}
        entry["memory_share"] = grown[OURS] / max(1, grown[THEIRS])
    if BERT in seconds and OURS in seconds:
        entry["times_bert"] = ratios(seconds[OURS], seconds[BERT])
    return entry


def _row(scenario: Scenario, entry: dict[str, Any]) -> list[str]:
    seconds = entry["seconds"]
    return [
        scenario.name,
        f"{entry['tokens']:,}",
        seconds[OURS].text() if OURS in seconds else "",
        seconds[THEIRS].text() if THEIRS in seconds else "",
        str(entry.get("batch", "")),
        entry["speedup"].ratio() if "speedup" in entry else "",
        f"{scenario.target:g}",
        f"{entry['memory_share']:.2f}" if "memory_share" in entry else "",
        entry["times_bert"].text() if "times_bert" in entry else "",
    ]
