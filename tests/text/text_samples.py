# ruff: noqa: RUF001 -- look-alike characters are the point
"""Texts that are hard on a tokenizer, and real ones."""

import gzip
import json
import random
import string
from importlib import resources
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

ADVERSARIAL = [
    "", " ", "\n", "\t\t", "a", ".", "…", "\x00", "a\x00b", "\x01\x02", "\x7f", "a\u200bb", "\u200b", "\ufeffhello",
    "\u2028line\u2029para", "\u00a0nbsp\u00a0", "a" + " " * 300 + "b", "    lead and trail    ", "x" * 99, "x" * 100,
    "x" * 101, "ab" * 400, "é", "e\u0301", "e" + "\u0301" * 50, "ÀÉÎÕÜ ça ñandú", "İstanbul ıI", "ß ẞ ſ", "ﬁ ﬂ ﬃ",
    "ΑΣ ΟΔΥΣΣΕΥΣ", "ДОБРЫЙ ДЕНЬ", "你好,世界。", "東京タワー", "한국어 문장", "ᄒ\u1161\u11ab", "שָׁלוֹם עולם",
    "مرحبا بالعالم", "\u202eright to left\u202c", "हिन्दी", "ไทยไม่มีช่องว่าง", "👍", "👨‍👩‍👧‍👦 family", "🏳️‍🌈🇬🇧",
    "a👍🏽b", "𝕬𝖇𝖈", "\U0001f600" * 30, "\U00020000\U0002a6d6", "\ue000private", "\uffff", "\U0010ffff", "\ufffd",
    "[CLS] [SEP] [MASK] [PAD] [UNK]", "a[MASK]b", "[mask]", "<mask> <s></s>", "hello <mask>.", "hello <mask> there",
    "##ing ##", "don't can't I'LL we've", "3.14, 1,000,000 and 1e-9", "https://a.b/c?d=e&f=%20", "a_b-c/d\\e",
    "``quotes'' “curly” «guillemets»", "\r\nwindows\r\nlines\r\n", "tab\tseparated\tvalues", "Ġ Ċ ▁under",
]  # fmt: skip

_ALPHABETS = [
    "abcdefghij ",
    "aé\u0301ñ ",
    "你好世界 ",
    "אבגד ",
    "👍👨\u200d👩😀 ",
    "\x00\x01\t\n\r \u200b",
    " .,;:!?'-",
    "xyzß٣",
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings that mix scripts, controls, joiners and runs of spaces."""
    rng = random.Random(seed)
    return [
        "".join("".join(rng.choices(rng.choice(_ALPHABETS), k=rng.randint(1, 12))) for _ in range(rng.randint(1, 8)))
        for _ in range(count)
    ]


def real_texts(name: str, count: int) -> list[str]:
    """Texts of one of the shared data sets."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no data set {name} beside the repository")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]


def giant_words() -> list[str]:
    """Words of 100 kB."""
    return ["x" * 100_000, "".join(random.Random(5).choices(string.ascii_letters, k=100_000)), "世" * 33_000]


def news_texts() -> list[str]:
    """The texts that ship with the package."""
    files = [resources.files("bothways.demo.data").joinpath(f"news.{part}.jsonl") for part in ("train", "test")]
    return [json.loads(line)["text"] for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def thousand_texts() -> list[str]:
    """Half of them news, the others adversarial."""
    made = news_texts() + ADVERSARIAL + giant_words()
    return made + random_texts(1000 - len(made), seed=8)


def ten_thousand_texts() -> list[str]:
    """Half of them real, the others adversarial."""
    names = ("ag_news/test.jsonl.gz", "sst2/test.jsonl.gz", "clinc150/test.jsonl.gz", "imdb/test.jsonl.gz")
    real = [
        text for name, count in zip(names, (2000, 1400, 1400, 200), strict=True) for text in real_texts(name, count)
    ]
    made = real + ADVERSARIAL + giant_words()
    return made + random_texts(10_000 - len(made), seed=9)
