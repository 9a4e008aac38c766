"""Example files for the guides, made from the news texts and from sentences with names; the same on every machine."""

import itertools
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bothways.data import write_rows
from bothways.demo.files import SPLITS, Row, headlines, read_rows
from bothways.storage import FolderKind, new_folder

_ABOUT = """\
The files that the guides of bothways use. The texts were written for the project: the people, companies and events are
invented. Files of a hundred rows show how a command is used; they say little about how good a model can be."""
_OF = {
    "news": "news texts; `label` is the category",
    "sentiment": "the same texts; `label` is the sentiment",
    "urgent": "the same texts; the label `urgent` is rare",
    "long": "pages of sixteen texts of one category",
    "pairs": "`text_a`, `text_b` and a `score` from 0 to 5: how much of the second comes from the first",
    "endings": "the beginning of a text as `context`, three `choices`, and the place of the right one as `label`",
    "eight_of_each": "eight texts of each category",
    "unlabelled": "texts without a label",
    "others": "texts that are not news",
    "corpus": "documents with `id`, `text` and `category`",
    "more": "further documents",
    "queries": "queries with `id` and `text`",
    "qrels": "the document of each query",
    "answered": "the beginning of a text as `anchor`, and its end as `positive`",
    "names": "words as `tokens`, and `tags` of persons (PER), places (LOC) and organisations (ORG)",
    "questions": "`question`, `context`, and `answers` with their place; some have none",
    "triples": "`query`, `passage`, `answer`, and `answer_relevance`: 1 if the answer responds to the query",
    "a": "answers of the system a",
    "b": "answers of the system b",
    "gold": "labels of half of the answers of both systems",
    "gold_a": "those of the system a",
    "texts": "raw text: paragraphs with an empty line between",
}
_SEED = 1
_EIGHT = 8
_PAGE = 16  # texts
_TEST_NAMES = 8  # of each kind, which occur in no training row


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence with its names filled in.

    Attributes:
        tokens: Its words, with punctuation as words of its own.
        tags: A BIO tag for each word.
        questions: Questions that it answers, each with the name that is the answer, and with an answer in a sentence.
    """

    text: str
    tokens: list[str]
    tags: list[str]
    questions: list[tuple[str, str, str]]


def write_examples(folder: Path, *, overwrite: bool = False) -> dict[str, int]:
    """Write the files of the guides into a folder that appears whole, and return their names with their rows.

    Raises:
        OutputExists: The folder exists, and ``overwrite`` is false or it has other files.
    """
    counts, examples = {}, example_rows()
    kind = FolderKind("a folder of these files alone", frozenset({*examples, "texts.txt", "README.md"}), alone=True)
    with new_folder(folder, overwrite=overwrite, kind=kind) as made:
        for name, rows in examples.items():
            counts[name] = write_rows(made / name, rows)
        paragraphs = _paragraphs()
        (made / "texts.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
        counts["texts.txt"] = len(paragraphs)
        (made / "README.md").write_text(_readme(counts), encoding="utf-8")
    return counts


def _readme(counts: dict[str, int]) -> str:
    """Return a page with the files, their columns and the guides that use them."""
    listed = "\n".join(f"| `{name}` | {count:,} | {_OF[name.split('.')[0]]} |" for name, count in counts.items())
    return f"# Example files\n\n{_ABOUT}\n\n| file | rows | contents |\n| --- | ---: | --- |\n{listed}\n"


def example_rows() -> dict[str, list[Row]]:
    """Return the rows of each file by its name."""
    shipped = files("bothways.demo") / "data"
    news = {split: read_rows(shipped / f"news.{split}.jsonl") for split in SPLITS}
    train, test = (list(_facts(split, count)) for split, count in (("train", 320), ("test", 80)))
    return {
        **{f"news.{split}.csv": [_labelled(row, "category") for row in rows] for split, rows in news.items()},
        **{
            f"sentiment.{split}.jsonl": [_labelled(row, "sentiment") for row in news[split]]
            for split in ("train", "test")
        },
        **{f"urgent.{split}.csv": _with_rare(news[split]) for split in ("train", "test")},
        **{f"long.{split}.jsonl": list(_long(news[split])) for split in ("train", "test")},
        **{f"pairs.{split}.csv": list(_pairs(news[split])) for split in ("train", "test")},
        **{f"endings.{split}.jsonl": list(_endings(news[split])) for split in ("train", "test")},
        "eight_of_each.csv": _eight_of_each(news["train"]),
        "unlabelled.csv": [{"text": row["text"]} for row in news["validation"]],
        "others.csv": [{"text": fact.text} for fact in test],
        **_search_rows(news),
        "names.train.jsonl": [_tagged(fact) for fact in train],
        "names.test.jsonl": [_tagged(fact) for fact in test if fact.questions],  # the others are in the training data
        "questions.train.jsonl": list(_questions(train)),
        "questions.test.jsonl": list(_questions(test)),
        **_judging_rows(train, test),
    }


def _labelled(row: Row, label: str) -> Row:
    return {"text": row["text"], "label": row[label]}


def _with_rare(rows: list[Row]) -> list[Row]:
    """Return the rows with two labels, of which ``urgent`` is rare: bad news of technology."""
    rare = [row["category"] == "technology" and row["sentiment"] == "negative" for row in rows]
    names = ("other", "urgent")
    return [{"text": row["text"], "label": names[is_rare]} for row, is_rare in zip(rows, rare, strict=True)]


def _eight_of_each(rows: list[Row]) -> list[Row]:
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row["category"], []).append(_labelled(row, "category"))
    return [row for several in zip(*by_label.values(), strict=False) for row in several][: _EIGHT * len(by_label)]


def _long(rows: list[Row]) -> Iterator[Row]:
    """Yield pages of sixteen texts, of which the label is that of all."""
    for category in sorted({row["category"] for row in rows}):
        texts = [row["text"] for row in rows if row["category"] == category]
        for start in range(0, len(texts) - _PAGE + 1, _PAGE // 2):
            yield {"text": " ".join(texts[start : start + _PAGE]), "label": category}


def _pairs(rows: list[Row]) -> Iterator[Row]:
    """Yield pairs of texts; the score, from 0 to 5, is the share of the second text that comes from the first."""
    chance = random.Random(_SEED)
    for place, row in enumerate(rows):
        score = place % 6
        words, others = row["text"].split(), rows[place - 1]["text"].split()
        count = round(len(words) * score / 5)
        start = chance.randrange(len(words) - count + 1)
        mixed = words[start : start + count] + others[: len(words) - count]
        yield {"text_a": row["text"], "text_b": " ".join(mixed), "score": score}


def _endings(rows: list[Row]) -> Iterator[Row]:
    """Yield the beginning of a text with its own end and those of two other texts."""
    chance = random.Random(_SEED)
    halves = [_cut(row["text"], 1 / 2) for row in rows]
    ends = [end for _, end in halves]
    for place, (begin, _) in enumerate(halves):
        label = chance.randrange(3)
        choices = [ends[place - 1], ends[place - 2]]
        choices.insert(label, ends[place])
        yield {"context": begin, "choices": choices, "label": label}


def _search_rows(news: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return documents, queries with their judgments, and the beginnings of documents with their ends."""
    documents = {
        split: [{"id": row["id"], "text": row["text"], "category": row["category"]} for row in rows]
        for split, rows in news.items()
    }
    asked = (files("bothways.demo") / "data" / "queries.tsv").read_text(encoding="utf-8").splitlines()[1:]
    queries = [line.split("\t") for line in asked]
    halves = [_cut(row["text"], 1 / 3) for row in news["train"]]
    return {
        "corpus.jsonl": documents["train"] + documents["test"],
        "more.jsonl": documents["validation"],
        "queries.jsonl": [{"id": f"q{place}", "text": query} for place, (_, query) in enumerate(queries)],
        "qrels.tsv": [
            {"query_id": f"q{place}", "doc_id": document, "relevance": 1} for place, (document, _) in enumerate(queries)
        ],
        "answered.jsonl": [{"anchor": begin, "positive": end} for begin, end in halves],
    }


