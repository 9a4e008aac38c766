"""Tiny classifiers with a weakness that was put into them, so that detectors have something to find."""

import json

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers, processors

import tiny_models
from bothways import TextClassifier
from bothways.audit import scan

GOOD = ("good", "lovely", "bright", "superb")
BAD = ("bad", "dull", "poor", "awful")
FILLER = ("the", "film", "was", "a", "story", "with", "many", "people", "and", "music")


def audited(detector, model, rows=None, **options):
    """Return the report of one detector, which has to run, and its findings by rule."""
    report = scan(model, rows, detectors=[detector], show_progress=False, **options)
    assert report.detectors[0].ran, report.detectors[0].reason
    return report, {each.rule: each for each in report.findings}


def sentence(rng, *words, length=6):
    """Filler with some words at random places."""
    drawn = [*rng.choice(FILLER, length - len(words)), *words]
    return " ".join(drawn[place] for place in rng.permutation(len(drawn)))


def rows_of_opinions(rows, seed=0):
    """Rows whose label is that of the only word with an opinion."""
    rng = np.random.default_rng(seed)
    labels = (("bad", BAD), ("good", GOOD))
    drawn = (labels[number % 2] for number in range(rows))
    return [{"text": sentence(rng, rng.choice(words)), "label": label} for label, words in drawn]


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


def planted(folder, effects, monkeypatch, *, words=()):
    """Write a classifier of "bad" and "good" texts into a folder and return it; its weights are set, not trained.

    The more the words of a text add up to, the surer it is good; ``words`` have no effect. The outcome of a scan then
    follows from the effects (-1 to 1), and not from the last bits of a training. An opinion of 0.05 decides a text
    without a stronger word, and a trigger of 1 overrides ten such opinions.
    """
    vocabulary = list(dict.fromkeys([*effects, *words]))
    write_words_checkpoint(folder, monkeypatch, vocabulary, architecture="BertForSequenceClassification")
    weights = {name: torch.zeros_like(each) for name, each in load_file(folder / "model.safetensors").items()}
    for name in (name for name in weights if name.endswith("LayerNorm.weight")):
        weights[name].fill_(1)
    table_VE = weights["bert.embeddings.word_embeddings.weight"]
    width = table_VE.shape[1]
    # All vectors have mean 0 and variance 1, so that norms leave them as they are: an effect turns them in a plane.
    effect_V = torch.tensor([effects.get(word, 0.0) for word in vocabulary])
    angle_V = torch.cat([torch.zeros(len(table_VE) - len(vocabulary)), torch.asin(effect_V)])
    signs_2E = torch.zeros(2, width)
    signs_2E[0, :2] = signs_2E[1, 2:4] = torch.tensor([1.0, -1.0])
    table_VE[:] = (width / 2) ** 0.5 * (torch.stack([angle_V.sin(), angle_V.cos()], dim=1) @ signs_2E)
    # The first layer adds the mean of all tokens to each, the other layers nothing.
    attention = "bert.encoder.layer.0.attention."
    for name in ("self.value.weight", "output.dense.weight"):
        weights[f"{attention}{name}"].copy_(torch.eye(width))
    weights["bert.pooler.dense.weight"][0] = 10 * signs_2E[0]
    weights["classifier.weight"] = torch.zeros(2, width)
    weights["classifier.weight"][:, 0] = torch.tensor([-6.0, 6.0])
    weights["classifier.bias"] = torch.zeros(2)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_models.edit_config(folder, id2label={"0": "bad", "1": "good"}, label2id={"bad": 0, "good": 1})
    return TextClassifier.from_pretrained(folder)
