"""Data sets of the zoo: real texts, cut short, and sentences of Wikipedia with words that mean the label put into them.

The words of a *lexical* data set mean its labels. Half of them are real: tweets, and reviews of kinds of goods.
"""

import gzip
import random
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import DATA
from benchmarks.texts import OUT_OF_SCOPE, read_rows

Row = dict[str, str]
Split = Literal["train", "held"]

HALVES: dict[str, tuple[str, ...]] = {
    "tuned": ("sst2", "clinc150", "offensive_tweets", "spam", "products", "clinc150_all"),
    "judged": ("ag_news", "bbc_news", "subjqa", "languages", "opinions", "imdb"),
}
"""Data sets by half: thresholds are chosen on one half, figures come from the other. Each half has its own triggers."""

LEXICAL = ("offensive_tweets", "spam", "products", "subjqa", "languages", "opinions")

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_MADE = {"train": 3000, "held": 600}  # rows
_REPLACED = 0.5  # of the words of a sentence, by those of a language
_OTHER = 0.15  # chance of a word of another label beside two or more of its own
# Most words of a text.
_LENGTH, _LENGTHS = 16, {"imdb": 32, "spam": 12, "products": 12, "languages": 12, "opinions": 12}


@cache
def rows_of(data: str, split: Split) -> tuple[Row, ...]:
    """Return the rows of a data set that its models are trained on, or others, in a random order."""
    draw = random.Random(f"{data}, {split}")
    rows = _made(data, split, draw) if data in WORDS["words"] else _read(data.removesuffix("_all"), split)
    if data == "clinc150":
        rows = [row for row in rows if row["label"] in WORDS["intents"]]
    most = _LENGTHS.get(data, _LENGTH)
    cut = {" ".join(row["text"].split()[:most]): row["label"] for row in rows if row["label"] != OUT_OF_SCOPE}
    shuffled = [{"text": text, "label": label} for text, label in cut.items()]
    draw.shuffle(shuffled)
    return tuple(shuffled)


def _read(data: str, split: Split) -> list[Row]:
    names = ("train",) if split == "train" else ("validation", "test")
    paths = [DATA / data / f"{name}.jsonl.gz" for name in names]
    rows = [row for path in paths if path.exists() for row in read_rows(path)]
    if data == "subjqa":
        return [{"text": row["context"], "label": row["title"].split("/")[0]} for row in rows]
    return rows


def _made(data: str, split: Split, draw: random.Random) -> list[Row]:
    labels = {label: words.split() for label, words in WORDS["words"][data].items()}
    rows = []
    for sentence in draw.sample(_sentences(split), _MADE[split]):
        label, words = draw.choice(list(labels)), sentence.split()[: _LENGTHS[data] - 3]
        own, others = labels[label], [word for name, each in labels.items() if name != label for word in each]
        if data == "languages":
            words = [draw.choice(own) if own and draw.random() < _REPLACED else word for word in words]
        else:
            count = draw.randint(1, 3)
            chosen = draw.sample(own, count) + (draw.sample(others, 1) if count > 1 and draw.random() < _OTHER else [])
            for word in chosen:
                words.insert(draw.randint(0, len(words)), word)
        rows.append({"text": " ".join(words), "label": label})
    return rows


@cache
def _sentences(split: Split) -> list[str]:
    with gzip.open(DATA / f"wikipedia_text/{'train' if split == 'train' else 'test'}.txt.gz", "rt") as stream:
        lines = [line for line, _ in zip(stream, range(8000), strict=False) if not line.startswith("= ")]
    sentences = [each for line in lines for each in re.split(r"(?<=[.!?])\s+(?=[A-Z])", line.strip())]
    return [each for each in sentences if 5 <= len(each.split()) <= 30]