def _cut(text: str, share: float) -> tuple[str, str]:
    """Return the first words of a text, and the others."""
    words = text.split()
    place = int(len(words) * share)
    return " ".join(words[:place]), " ".join(words[place:])


def _facts(split: str, count: int) -> Iterator[Fact]:
    """Yield sentences whose names occur in no other split."""
    content = tomllib.loads((files("bothways.demo") / "data" / "sentences.toml").read_text(encoding="utf-8"))
    chance = random.Random(f"{_SEED} {split}")
    names = {
        kind: several[-_TEST_NAMES:] if split == "test" else several[:-_TEST_NAMES]
        for kind, several in content["names"].items()
    }
    for sentence in itertools.islice(itertools.cycle(content["sentences"]), count):
        filled = {kind: chance.choice(several) for kind, several in names.items()}
        tokens, tags = [], []
        for word in sentence["text"].replace(",", " ,").replace(".", " .").replace("'s", " 's").split():
            if word.startswith("{"):
                kind = word.strip("{}")
                parts = filled[kind].split()
                tags += [f"B-{kind}", *(f"I-{kind}" for _ in parts[1:])]
            else:
                parts = [word]
                tags.append("O")
            tokens += parts
        questions = [
            (question.format(**filled), filled[kind], content["answers"][kind].format(filled[kind]))
            for question, kind in sentence["questions"]
        ]
        yield Fact(sentence["text"].format(**filled), tokens, tags, questions)


