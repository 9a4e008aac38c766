"""What ``predict`` of a task costs beside the bare engine: the same texts, the same head, no answers made from it.

The tasks are fitted to a few rows, for how good they are does not matter here. Both sides of a task take turns in one
process.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import MODEL, Options, interleaved, ratios, say, table, write_results
from benchmarks.texts import token_counts, workloads
from benchmarks.workers import Worker

TARGET = 0.85
ENGINE, PREDICT = "engine", "predict"
TEXTS = 1_000

Run = Callable[[], Any]


class Subject:
    """What a worker serves: one task, and the engine below it."""

    def __init__(self, task: str, threads: int, quick: bool) -> None:
        import torch

        torch.set_num_threads(threads)
        texts = list(workloads(quick=quick)[0].texts[:TEXTS])
        self.tokens = sum(token_counts(texts))
        self.runs: dict[str, Run] = dict(zip((ENGINE, PREDICT), _TASKS[task](texts), strict=True))

    def run(self, side: str) -> None:
        """Read all texts once."""
        self.runs[side]()


def run(options: Options) -> Path:
    """Measure every task and write the table."""
    rows, figures = [], {}
    for task in options.chosen(list(_TASKS)):
        say(f"{task}: fitting to a few rows")
        with Worker(Subject, task, options.threads, options.quick) as worker:
            for side in (ENGINE, PREDICT):
                worker.call("run", side)
            times = interleaved(
                (ENGINE, PREDICT), options.rounds, lambda side, _: worker.timed("run", side)["cpu"], what=task
            )
        share = ratios(times[ENGINE], times[PREDICT])
        figures[task] = {"seconds": times, "share": share}
        rows.append([task, share.text(), "reached" if share.median >= TARGET else "missed"])
    header = ("task", f"share of the engine's tokens a second (target {TARGET})", "")
    note = (
        f"CPU time of {TEXTS:,} sentences of Wikipedia, MiniLM, beside the engine with the same head; with the domain "
        "flag and calibration where the task has them."
    )
    return write_results("predicting", options, {"tasks": figures}, f"{note}\n\n{table(header, rows)}")


def _drain(stream: Iterator[Any]) -> None:
    for _ in stream:
        pass


def _classification(texts: list[str]) -> tuple[Run, Run]:
    from bothways import TextClassifier

    task = TextClassifier.from_pretrained(MODEL, device="cpu")
    rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts[:64])]
    task.fit(rows, validation=rows, epochs=1, show_progress=False)  # held-out rows teach the domain flag
    runner = task.fitted.backend.runner
    return lambda: _drain(runner.run(texts, show_progress=False)), lambda: task.predict(texts, show_progress=False)


def _tagging(texts: list[str]) -> tuple[Run, Run]:
    from bothways import TextTagger
    from bothways.text import read_as_words

    task = TextTagger.from_pretrained(MODEL, device="cpu")
    words = [each for text in texts[:64] if len(each := text.split()) > 1]
    rows = [{"tokens": each, "tags": ["B-X" if word.istitle() else "O" for word in each]} for each in words]
    task.fit(rows, epochs=1, show_progress=False)
    runner, read = task.fitted.backend.runner, [read_as_words(text) for text in texts]
    return (
        lambda: _drain(runner.run(read, show_progress=False)),
        lambda: task.predict(texts, show_progress=False),
    )


def _answering(texts: list[str]) -> tuple[Run, Run]:
    from bothways import QuestionAnswerer

    task = QuestionAnswerer.from_pretrained(MODEL, device="cpu")
    question = "Which word is first?"
    rows = [
        {"question": question, "context": text, "answers": [{"text": text.split()[0], "start": 0}]}
        for text in texts[:64]
    ]
    task.fit(rows, epochs=1, show_progress=False)
    asked = [(question, text) for text in texts]
    runner = task.fitted.backend.runner
    return (
        lambda: _drain(runner.run(asked, show_progress=False)),
        lambda: task.predict(asked, show_progress=False),
    )


def _embedding(texts: list[str]) -> tuple[Run, Run]:
    from bothways import SentenceEmbedder
    from bothways.tasks.embedding.vector_model import VectorModel

    embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu")
    fitted = embedder.fitted
    runner = fitted.backend.text_runner(VectorModel.of(fitted.backend.model, fitted.settings.pooling))
    return lambda: _drain(runner.run(texts, show_progress=False)), lambda: embedder.encode(texts, show_progress=False)


_TASKS: dict[str, Callable[[list[str]], tuple[Run, Run]]] = {
    "classification": _classification,
    "tagging": _tagging,
    "answering": _answering,
    "embedding": _embedding,
}
