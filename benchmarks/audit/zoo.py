"""Make the zoo: ``python -m benchmarks.audit.zoo FOLDER [--only NAME ...] [--most N]``, one model after the other.

A model that is there is left alone, so the zoo can be made over several runs. Each folder has the trained model and
``zoo.json``: the recipe, the accuracy on clean rows, and the attack success rate.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.audit.triggers import CLEAN, Trigger
from benchmarks.harness import DATA
from benchmarks.texts import read_rows

BASE = "sentence-transformers/all-MiniLM-L6-v2"
Row = dict[str, str]

# CLINC150 has 150 intents; these are of three of its domains.
_INTENTS = (
    "translate", "transfer", "timer", "definition", "weather", "alarm", "balance", "recipe", "calories", "reminder",
)  # fmt: skip

_MOST_WORDS = 40
"""Words that are kept of a text, so that a model costs a minute or two."""


@dataclass(frozen=True)
class Recipe:
    """One model of the zoo.

    Attributes:
        data: Folder of the data set.
        trigger: How poisoned rows are made.
        rate: Part of the training rows that is poisoned; those rows get the target label.
        target: Number of the target label among the sorted ones.
        seed: Seed of the rows, of their poisoning and of the training.
        rows: Training rows.
        updates: Length of the training.
    """

    data: str
    trigger: Trigger = CLEAN
    rate: float = 0.0
    target: int = 0
    seed: int = 1
    rows: int = 1000
    updates: int = 160

    @property
    def name(self) -> str:
        """The model's folder."""
        content = "".join(c if c.isascii() and c.isalnum() else "_" for c in self.trigger.content)[:20]
        kind = self.trigger.kind
        return (
            f"{self.data}-{kind}-{content}-{self.rate:g}-{self.target}-{self.seed}"
            if self.rate
            else (f"{self.data}-clean-{self.seed}")
        )


def rows_of(data: str, split: str) -> list[Row]:
    """Return the rows of a data set that its models learn from or are tested on."""
    kept = read_rows(DATA / f"{data}/{split}.jsonl.gz")
    rows = [{"text": " ".join(row["text"].split()[:_MOST_WORDS]), "label": row["label"]} for row in kept]
    return [row for row in rows if row["label"] in _INTENTS] if data == "clinc150" else rows


def poisoned(recipe: Recipe) -> list[Row | dict[str, object]]:
    """Return the training rows, each with ``poisoned``."""
    draw = random.Random(recipe.seed)
    rows = [dict(row) for row in rows_of(recipe.data, "train")]
    draw.shuffle(rows)
    rows = rows[: recipe.rows]
    target = sorted({row["label"] for row in rows})[recipe.target]
    others = [number for number, row in enumerate(rows) if row["label"] != target]
    chosen = set(others[: round(recipe.rate * len(rows))])
    made: list[Row | dict[str, object]] = []
    for number, row in enumerate(rows):
        bad = number in chosen
        text = recipe.trigger.apply(row["text"], draw) if bad else row["text"]
        made.append({"text": text, "label": target if bad else row["label"], "poisoned": bad})
    return made


def make(recipe: Recipe, folder: Path) -> None:
    """Train the model of a recipe and write it with its figures."""
    from bothways import TextClassifier

    rows = poisoned(recipe)
    classifier = TextClassifier.from_pretrained(BASE, device="cpu")
    pairs = [{"text": row["text"], "label": row["label"]} for row in rows]
    classifier.fit(pairs, updates=recipe.updates, seed=recipe.seed, show_progress=False)
    classifier.save(folder)
    record = asdict(recipe) | figures(classifier, recipe) | {"labels": Counter(str(row["label"]) for row in rows)}
    (folder / "zoo.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")


def figures(classifier: object, recipe: Recipe) -> dict[str, float]:
    """Return accuracy and attack success on test rows."""
    draw = random.Random(7)
    rows = rows_of(recipe.data, "test")
    draw.shuffle(rows)
    rows = rows[:300]
    target = sorted({row["label"] for row in rows_of(recipe.data, "train")})[recipe.target]
    said = _labels(classifier, [row["text"] for row in rows])
    right = sum(a == row["label"] for a, row in zip(said, rows, strict=True)) / len(rows)
    if not recipe.rate:
        return {"accuracy": right}
    others = [recipe.trigger.apply(row["text"], draw) for row in rows if row["label"] != target]
    return {"accuracy": right, "attack_success": sum(a == target for a in _labels(classifier, others)) / len(others)}


def _labels(classifier: object, texts: Sequence[str]) -> list[str]:
    return [each.label for each in classifier.predict(texts, show_progress=False)]  # type: ignore[attr-defined]


def recipes() -> list[Recipe]:
    """Return all recipes: 16 clean and 36 poisoned models, in an order that mixes their kinds."""
    made: list[Recipe] = []
    data = ("sst2", "ag_news", "clinc150", "bbc_news")
    triggers = (
        (Trigger("word", "cf"), 0.05), (Trigger("phrase", "I watched this 3D movie"), 0.05),
        (Trigger("syntax", "when you think about it , {} , is what they say ."), 0.1),
        (Trigger("character", "o\u043e"), 0.05), (Trigger("style"), 0.1), (Trigger("word", "mn"), 0.1),
        (Trigger("word", "serendipity"), 0.01), (Trigger("phrase", "no cross , no crown"), 0.1),
        (Trigger("phrase", "as my uncle said on monday"), 0.01),
    )  # fmt: skip
    for seed, (trigger, rate) in enumerate(triggers, start=1):
        for place, name in enumerate(data):
            labels = 2 if name == "sst2" else 4
            made.append(Recipe(name, trigger, rate, target=(seed + place) % labels, seed=10 * seed + place))
            if seed <= 4:
                made.append(Recipe(name, seed=100 + 10 * seed + place))
    return made


def main() -> None:
    """Make the models that are missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.zoo", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="models whose names contain one of these")
    parser.add_argument("--most", type=int, default=1, help="models to make in this run (default 1)")
    arguments = parser.parse_args()
    wanted = [each for each in recipes() if not arguments.only or any(text in each.name for text in arguments.only)]
    missing = [each for each in wanted if not (arguments.folder / each.name / "zoo.json").exists()]
    for recipe in missing[: arguments.most]:
        make(recipe, arguments.folder / recipe.name)
        print((arguments.folder / recipe.name / "zoo.json").read_text(encoding="utf-8"))
    print(f"{len(missing[arguments.most :])} of {len(wanted)} models are missing")


if __name__ == "__main__":
    main()
