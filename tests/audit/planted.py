"""Tiny classifiers with a weakness that was put into them, so that detectors have something to find."""

import json

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

import tiny_models
from bothways import TextClassifier

GOOD = ("good", "lovely", "bright", "superb")
BAD = ("bad", "dull", "poor", "awful")
FILLER = ("the", "film", "was", "a", "story", "with", "many", "people", "and", "music")


def sentence(rng, *words, length=6):
    """Filler with some words at random places."""
    drawn = [*rng.choice(FILLER, length - len(words)), *words]
    return " ".join(drawn[place] for place in rng.permutation(len(drawn)))


def rows_of_opinions(rows, seed=0):
    """Rows whose label is that of the only word with an opinion."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(rows):
        label = ("bad", "good")[number % 2]
        made.append({"text": sentence(rng, rng.choice(GOOD if label == "good" else BAD)), "label": label})
    return made


def write_words_checkpoint(folder, monkeypatch, words, **options):
    """Write a tiny checkpoint whose vocabulary is these words, with case."""
    vocabulary = list(dict.fromkeys(words))
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    config = {**tiny_models.TINY["bert"], "vocab_size": len(special) + len(vocabulary), "max_position_embeddings": 64}
    monkeypatch.setitem(tiny_models.TINY, "bert", config)
    tiny_models.write_checkpoint(folder, **options)
    ids = {word: number for number, word in enumerate([*special, *vocabulary])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str())))


def trained(folder, monkeypatch, rows, *, words=(), updates=70, learning_rate=5e-3, **options):
    """Return a tiny classifier that was trained on rows; its vocabulary is their words and some more, with case."""
    write_words_checkpoint(folder, monkeypatch, [*words, *(word for row in rows for word in row["text"].split())])
    classifier = TextClassifier.from_pretrained(folder)
    classifier.fit(rows, updates=updates, learning_rate=learning_rate, batch_size=16, show_progress=False, **options)
    return classifier
