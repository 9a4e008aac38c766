"""Small labelled data and checkpoints for the tests of the classifier."""

import json

import torch

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


def write_rows(path, listed):
    path.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
    return path


def without_dropout(folder):
    edit_config(folder, **PLAIN)
    return folder


def tensors(classifier, folder):
    """The weights that a classifier writes, by stored name."""
    from safetensors.torch import load_file

    classifier.save(folder)
    return load_file(folder / "model.safetensors")


def scored(model, data):
    """The uncalibrated logits of labelled rows, and the encoded labels."""
    rows = model.score(data)
    return rows.logits, rows.truth


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
