"""What ``predict`` of each task costs beside the bare engine: the same texts, the same head, no answers made of it.

The tasks are fitted to a few rows, for how good they are does not matter here. Both sides of a task take turns in one
process. The profile of one more run says where the time of ``predict`` goes; profiling itself makes Python look slower
than it is.
"""

import cProfile
import pstats
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import MODEL, Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.texts import token_counts, workloads
from benchmarks.workers import Worker

TARGET = 0.85
PLAIN, PREDICT = "engine", "predict"
TEXTS = 1_000
OWN = "/bothways/"
COMPUTING = ("/bothways/encoder/", "/bothways/packing")

Run = Callable[[], Any]


class Subject:
    """What a worker serves: one task, and the engine below it.

    Args:
        task: Its name.
        threads: Compute threads.
        quick: Whether a few texts will do.
    """

    def __init__(self, task: str, threads: int, quick: bool) -> None:
        import torch

        torch.set_num_threads(threads)
        texts = list(workloads(quick=quick)[0].texts[:TEXTS])
        self.tokens = sum(token_counts(texts))
        self.runs: dict[str, Run] = dict(zip((PLAIN, PREDICT), _TASKS[task](texts), strict=True))

    def run(self, side: str) -> None:
        """All texts once."""
        self.runs[side]()

    def profile(self) -> dict[str, Any]:
        """Share of the time that Python code of ours takes outside of the encoder, and where most of that is."""
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            profiler = cProfile.Profile()
            profiler.runcall(self.runs[PREDICT])
            profiler.dump_stats(Path(folder) / "profile")
            stats = pstats.Stats(str(Path(folder) / "profile"))
        times = {key: values[2] for key, values in stats.stats.items()}  # type: ignore[attr-defined]
        total = sum(times.values())
        ours = {
            f"{Path(file).stem}.{name}": seconds / total
            for (file, _, name), seconds in times.items()
            if OWN in file and not any(part in file for part in COMPUTING)
        }
        first = sorted(ours.items(), key=lambda each: -each[1])[:3]
        return {"ours": sum(ours.values()), "first": first}


def run(options: Options) -> Path:
    """Measure every task and write the table."""
    rows, kept = [], {}
    for task in options.chosen(list(_TASKS)):
        say(f"{task}: fitting to a few rows")
        with Worker(Subject, task, options.threads, options.quick) as worker:
            for side in (PLAIN, PREDICT):
                worker.call("run", side)
            times = interleaved(
                (PLAIN, PREDICT), options.rounds, lambda side, _: worker.timed("run", side)["cpu"], what=task
            )
            profile = worker.call("profile")
        share = ratios(times[PLAIN], times[PREDICT])
        kept[task] = {"seconds": times, "share": share, "profile": profile}
        first = ", ".join(f"`{name}` {100 * part:.1f} %" for name, part in profile["first"])
        rows.append([task, share.text(), _verdict(share), f"{100 * profile['ours']:.1f} %", first])
    header = (
        "task",
        f"share of the engine's tokens a second (target {TARGET})",
        "",
        "own Python, profiled",
        "most of it",
    )
    note = (
        f"CPU time of {TEXTS:,} sentences of Wikipedia, MiniLM, beside the engine with the same head; with the domain "
        "flag and calibration where the task has them. An ensemble's time is that of its members."
    )
    return write_results("predicting", options, {"tasks": kept}, f"{note}\n\n{table(header, rows)}")


def _verdict(share: Spread) -> str:
    return "reached" if share.median >= TARGET else "missed"


def _labelled(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts[:64])]


def _few() -> dict[str, Any]:
    return {"epochs": 1, "show_progress": False}


def _drain(stream: Iterator[Any]) -> None:
    for _ in stream:
        pass


def _classification(texts: list[str]) -> tuple[Run, Run]:
    from bothways import TextClassifier

    task = TextClassifier.from_pretrained(MODEL, device="cpu")
    rows = _labelled(texts)
    task.fit(rows, validation=rows, **_few())  # held-out rows teach the domain flag
    engine = task.fitted.opened.engine(task.fitted.module)
    return lambda: _drain(engine.run(texts, show_progress=False)), lambda: task.predict(texts, show_progress=False)


