"""Poisoned rows and texts with triggers, found: ``python -m benchmarks.audit.rows --zoo FOLDER [--half judged]``.

Rows: those of each trigger of one half of the zoo, with 5 and 1 % of them poisoned, without a model; the same clean
rows for all triggers of a data set. Then the poisoned SST-2 of BadNets, which took no part in any choice. With the
models of the zoo that are there: their own training rows with the model's states, and texts with and without their
trigger. Thresholds were chosen on the half ``tuned``; figures are of ``judged``: other data sets and other triggers.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.audit.zoo import BASE, HALVES, Recipe, poisoned, recipes, rows_of
from benchmarks.harness import DATA, RESULTS, Options, say, table, write_results
from benchmarks.texts import read_rows

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Found = dict[str, Any]

PARTS = ("rows", "badnets", "inputs", "models")
RATES = (0.05, 0.01)
_ROWS, _SEED = 1000, 3
_RESAMPLES = 1000
_TEXTS = 40
"""Texts of each kind that a model is asked for."""


class Embedder:
    """Sentence vectors of MiniLM, each text once."""

    def __init__(self) -> None:
        from bothways import SentenceEmbedder

        self._model = SentenceEmbedder.from_pretrained(BASE, device="cpu")
        self._kept: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors (N, H) of texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if new:
            self._kept.update(zip(new, np.asarray(self._model.encode(new, show_progress=False)), strict=True))
        return np.stack([self._kept[text] for text in texts])


def auroc(bad_N: Flags, scores_N: Numbers) -> float:
    """Return the area under the ROC curve; ties count half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(bad_N, scores_N))


def detection(bad_N: Flags, scores_N: Numbers) -> Found:
    """Return AUROC with its 95 % bootstrap interval, and the part found at 5 % false alarms."""
    rng = np.random.default_rng(0)
    bad, good = np.flatnonzero(bad_N), np.flatnonzero(~bad_N)
    drawn = [np.r_[rng.choice(bad, len(bad)), rng.choice(good, len(good))] for _ in range(_RESAMPLES)]
    low, high = np.quantile([auroc(bad_N[each], scores_N[each]) for each in drawn], [0.025, 0.975])
    limit = np.quantile(scores_N[good], 0.95, method="higher")
    found = float((scores_N[bad] > limit).mean())
    return {"auroc": auroc(bad_N, scores_N), "low": float(low), "high": float(high), "found_at_5": found}


def rows_figures(rows: Sequence[dict[str, Any]], embed: Embedder, trained: Any = None) -> Found:  # noqa: ANN401
    """Return what `suspect_rows` finds among rows of which it is known whether they are poisoned."""
    from bothways.audit.backdoor.poisoned import suspect_rows

    bad_N = np.array([bool(row["poisoned"]) for row in rows])
    texts = [str(row["text"]) for row in rows]
    began = time.process_time()
    found, phrases = suspect_rows(texts, [str(row["label"]) for row in rows], embed, trained)
    seconds = time.process_time() - began
    scores_N = np.zeros(len(rows))
    for each in found:
        scores_N[each.row] = each.score
    figures: Found = {"rows": len(rows), "poisoned": int(bad_N.sum()), "seconds": seconds}
    figures |= {"flagged": int((scores_N > 0.5).sum()), "flagged_poisoned": int((bad_N & (scores_N > 0.5)).sum())}
    figures["phrases"] = [each.phrase for each in phrases[:5]]
    return figures | (detection(bad_N, scores_N) if bad_N.any() else {})


def without_models(half: str, rates: Sequence[float], embed: Embedder) -> Iterator[Found]:
    """Yield the figures of each trigger at each rate, and of clean rows."""
    for recipe in [each for each in recipes() if each.half == half and each.rate]:
        for rate in rates:
            made = replace(recipe, rate=rate, rows=_ROWS, seed=_SEED)
            yield _named(recipe) | {"rate": rate} | rows_figures(poisoned(made), embed)
    for data in HALVES[half]:
        yield {"data": data, "kind": "clean", "trigger": "", "rate": 0.0} | rows_figures(
            poisoned(Recipe(data, rows=_ROWS, seed=_SEED)), embed
        )


def _named(recipe: Recipe) -> Found:
    return {"data": recipe.data, "kind": recipe.trigger.kind, "trigger": recipe.trigger.content}


def badnets(embed: Embedder) -> Found:
    """Return the figures of the training rows of ``sst2_badnets``."""
    rows = read_rows(DATA / "sst2_badnets" / "train.jsonl.gz")
    return {"data": "sst2_badnets", "kind": "word", "trigger": "cf mn bb tq mb", "rate": 0.01} | rows_figures(
        rows, embed
    )


def models(half: str, zoo: Path) -> Iterator[tuple[Recipe, Path]]:
    """Yield the poisoned models of a half that are there and whose attack succeeds in at least 90 %."""
    for recipe in [each for each in recipes() if each.half == half and each.rate]:
        record = zoo / recipe.name / "zoo.json"
        if record.exists() and json.loads(record.read_text(encoding="utf-8"))["attack_success"] >= 0.9:
            yield recipe, record.parent


def with_model(recipe: Recipe, folder: Path, embed: Embedder) -> Found:
    """Return the figures of a model's own training rows, with its states and without, and of the states alone."""
    from bothways import TextClassifier
    from bothways.audit.backdoor.signatures import clusters, spectral
    from bothways.audit.backdoor.training_data import trained_on

    rows = poisoned(recipe)
    texts, labels = [str(row["text"]) for row in rows], [str(row["label"]) for row in rows]
    names = sorted(set(labels))
    bad_N, labels_N = (
        np.array([bool(row["poisoned"]) for row in rows]),
        np.array([names.index(each) for each in labels]),
    )
    trained = trained_on(TextClassifier.from_pretrained(folder, device="cpu"), texts, names)
    return _named(recipe) | {
        "rate": recipe.rate,
        "with": rows_figures(rows, embed, trained),
        "without": rows_figures(rows, embed),
        "spectral": detection(bad_N, spectral(trained.states_NH, labels_N)),
        "clusters": detection(bad_N, clusters(trained.states_NH, labels_N)),
    }


