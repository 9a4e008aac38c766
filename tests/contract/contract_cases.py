"""What the contract of the classifier is tested with: data for each target, and a tiny pretrained model of each family."""

import torch

from tiny_models import TINY, write_tokenizer

TARGETS = ("single", "multi", "regression")


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


def write_pretrained(folder, model_type):
    """A bare encoder with fresh weights that transformers saved, and its tokenizer."""
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(model_type, **TINY[model_type])
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    write_tokenizer(folder, model_type)


def answer(prediction):
    """A prediction in the form of a label in the data."""
    for name in ("label", "value"):
        if hasattr(prediction, name):
            return getattr(prediction, name)
    return sorted(prediction.labels)
