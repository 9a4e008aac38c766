"""What tests of distillation share: tiny teachers of each kind, and a corpus of their words."""

import json
import random

from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.tasks import SentenceEmbedder
from tiny_models import write_checkpoint, write_tokenizer


def texts(count=40, seed=0):
    """Documents of a few lines, in which words run on."""
    draw = random.Random(seed)
    return [
        "\n".join(
            " ".join(f"w{5 + (start + place) % 50}" for place in range(draw.randint(3, 12)))
            for start in (draw.randrange(50) for _ in range(draw.randint(1, 4)))
        )
        for _ in range(count)
    ]


def write_texts(path, given):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
    return path


def corpus_of(folder, tokenizer, given=None):
    source = ShardSource([write_texts(folder / "texts.jsonl", texts() if given is None else given)])
    write_shards(source, folder / "shards", tokenizer, overwrite=True, show_progress=False)
    return TokenCorpus.open(folder / "shards")


def encoder_teacher(folder, model_type="bert", **options):
    """A folder with a checkpoint and a tokenizer."""
    write_checkpoint(folder, model_type, **options)
    write_tokenizer(folder, model_type)
    return folder


def embedder_teacher(folder, model_type="bert", **settings):
    """A folder with a sentence embedder; its pooling is not the usual one."""
    plain = encoder_teacher(folder / "plain", model_type)
    usual = {"pooling": "weighted_mean", "max_length": 16}
    SentenceEmbedder.from_pretrained(plain, device="cpu", **{**usual, **settings}).save(folder / "embedder")
    return folder / "embedder"


def masked_lm_teacher(folder):
    """A folder with a masked language model."""
    return encoder_teacher(folder, architecture="BertForMaskedLM")
