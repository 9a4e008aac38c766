"""What tests of pre-training share: texts to learn by heart, and shapes that take no time."""

import json
from dataclasses import replace

from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.interrupts import Interrupts
from bothways.pretraining.recipes import ReplacedTokenDetection, Shape
from bothways.text import TextTokenizer, recipes
from bothways.text.training import train_tokenizer, write_trained_tokenizer

TEXTS = [f"the cat sat on the mat number {number}. and saw {number * 7} birds." for number in range(200)]

# Heads of a recipe's model; of others the one for masked language modelling.
HEADS = {
    "bert": ("masked_lm", "next_sentence"),
    "albert": ("masked_lm", "sentence_order"),
    **dict.fromkeys(("electra", "electra-base"), ("replaced_token",)),
    "xlnet": ("permutation_lm",),
    "deberta-v3": (),
}


def corpus_of(folder, kind, texts=TEXTS):
    """A tokenizer of a kind that is trained on the usual texts, and a corpus of texts, in a folder of its own."""
    write_trained_tokenizer(train_tokenizer(TEXTS, kind, 300), folder / "tokenizer")
    tokenizer = TextTokenizer.from_folder(folder / "tokenizer", recipes.TRAINED)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    source = ShardSource([folder / "texts.jsonl"], deduplicate=False)
    write_shards(source, folder / "shards", tokenizer, show_progress=False)
    return tokenizer, TokenCorpus.open(folder / "shards")


def tiny(recipe):
    """A recipe with a model of 32 x 2, sequences of 24 tokens, and a generator of half its width."""
    task = recipe.task
    if isinstance(task, ReplacedTokenDetection) and task.embeddings == "shared":
        task = replace(task, generator=(0.5, 0.5))
    return replace(recipe, shape=Shape(32, 2, 2, 64, 32), task=task).changed(length=24)


def interrupted_after(monkeypatch, updates, fit):
    """Fit with an interruption after some updates."""
    checked, calls = Interrupts.check, []

    def stop(self):
        calls.append(None)
        if len(calls) == updates:
            raise KeyboardInterrupt
        checked(self)

    with monkeypatch.context() as patch:
        patch.setattr(Interrupts, "check", stop)
        assert fit().interrupted
