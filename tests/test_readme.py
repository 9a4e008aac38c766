"""The snippets of the README run, one after the other, with tiny models in the place of those that they name."""

import gzip
import json
import re
from pathlib import Path

import pytest

from answering_cases import questions
from tiny_models import write_checkpoint

README = Path(__file__).resolve().parents[1] / "README.md"
PRETRAINED = "sentence-transformers/all-MiniLM-L6-v2"
HEADS = {
    "a/folder/with/a/tagger": "BertForTokenClassification",
    "a/folder/with/a/reader": "BertForQuestionAnswering",
    "a/folder/with/a/chooser": "BertForMultipleChoice",
    "a/folder/with/a/masked/language/model": "BertForMaskedLM",
}


def snippets():
    section = README.read_text(encoding="utf-8").partition("## In Python\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def write_rows(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def labelled(label="label", count=16):
    return [{"text": f"w{5 + n % 2} w{20 + n}", label: ("sports", "world")[n % 2]} for n in range(count)]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with what the snippets read."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "tiny")
    for folder, architecture in HEADS.items():
        write_checkpoint(tmp_path / folder, architecture=architecture)
    for name in ("train", "validation", "test", "eight_of_each", "s"):
        write_rows(f"{name}.jsonl", labelled())
    write_rows("t.jsonl", labelled("topic"))
    write_rows("pairs.jsonl", [{"text_a": f"w{5 + n}", "text_b": f"w{5 + n % 3}", "score": n % 3} for n in range(16)])
    endings = [{"context": f"w{10 + n}", "choices": ["w5 w6", f"w{20 + n}"], "label": 0} for n in range(16)]
    write_rows("endings.jsonl", endings)
    answered = [{"title": "t", "paragraphs": []}]
    for row in questions(16):
        answers = [{"text": each["text"], "answer_start": each["start"]} for each in row["answers"]]
        asked = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        answered[0]["paragraphs"].append({"context": row["context"], "qas": [asked]})
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        Path(name).write_text(json.dumps({"version": "v2.0", "data": answered}), encoding="utf-8")
    raw = "".join(f"w{5 + n} w{10 + n} w{15 + n}\n" for n in range(30))
    Path("texts.txt.gz").write_bytes(gzip.compress(raw.encode()))
    return tmp_path


def test_the_snippets_run(workplace, capsys):
    names = {}
    for snippet in snippets():
        if "TextTagger" in snippet:
            tagged = [{"tokens": ["w5", f"w{20 + n}"], "tags": ["B-PER", "O"]} for n in range(16)]
            for name in ("train", "validation"):
                write_rows(f"{name}.jsonl", tagged)
        code = snippet.replace(PRETRAINED, str(workplace / "tiny")).replace('"a/folder', f'"{workplace}/a/folder')
        exec(compile(code, "README.md", "exec"), names)
        if "classifier.save(" in snippet:
            names["classifier"].save("runs/other")
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert names["said"].together.label in ("sports", "world")
    assert (workplace / "runs" / "adapted" / "model.safetensors").is_file()


def test_every_task_has_a_snippet():
    shown = "".join(snippets())
    for name in (
        "TextClassifier",
        "PairClassifier",
        "MultiTask",
        "Ensemble",
        "TextTagger",
        "QuestionAnswerer",
        "MultipleChoice",
        "FillMask",
        "SentenceEmbedder",
        "CrossEncoder",
    ):
        assert f"{name}." in shown or f"{name}(" in shown, name
