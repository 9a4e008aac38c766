"""The news texts shipped for the demo: whole, balanced, without repeats, and counted in their card."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import bothways

FOLDER = Path(bothways.__file__).parent / "demo" / "data"
# The texts of each split, and how many of them border on a second category.
SPLITS = {"train": (360, 48), "validation": (84, 12), "test": (108, 12)}
PREFIXES = {"technology": "tech", "sports": "sport", "politics": "pol", "entertainment": "ent"}
SENTIMENTS = ("positive", "neutral", "negative")


@pytest.fixture(scope="module")
def splits():
    # bytes.decode is strict: a file that is not UTF-8 raises here.
    contents = {split: (FOLDER / f"news.{split}.jsonl").read_bytes().decode("utf-8") for split in SPLITS}
    return {split: [json.loads(line) for line in content.splitlines()] for split, content in contents.items()}


def test_rows_are_documented_clean_and_every_pair_of_labels_is_equally_frequent(splits):
    rows = [row for split in splits.values() for row in split]
    assert len({row["id"] for row in rows}) == len({row["text"].casefold() for row in rows}) == len(rows)
    for row in rows:
        assert list(row) == ["id", "text", "category", "sentiment"]
        assert re.fullmatch(rf"{PREFIXES[row['category']]}-\d{{3}}", row["id"])
        assert 12 <= len(row["text"].split()) <= 60, row["id"]
        assert row["text"] == " ".join(row["text"].split()), row["id"]
        # A character that could not be read, or what UTF-8 read as Latin-1 leaves behind.
        assert row["text"].isprintable(), row["id"]
        assert not re.search(r"\ufffd|Ã|Â|â€", row["text"]), row["id"]
    for split in splits.values():
        cells = Counter((row["category"], row["sentiment"]) for row in split)
        assert set(cells) == set(itertools.product(PREFIXES, SENTIMENTS))
        assert len(set(cells.values())) == 1


def test_the_card_counts_the_files_as_they_are(splits):
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\w+) \| `news\.\w+\.jsonl` \| (\d+) \| (\d+) \| (\d+) \|$", card, re.MULTILINE)
    borderline = {}
    for split, rows in splits.items():
        (block,) = re.findall(rf"^{split.capitalize()}:\n((?:`.*\n)+)", card, re.MULTILINE)
        borderline[split] = re.findall(r"`([a-z]+-\d{3})`", block)
        assert {row["category"] for row in rows if row["id"] in borderline[split]} == set(PREFIXES)
    pairs = len(PREFIXES) * len(SENTIMENTS)
    assert {split: tuple(map(int, numbers)) for split, *numbers in table} == {
        split: (count, count // pairs, borders) for split, (count, borders) in SPLITS.items()
    }
    assert {split: (len(rows), len(set(borderline[split]))) for split, rows in splits.items()} == SPLITS
    assert f"\n{sum(map(len, splits.values()))} short news texts" in card