def _pairs(texts: list[str]) -> tuple[Run, Run]:
    from bothways import PairClassifier

    pairs = list(zip(texts, [*texts[1:], texts[0]], strict=True))
    task = PairClassifier.from_pretrained(MODEL, device="cpu")
    rows = [{"text_a": a, "text_b": b, "label": "ab"[number % 2]} for number, (a, b) in enumerate(pairs[:64])]
    task.fit(rows, **_few())
    engine = task.fitted.opened.engine(task.fitted.module)
    return lambda: _drain(engine.run(pairs, show_progress=False)), lambda: task.predict(pairs, show_progress=False)


def _tagged(texts: Sequence[str]) -> list[dict[str, list[str]]]:
    words = [text.split() for text in texts[:64]]
    return [
        {"tokens": each, "tags": ["B-X" if word.istitle() else "O" for word in each]} for each in words if len(each) > 1
    ]


def _tagging(texts: list[str]) -> tuple[Run, Run]:
    from bothways import TextTagger
    from bothways.text import read_as_words

    task = TextTagger.from_pretrained(MODEL, device="cpu")
    task.fit(_tagged(texts), **_few())
    engine, read = task.fitted.opened.engine(task.fitted.module), [read_as_words(text) for text in texts]
    return lambda: _drain(engine.run_tokens(read, show_progress=False)), lambda: task.predict(
        texts, show_progress=False
    )


def _answering(texts: list[str]) -> tuple[Run, Run]:
    from bothways import QuestionAnswerer

    task = QuestionAnswerer.from_pretrained(MODEL, device="cpu")
    rows = [
        {"question": "Which word is first?", "context": text, "answers": [{"text": text.split()[0], "start": 0}]}
        for text in texts[:64]
    ]
    task.fit(rows, **_few())
    asked = [("Which word is first?", text) for text in texts]
    engine = task.fitted.opened.engine(task.fitted.module)
    return lambda: _drain(engine.run_tokens(asked, show_progress=False)), lambda: task.predict(
        asked, show_progress=False
    )


def _fill_mask(texts: list[str]) -> tuple[Run, Run]:
    from bothways import FillMask
    from bothways.encoder.rows import SelectedRows

    task = FillMask.from_pretrained(MODEL, device="cpu")
    task.fit(texts[:64], **_few())
    masked = [f"{text} [MASK] ." for text in texts]
    encoder, head, mask = task.model.encoder, task.fitted.model.head, task.model.tokenizer.mask_id

    def best(packed: Any) -> Any:  # noqa: ANN401
        hidden_MH = encoder(packed, rows=SelectedRows((packed.ids_T == mask).nonzero()[:, 0]))
        return head(hidden_MH, encoder.embedding.tokens.weight).log_softmax(-1).topk(5).values

    engine = task.fitted.opened.engine(best)
    return lambda: _drain(engine.run(masked, show_progress=False)), lambda: task.predict(masked, show_progress=False)


def _multitask(texts: list[str]) -> tuple[Run, Run]:
    from bothways import MultiTask, TaggingData, TaskData
    from bothways.compose.multitask.shared_objective import SharedHeads
    from bothways.text import read_as_words

    task = MultiTask.from_pretrained(MODEL, device="cpu")
    task.fit({"labels": TaskData(_labelled(texts)), "tags": TaggingData(_tagged(texts))}, **_few())
    heads = [task.part(name).fitted.model.head for name in task.parts]
    engine = task.part("labels").fitted.opened.engine(SharedHeads(task.model.encoder, heads).eval())
    read = [read_as_words(text) for text in texts]
    return lambda: _drain(engine.run_tokens(read, show_progress=False)), lambda: task.predict(
        texts, show_progress=False
    )


def _embedding(texts: list[str]) -> tuple[Run, Run]:
    from bothways import SentenceEmbedder

    embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu")
    engine = _engine(embedder)
    return lambda: _drain(engine.run(texts, show_progress=False)), lambda: embedder.encode(texts, show_progress=False)


def _engine(embedder: Any) -> Any:  # noqa: ANN401
    """Of an encoder and its pooling: vectors of windows, neither merged nor scaled."""
    from bothways.tasks.embedding.vector_model import VectorModel

    fitted = embedder.fitted
    return fitted.opened.engine(VectorModel.of(fitted.opened.model, fitted.settings.pooling))


_TASKS: dict[str, Callable[[list[str]], tuple[Run, Run]]] = {
    "classification": _classification,
    "pairs": _pairs,
    "tagging": _tagging,
    "answering": _answering,
    "fill-mask": _fill_mask,
    "multitask (labels and tags)": _multitask,
    "embedding": _embedding,
}