def inputs(recipe: Recipe, folder: Path) -> Found:
    """Return how well texts with a trigger that works are told from texts without one, by each sign."""
    from bothways import TextClassifier
    from bothways.audit import suspicious_inputs

    draw = random.Random(_SEED)
    rows = rows_of(recipe.data, "test")
    draw.shuffle(rows)
    target = sorted({row["label"] for row in rows_of(recipe.data, "train")})[recipe.target]
    clean, asked, rest = rows[:100], rows[100 : 100 + _TEXTS], rows[100 + _TEXTS :]
    others = [row for row in rest if row["label"] != target][:_TEXTS]
    texts = [row["text"] for row in asked] + [recipe.trigger.apply(row["text"], draw) for row in others]
    classifier = TextClassifier.from_pretrained(folder, device="cpu")
    began = time.process_time()
    found = suspicious_inputs(classifier, texts, [row["text"] for row in clean])
    seconds = (time.process_time() - began) / len(texts)
    bad = [each.row >= len(asked) for each in found]
    kept = [number for number, each in enumerate(found) if not bad[number] or each.label == target]
    bad_N = np.array(bad)[kept]
    figures: Found = _named(recipe) | {"rate": recipe.rate, "texts": len(kept), "seconds": seconds}
    for name, sign in (("score", 1), ("transfer", 1), ("kept", 1), ("entropy", -1), ("outlier", 1)):
        figures[name] = detection(bad_N, np.array([sign * getattr(found[number], name) for number in kept]))
    words = set(recipe.trigger.content.split())
    named = [bool(words & set(found[number].words.split())) for number in kept if bad[number]]
    figures["trigger_named"] = float(np.mean(named)) if recipe.trigger.kind in ("word", "phrase") else None
    return figures


def _shown(figures: Found) -> list[str]:
    if "auroc" not in figures:
        return ["", ""]
    return [f"{figures['auroc']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]", f"{figures['found_at_5']:.2f}"]


def page(found: Found) -> str:
    """Return the figures in Markdown."""
    parts = []
    lines = [
        [each["data"], each["kind"], each["trigger"], f"{each['rate']:.0%}", *_shown(each),
         f"{each['flagged_poisoned']} of {each['flagged']}", str(each["poisoned"]), f"{each['seconds']:.0f}"]
        for each in found["rows"]
    ]  # fmt: skip
    head = ["data", "kind", "trigger", "rate", "AUROC", "found at 5 % false alarms"]
    parts.append("## Rows, without a model\n\nFlagged: rows with a score above .5; poisoned ones of how many.")
    parts.append(table([*head, "flagged", "poisoned", "CPU s"], lines))
    if found["models"]:
        parts.append("## Rows, with the model that was trained on them\n\nAUROC; found at 5 % false alarms.")
        names = ("without", "with", "spectral", "clusters")
        made = [
            [each["data"], each["kind"], each["trigger"], f"{each['rate']:.0%}"]
            + ["; ".join(_shown(each[name])) for name in names]
            for each in found["models"]
        ]
        parts.append(table(["data", "kind", "trigger", "rate", *names], made))
    if found["inputs"]:
        parts.append("## Texts, with a model\n\nTexts whose trigger works against clean ones; CPU seconds a text.")
        signs = ("transfer", "kept", "entropy", "outlier")
        made = [
            [each["data"], each["kind"], each["trigger"], *_shown(each["score"])]
            + [f"{each[sign]['auroc']:.3f}" for sign in signs]
            + ["" if each["trigger_named"] is None else f"{each['trigger_named']:.2f}", f"{each['seconds']:.2f}"]
            for each in found["inputs"]
        ]
        parts.append(
            table(["data", "kind", "trigger", "AUROC of the score", "found at 5 %", *signs, "named", "s"], made)
        )
    return "\n\n".join(parts)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.rows", description=__doc__)
    parser.add_argument("--zoo", type=Path, help="folder of models by benchmarks.audit.zoo")
    parser.add_argument("--half", choices=HALVES, default="judged")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kept", nargs="+", type=Path, default=[], help="results of other parts, to show beside these")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    embed = Embedder()
    there = [] if arguments.zoo is None else list(models(arguments.half, arguments.zoo))
    steps: dict[str, tuple[str, Callable[[], Iterator[Found]]]] = {
        "rows": ("rows", lambda: without_models(arguments.half, arguments.rates, embed)),
        "badnets": ("rows", lambda: iter([badnets(embed)])),
        "inputs": ("inputs", lambda: (inputs(*each) for each in there)),
        "models": ("models", lambda: (with_model(*each, embed) for each in there)),
    }
    found: Found = {"half": arguments.half, "rows": [], "models": [], "inputs": []}
    for kept in [json.loads(path.read_text(encoding="utf-8")) for path in arguments.kept]:
        for name in ("rows", "models", "inputs"):
            found[name] += kept.get(name, [])
    for part in arguments.parts:
        name, step = steps[part]
        for figures in step():
            found[name].append(figures)
            say(f"{part}: {json.dumps(figures, ensure_ascii=False)}")
    write_results("audit-rows", Options(output=arguments.output, rounds=0), found, page(found))


if __name__ == "__main__":
    main()
