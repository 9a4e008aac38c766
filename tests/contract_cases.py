"""Data for each kind of target, and tiny models of each family that transformers made."""

import torch

from bothways.checkpoints.sentence_transformers import SentenceSettings
from bothways.encoder.head_kinds import LastToken
from bothways.families import FAMILIES
from tiny_models import TINY, edit_config, write_tokenizer

TARGETS = ("single", "multi", "regression")

# The tasks that answer a text, or a pair of texts, and what they are tried on with every family.
CASES = (*(("classification", target) for target in TARGETS), ("pairs", "single"))


DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("seq_classif_dropout", "classifier_dropout_prob", "summary_last_dropout"),
)


def padding_side(model_type):
    """The side that transformers wants padding on: it takes the last column for the last token."""
    kind = FAMILIES[model_type].head("sequence", TINY[model_type]).kind
    return "left" if isinstance(kind.read, LastToken) else "right"


def tiny_settings(model_type, **changes):
    """Settings of transformers for a tiny model without dropout."""
    import transformers

    known = transformers.AutoConfig.for_model(model_type)
    dropout = {name: 0.0 for name in DROPOUTS if hasattr(known, name)}
    return transformers.AutoConfig.for_model(model_type, **{**TINY[model_type], **dropout, **changes})


def rows(target, count=16):
    """Texts whose labels stand in their words."""
    made = []
    for number in range(count):
        filler = " ".join(f"w{25 + (7 * number + place) % 30}" for place in range(1 + number % 4))
        if target == "single":
            word, label = f"w{5 + number % 3}", ("ant", "bee", "cow")[number % 3]
        elif target == "multi":
            labels = [name for bit, name in enumerate(("odd", "second", "third")) if number >> bit & 1]
            word, label = " ".join(["w5", *(f"w{8 + len(name)}" for name in labels)]), labels
        else:
            word, label = f"w{15 + number % 3}", float(number % 3 - 1)
        made.append({"text": f"{word} {filler}", "label": label})
    return made


def pair_rows(target, count=16):
    """Pairs whose labels stand in the first word of the one text and that of the other."""
    made = []
    for row in rows(target, count):
        first, *rest = row["text"].split()
        made.append({"text_a": " ".join(rest), "text_b": first, "label": row["label"]})
    return made


def rows_of(task, target):
    """Labelled rows for a task."""
    return rows(target) if task == "classification" else pair_rows(target)


def texts_of(made):
    """The inputs of a task in rows."""
    return [row["text"] if "text" in row else (row["text_a"], row["text_b"]) for row in made]


def write_pretrained(folder, model_type):
    """A bare encoder with fresh weights that transformers saved, and its tokenizer."""
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        # So narrow a model learns fast from wider weights only.
        config = tiny_settings(model_type, initializer_range=0.2)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    write_tokenizer(folder, model_type)


def write_embedder(folder, model_type="bert", pooling="mean", normalize=True):
    """A tiny bare encoder in the layout of sentence-transformers."""
    write_pretrained(folder, model_type)
    edit_config(folder, **{"dropout" if model_type == "distilbert" else "hidden_dropout_prob": 0.0})
    as_embedder(folder, pooling, normalize)
    return folder


def as_embedder(folder, pooling="mean", normalize=True):
    """Write the files of sentence-transformers into a folder."""
    SentenceSettings(poolings=(pooling,), unit_length=normalize).write(folder, hidden=24, cls_is_last=False)


def answer(prediction):
    """A prediction in the form of a label in the data."""
    for name in ("label", "value"):
        if hasattr(prediction, name):
            return getattr(prediction, name)
    return sorted(prediction.labels)
