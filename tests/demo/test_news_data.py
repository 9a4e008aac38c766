"""The news texts shipped for the demo: whole, balanced, without repeats, and as their card describes them."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import bothways

FOLDER = Path(bothways.__file__).parent / "demo" / "data"
SPLITS = ("train", "validation", "test")
AT_LEAST = {"train": 360, "validation": 80, "test": 100}
CATEGORIES = ("technology", "sports", "politics", "entertainment")
SENTIMENTS = ("positive", "neutral", "negative")
WORDS = range(12, 61)


def read_split(split):
    # bytes.decode is strict: a file that is not UTF-8 raises here.
    text = (FOLDER / f"news.{split}.jsonl").read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text[:-1].split("\n")]


@pytest.fixture(scope="module")
def splits():
    return {split: read_split(split) for split in SPLITS}


@pytest.fixture(scope="module")
def rows(splits):
    return [row for split in SPLITS for row in splits[split]]


@pytest.fixture(scope="module")
def card():
    return (FOLDER / "README.md").read_bytes().decode("utf-8")


def normalised(text):
    return " ".join(re.findall(r"\w+", text.casefold()))


def trigrams(text):
    words = normalised(text).split()
    return set(zip(words, words[1:], words[2:], strict=False))


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_large_enough_and_every_pair_of_labels_equally_frequent_in_it(splits, split):
    cells = Counter((row["category"], row["sentiment"]) for row in splits[split])
    assert cells.total() >= AT_LEAST[split]
    assert set(cells) == set(itertools.product(CATEGORIES, SENTIMENTS))
    assert max(cells.values()) - min(cells.values()) <= 1


def test_rows_have_the_documented_fields_and_ids_that_carry_their_category(rows):
    prefixes = {"technology": "tech", "sports": "sport", "politics": "pol", "entertainment": "ent"}
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert list(row) == ["id", "text", "category", "sentiment"]
        assert re.fullmatch(rf"{prefixes[row['category']]}-\d{{3}}", row["id"])


def test_no_two_texts_are_near_duplicates(rows):
    grams = [(row["id"], trigrams(row["text"])) for row in rows]
    close = [
        (one, other)
        for (one, left), (other, right) in itertools.combinations(grams, 2)
        if len(left & right) >= 0.5 * len(left | right)
    ]
    assert close == []


def test_texts_are_clean_single_lines_of_the_documented_length(rows):
    for row in rows:
        assert len(row["text"].split()) in WORDS, row["id"]
        assert row["text"] == " ".join(row["text"].split()), row["id"]
        assert row["text"].isprintable(), row["id"]
        # A character that could not be read, or what UTF-8 read as Latin-1 leaves behind.
        assert not re.search(r"\ufffd|Ã|Â|â€", row["text"]), row["id"]


def test_no_opening_word_gives_a_category_away(rows):
    openings = {}
    for row in rows:
        openings.setdefault(normalised(row["text"]).split()[0], Counter())[row["category"]] += 1
    for word, categories in openings.items():
        if categories.total() >= 12:
            assert len(categories) == len(CATEGORIES), word


def test_card_counts_the_files_as_they_are(splits, card):
    table = re.findall(r"^\| (\w+) \| `news\.\w+\.jsonl` \| (\d+) \| (\d+) \| (\d+) \|$", card, re.MULTILINE)
    borderline = {split: borderline_ids(card, split) for split in SPLITS}
    pairs = len(CATEGORIES) * len(SENTIMENTS)
    assert {split: tuple(map(int, numbers)) for split, *numbers in table} == {
        split: (len(splits[split]), len(splits[split]) // pairs, len(borderline[split])) for split in SPLITS
    }
    assert f"\n{sum(map(len, splits.values()))} short news texts" in card


def test_borderline_texts_of_the_card_are_an_eighth_or_so_and_cover_every_category(splits, card):
    listed = {split: borderline_ids(card, split) for split in SPLITS}
    for split, names in listed.items():
        rows = {row["id"]: row for row in splits[split]}
        assert {rows[name]["category"] for name in names} == set(CATEGORIES)
        assert len(set(names)) == len(names)
    assert 0.10 <= sum(map(len, listed.values())) / sum(map(len, splits.values())) <= 0.18


def borderline_ids(card, split):
    (block,) = re.findall(rf"^{split.capitalize()}:\n((?:`.*\n)+)", card, re.MULTILINE)
    return re.findall(r"`([a-z]+-\d{3})`", block)
