"""Files that the README and the guides name, made of words that tiny models know, under the names that a page gives."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from command_line import call

from answering_cases import questions
from tiny_models import TINY, write_checkpoint

HEADS = {
    "a/folder/with/a/tagger": "BertForTokenClassification",
    "a/folder/with/a/reader": "BertForQuestionAnswering",
    "a/folder/with/a/chooser": "BertForMultipleChoice",
    "a/folder/with/a/masked/language/model": "BertForMaskedLM",
}


def write_rows(name, made):
    """Write rows as the suffix says: .jsonl or .csv, also .gz; of .tsv and .txt the text itself."""
    path = Path(name)
    suffix = [each for each in path.suffixes if each != ".gz"][-1]
    content = {".jsonl": _as_jsonl, ".csv": _as_csv, ".tsv": str, ".txt": str}[suffix](made)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())


def _as_jsonl(made):
    return "".join(json.dumps(row) + "\n" for row in made)


def _as_csv(made):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(made[0]))
    writer.writeheader()
    writer.writerows(made)
    return out.getvalue()


def labelled(label="label", count=48):
    """Texts of two labels, a word of its own for each."""
    return [{"text": f"w{5 + n % 2} w{20 + n % 40}", label: ("sports", "world")[n % 2]} for n in range(count)]


def pages():
    """Texts of two labels that are longer than a tiny model reads at once."""
    return [{**row, "text": " ".join([row["text"]] * 12)} for row in labelled()]


def unlabelled():
    return [{"text": row["text"]} for row in labelled()]


def tagged(count=24):
    """Words of which the first is a person, but for every eighth text, which has the wrong tag."""
    tags = [["O" if n % 8 == 7 else "B-PER", "O"] for n in range(count)]
    return [{"tokens": ["w5", f"w{20 + n % 40}"], "tags": each} for n, each in enumerate(tags)]


def scored(count=24):
    return [{"text_a": f"w{5 + n}", "text_b": f"w{5 + n % 3}", "score": n % 3} for n in range(count)]


def endings(count=16):
    return [{"context": f"w{10 + n}", "choices": ["w5 w6", f"w{20 + n}"], "label": 0} for n in range(count)]


def raw_text():
    return "".join(f"w{5 + n % 50} w{10 + n % 50} w{15 + n % 45}\n" + "\n" * (n % 5 == 4) for n in range(300))


def documents(count=40):
    return [{"id": f"d{n}", "text": f"w{5 + n} w{6 + n} w{7 + n % 9}"} for n in range(count)]


def more_documents():
    return [{"id": f"m{n}", "text": f"w{9 + n} w{40 + n}"} for n in range(4)]


def asked():
    return [{"id": f"q{n}", "text": f"w{5 + n}"} for n in range(10)]


def judged():
    return "query_id\tdoc_id\trelevance\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(10))


def answered():
    return [{"anchor": f"w{5 + n}", "positive": row["text"]} for n, row in enumerate(documents(30))]


def triples(count=48):
    """Queries with an answer that repeats a word of theirs, or does not."""
    return [
        {
            "id": f"a{n}",
            "query": f"w{5 + n} w{10 + n % 40}",
            "passage": f"w{5 + n} w{20 + n % 40}",
            "answer": f"w{5 + n if n % 2 else 60}",
            "answer_relevance": n % 2,
        }
        for n in range(count)
    ]


def answers():
    return [{name: value for name, value in row.items() if name != "answer_relevance"} for row in triples()]


def gold(*systems):
    """Labels of every third answer, for each system where there are several."""
    named = [{"system": system} for system in systems] or [{}]
    return [
        {"id": row["id"], **name, "answer_relevance": row["answer_relevance"]}
        for row in triples()[::3]
        for name in named
    ]


_CLASSIFIED = {"train.csv": labelled, "test.csv": labelled}
_TAGGED = {"train.jsonl": tagged, "validation.jsonl": tagged, "test.jsonl": tagged}
FILES = {
    "README.md": {"train.jsonl": labelled, "test.jsonl": labelled},
    "classify.md": {**_CLASSIFIED, "spam.csv": labelled, "spam_test.csv": labelled, "pairs.csv": scored},
    "few-examples.md": {"eight_of_each.csv": labelled, "test.csv": labelled, "unlabelled.csv": unlabelled},
    "tag-and-extract.md": _TAGGED,
    "questions.md": {
        "train.jsonl": lambda: questions(24),
        "test.jsonl": questions,
        "endings.jsonl": endings,
        "endings_test.jsonl": endings,
    },
    "search.md": {
        "corpus.jsonl": documents,
        "more.jsonl": more_documents,
        "queries.jsonl": asked,
        "qrels.tsv": judged,
        "answered.jsonl": answered,
        "sts.jsonl": scored,
    },
    "judging.md": {
        "triples.jsonl": triples,
        "a.jsonl": answers,
        "b.jsonl": answers,
        "gold.jsonl": lambda: gold("a", "b"),
        "gold_a.jsonl": gold,
    },
    "long-texts.md": {"train.jsonl": pages, "test.jsonl": pages},
    "confidence.md": {"test.csv": labelled, "others.csv": unlabelled},
    "choose-a-model.md": {"validation.csv": labelled, "texts.jsonl": unlabelled},
    "pretrain.md": {"texts.txt.gz": raw_text, "train.jsonl": labelled},
    "combine.md": {**_CLASSIFIED, "validation.csv": labelled, "s.jsonl": labelled, "n.jsonl": tagged},
    "light.md": {"train.jsonl": labelled, "test.jsonl": labelled},
    "basics.md": {},
}
"""Files of a page by name; a page without an entry reads none."""

_GO_ON = ("confidence.md", "choose-a-model.md")
"""Pages that go on with the model of classify.md."""


def prepare(page, folder):
    """Write what a page reads into the working directory, and the models that it names into ``folder``.

    Returns:
        The folder of the model that takes the place of the pretrained one.
    """
    tiny = folder / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, "bert", {**TINY["bert"], "num_hidden_layers": 2})  # an export takes seconds for each
        write_checkpoint(tiny)
    for name, architecture in HEADS.items():
        write_checkpoint(folder / name, architecture=architecture)
    for name, made in (FILES.get(page, {}) | (_CLASSIFIED if page in _GO_ON else {})).items():
        write_rows(name, made())
    if page in _GO_ON:
        rows = ("--train", "train.csv", "--validation", "test.csv")  # as many held-out rows as a coverage takes
        outcome = call("train", "classification", "--model", tiny, *rows, "--output", "runs/requests")
        assert outcome.code == 0, outcome.err
    return tiny
