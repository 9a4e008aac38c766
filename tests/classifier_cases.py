"""Small labelled data and checkpoints for the tests of the classifier."""

import json

import torch
from safetensors.torch import load_file, save_file

from tiny_models import edit_config

LABELS = ("ant", "bee", "cow")
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def rows(count=18, first=0):
    """Texts of two to seven words; the first word says the label."""
    made = []
    for number in range(first, first + count):
        label = number % len(LABELS)
        filler = " ".join(f"w{20 + (7 * number + place) % 40}" for place in range(1 + number % 6))
        made.append({"text": f"w{5 + label} {filler}", "label": LABELS[label]})
    return made


def noisy_rows(count=24):
    """Every fourth label is wrong, so that calibration has something to do."""
    made = rows(count)
    for number in range(0, count, 4):
        made[number]["label"] = LABELS[(number + 1) % len(LABELS)]
    return made


def tagged(count=18, first=0):
    """The words of labelled texts with tags; the first word is a name or not."""
    words = [row["text"].split() for row in rows(count, first)]
    return [
        {"tokens": each, "tags": [{"w5": "B-PER", "w6": "B-LOC"}.get(word, "O") for word in each]} for each in words
    ]


FILLER = [f"w{number}" for number in range(20, 60)]
OF_WORD = {"w5": "B-PER", "w6": "I-PER", "w7": "B-LOC"}


def named_rows(count=24, names=OF_WORD, outside="O"):
    """Tagged words: w5 begins a person and w6 goes on with it; w7 is a place."""
    made = []
    for number in range(count):
        said = (["w5", "w6"], ["w7"], ["w5"], ["w5", "w6", "w6"])[number % 4]
        words = [*FILLER[number % 7 : number % 7 + number % 3], *said, FILLER[number % 30]]
        made.append({"tokens": words, "tags": [names.get(word, outside) for word in words]})
    return made


def plant_words(folder):
    """Let the state of a token be its embedding alone, and those of w5, w6 and w7 point in directions of their own.

    A linear model of the states then tags every text, on every processor.
    """
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if name.endswith("LayerNorm.weight"):
            value.fill_(1)
        elif name.endswith("LayerNorm.bias") or ".output.dense." in name or "position" in name or "token_type" in name:
            value.zero_()
    table_VE = weights["embeddings.word_embeddings.weight"]
    table_VE[:, :3] = 0
    table_VE[5:8] = torch.eye(3, table_VE.shape[1])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_rows(path, listed):
    path.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
    return path


def without_dropout(folder):
    edit_config(folder, **PLAIN)
    return folder


def tensors(classifier, folder):
    """The weights that a classifier writes, by stored name."""
    classifier.save(folder)
    return load_file(folder / "model.safetensors")


def scored(model, data):
    """The uncalibrated logits of labelled rows, and the encoded labels."""
    rows = model.score(data)
    return rows.logits, rows.truth


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
