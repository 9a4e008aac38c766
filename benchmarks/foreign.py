"""Texts from elsewhere: what no classifier of the quality tables was trained on.

Reviews and news are left out, which are the domains of SST-2 and AG News.
"""

import gzip
import random
import re

from benchmarks.harness import DATA
from benchmarks.texts import OUT_OF_SCOPE, read_rows

TEXTS = 500  # of each kind
# Which calls of CLINC150's authors belong to no intent; the default detector was chosen on them.
OWN = "its own, on which the detector was chosen"

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def foreign_texts(dataset: str, most: int = TEXTS) -> dict[str, list[str]]:
    """Return up to ``most`` texts of each kind, the same for every seed and side."""
    found = {
        "paragraphs of Wikipedia": _drawn(_paragraphs("wikipedia_text"), most),
        "sentences of books": _drawn(_sentences(_paragraphs("books")), most),
        "questions of SQuAD": _drawn(
            [row["question"] for row in read_rows(DATA / "squad_v1/validation.jsonl.gz")], most
        ),
    }
    own = [row["text"] for row in read_rows(DATA / dataset / "test.jsonl.gz") if row["label"] == OUT_OF_SCOPE]
    return {OWN: own if most == TEXTS else own[:most], **found} if own else found


def _paragraphs(folder: str) -> list[str]:
    """Paragraphs of running text; headings are shorter."""
    with gzip.open(DATA / folder / "test.txt.gz", "rt", encoding="utf-8") as stream:
        return [line.strip() for line in stream if len(line) > 100 and not line.startswith("= ")]


def _sentences(paragraphs: list[str]) -> list[str]:
    sentences = [sentence.strip() for each in paragraphs for sentence in _SENTENCE_END.split(each)]
    return [sentence for sentence in sentences if len(sentence) >= 30]


def _drawn(texts: list[str], most: int) -> list[str]:
    different = list(dict.fromkeys(texts))
    return random.Random(0).sample(different, min(most, len(different)))
