"""A tiny model in place of the pretrained one, and the model that some pages go on with."""

import json
from collections import Counter
from importlib.resources import files

import pytest
from command_line import call

from bothways.demo.files import read_rows
from tiny_models import FIRST_WORD, TINY, VOCABULARY, write_checkpoint

GO_ON = ("confidence.md", "choose-a-model.md")
"""Pages that go on in the folder of classify.md, with its model."""


def prepare(page, folder):
    """Write a tiny model into ``folder``, and what the page goes on with into the working directory.

    Returns:
        The folder of the model that takes the place of the pretrained one.
    """
    tiny = folder / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, "bert", {**TINY["bert"], "num_hidden_layers": 2})  # an export takes seconds for each
        write_checkpoint(tiny)
    _teach_words(tiny)
    if page in GO_ON:
        _run("examples", "examples")
        rows = ("--train", "examples/news.train.csv", "--validation", "examples/news.test.csv")  # enough for a coverage
        _run("train", "classification", "--model", tiny, *rows, "--output", "examples/runs/news")
    return tiny


def _teach_words(model):
    """Give the most frequent words of the example files to a tiny model, in place of its own."""
    texts = [row["text"] for row in read_rows(files("bothways.demo") / "data" / "news.train.jsonl")]
    frequent = Counter(" ".join(texts).split()).most_common(VOCABULARY - FIRST_WORD)
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    for number, (word, _) in enumerate(frequent, start=FIRST_WORD):
        words[word] = words.pop(f"w{number}")
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def _run(*words):
    outcome = call(*words)
    assert outcome.code == 0, outcome.err
