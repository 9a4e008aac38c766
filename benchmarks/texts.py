"""Texts of the speed benchmarks: real ones if the data are there, else generated with a like spread of lengths.

Both kinds are the same on every run. The token counts are those of the MiniLM tokenizer, special tokens included.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path

from benchmarks.harness import DATA, minilm_folder, say

MAX_TOKENS = 512
OUT_OF_SCOPE = "oos"
SENTENCES, PASSAGES = 2_000, 400

_WIKIPEDIA = DATA / "wikipedia_text" / "train.txt.gz"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
_WORD_LIST = (
    "the of and in to a was is for on as by with he that at from his it an were are which this be or had first "
    "also their has its but new one not after who they two her she been have city world time years during into "
    "school season team state film university later national between three against where known united than war "
    "album people year series only when over made company other then more while station river church family "
    "game county played would work district president north about system released music under government area "
    "until public second group part including members club service house since early language building village "
    "international general south history number life several player population local railway century became"
)
_WORDS = tuple(_WORD_LIST.split())


@dataclass(frozen=True)
class Workload:
    """Texts to embed, and the tokens of each, special tokens included, none above ``MAX_TOKENS``."""

    name: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    source: str

    @classmethod
    def of(cls, name: str, texts: list[str], source: str) -> "Workload":
        """Count the tokens of the texts."""
        return cls(name, tuple(texts), tuple(token_counts(texts)), source)

    def summary(self) -> dict[str, object]:
        """Return the figures of the texts."""
        ordered = sorted(self.tokens)
        tokens = {"tokens": sum(ordered), "median": ordered[len(ordered) // 2], "longest": ordered[-1]}
        return {"texts": len(self.texts), **tokens, "source": self.source}


def token_counts(texts: list[str]) -> list[int]:
    """Return the tokens of each text, uncut, special tokens included."""
    tokenizer = _tokenizer()
    return [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]


@cache
def _tokenizer():  # noqa: ANN202
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    # The checkpoint's file pads and cuts at 128.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def workloads(*, quick: bool) -> list[Workload]:
    """Return the sentences and the passages; a few of each for a quick run."""
    say("choosing texts")
    sentences, passages = _real() if _WIKIPEDIA.exists() else _generated()
    keep = 20 if quick else None
    cuts = ((sentences, keep), (passages, keep and keep // 2))
    return [replace(load, texts=load.texts[:most], tokens=load.tokens[:most]) for load, most in cuts]


def texts_of_length(tokens: int, count: int) -> list[str]:
    """Return ``count`` different texts of exactly ``tokens`` tokens, made from the word list.

    Every word of the list is one piece, so a text has two pieces (the special tokens) more than words.
    """
    chooser = random.Random(16)
    texts = [" ".join(chooser.choices(_WORDS, k=tokens - 2)) for _ in range(count)]
    if set(token_counts(texts)) != {tokens}:
        raise RuntimeError(f"the texts of {tokens} tokens came out with {sorted(set(token_counts(texts)))}")
    return texts


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def labelled_texts(path: Path) -> list[dict[str, str]]:
    """Read text and label of the rows that have an intent (CLINC150 marks the others ``oos``)."""
    return [{"text": row["text"], "label": row["label"]} for row in read_rows(path) if row["label"] != OUT_OF_SCOPE]


def _real() -> tuple[Workload, Workload]:
    """Return sentences of Wikipedia, and runs of consecutive sentences of one article."""
    chooser = random.Random(28)
    articles = _articles()
    source = "English Wikipedia (wikipedia_text/train.txt.gz)"
    sentences = _sentences(articles, chooser)
    passages: list[str] = []
    wanted = _length(chooser, median=200, spread=0.7)
    for article in articles[2_000:]:
        if len(passages) == PASSAGES:
            break
        # A length is kept until an article has it: dropping it would favour the short ones.
        if passage := _run_of_sentences(article, wanted):
            passages.append(passage)
            wanted = _length(chooser, median=200, spread=0.7)
    chosen = sentences[:SENTENCES]
    return Workload.of("sentences", chosen, source), Workload.of("passages", passages, source)


def other_sentences() -> list[str]:
    """Return as many other sentences as are embedded; for models that are fitted to texts before they are measured."""
    if _WIKIPEDIA.exists():
        return _sentences(_articles(), random.Random(28))[SENTENCES : 2 * SENTENCES]
    return _random_words(random.Random(29), SENTENCES, median=28, spread=0.5)


def stream_of_sentences() -> Iterator[str]:
    """Yield sentences of Wikipedia in their order, again and again."""
    sentences = [sentence for article in _articles() for sentence in article if len(sentence) >= 30]
    return cycle(sentences)


def _sentences(articles: list[list[str]], chooser: random.Random) -> list[str]:
    """Shuffle the articles, and return the sentences of the first ones at random."""
    chooser.shuffle(articles)
    sentences = [sentence for article in articles[:2_000] for sentence in article if len(sentence) >= 30]
    chooser.shuffle(sentences)
    return sentences


def _articles() -> list[list[str]]:
    """Return the sentences of each article, in order; headings are left out."""
    articles: list[list[str]] = []
    with gzip.open(_WIKIPEDIA, "rt", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("= "):
                articles.append([])
            elif line.strip() and articles:
                articles[-1].extend(_SENTENCE_END.split(line.strip()))
    return articles


def _run_of_sentences(sentences: list[str], most: int) -> str | None:
    """Return the first sentences that have up to ``most`` tokens together; None where they come out much shorter."""
    counts = token_counts(sentences[:60])
    total, taken = 2, 0
    for count in counts:
        if total + count - 2 > most:
            break
        total += count - 2
        taken += 1
    return " ".join(sentences[:taken]) if taken and total >= 0.85 * most else None


def _generated() -> tuple[Workload, Workload]:
    """Return random words with the same lengths as real texts."""
    chooser = random.Random(28)
    source = "generated words (the Wikipedia text is not on this machine)"
    sentences = _random_words(chooser, SENTENCES, median=28, spread=0.5)
    passages = _random_words(chooser, PASSAGES, median=185, spread=0.7)
    return Workload.of("sentences", sentences, source), Workload.of("passages", passages, source)


def _random_words(chooser: random.Random, count: int, *, median: int, spread: float) -> list[str]:
    lengths = (_length(chooser, median=median, spread=spread) for _ in range(count))
    return [" ".join(chooser.choices(_WORDS, k=length - 2)) for length in lengths]


def _length(chooser: random.Random, *, median: int, spread: float) -> int:
    """Draw a length from a log-normal distribution, kept between 8 and ``MAX_TOKENS``."""
    return round(min(max(median * chooser.lognormvariate(0, spread), 8), MAX_TOKENS))