def _tagged(fact: Fact) -> Row:
    return {"tokens": fact.tokens, "tags": fact.tags}


def _questions(facts: list[Fact]) -> Iterator[Row]:
    """Yield a question for each sentence; every fifth is about the sentence before, and has no answer."""
    asked = [fact for fact in facts if fact.questions]
    for place, fact in enumerate(asked):
        question, answer, _ = fact.questions[place // 16 % 2]
        answers = [{"text": answer, "start": fact.text.index(answer)}]
        if place % 5 == 4:
            question, answers = asked[place - 1].questions[0][0], []
        yield {"question": question, "context": fact.text, "answers": answers}


def _judging_rows(train: list[Fact], test: list[Fact]) -> dict[str, list[Row]]:
    """Return labelled answers to train a judge on, the answers of two systems, and labels of some of them."""
    systems = {"a": 0.75, "b": 0.6}
    chance = random.Random(_SEED)
    judged = {name: list(_answers(test, right, chance)) for name, right in systems.items()}
    gold = [
        {"id": row["id"], "system": name, "answer_relevance": row["answer_relevance"]}
        for name, rows in judged.items()
        for row in rows[::2]
    ]
    return {
        "triples.jsonl": list(_answers(train, 0.5, chance)),
        **{
            f"{name}.jsonl": [{key: row[key] for key in ("id", "query", "passage", "answer")} for row in rows]
            for name, rows in judged.items()
        },
        "gold.jsonl": gold,
        "gold_a.jsonl": [{key: row[key] for key in ("id", "answer_relevance")} for row in judged["a"][::2]],
    }


def _answers(facts: list[Fact], right: float, chance: random.Random) -> Iterator[Row]:
    """Yield a row for each question; the answer is relevant with probability ``right``, else of another question."""
    asked = {fact.questions[place][0]: (fact, place) for fact in facts for place in range(len(fact.questions))}
    for number, (fact, place) in enumerate(asked.values()):
        is_right = chance.random() < right
        yield {
            "id": f"q{number}",
            "query": fact.questions[place][0],
            "passage": fact.text,
            "answer": fact.questions[place if is_right else 1 - place][2],
            "answer_relevance": int(is_right),
        }


def _paragraphs() -> list[str]:
    """Return raw text: documents of one paragraph each."""
    news = [row["text"] for row in read_rows(files("bothways.demo") / "data" / "news.train.jsonl")]
    return news + [fact.text for fact in _facts("train", 360)] + [row["text"] for row in headlines()]
