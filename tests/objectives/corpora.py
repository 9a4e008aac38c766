"""Token corpora of random documents, and what was written into them."""

import json
import random

from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.families import FAMILIES
from bothways.text import TextTokenizer
from bothways.training.options import AdamW, TrainingOptions
from tiny_models import FIRST_WORD, VOCABULARY, write_tokenizer


def tiny_tokenizer(folder, model_type="bert"):
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, model_type)
    return TextTokenizer.from_folder(folder, FAMILIES[model_type].tokenizer)


def random_documents(seed, count, sentences=7, words=9):
    """Documents as lists of sentences, and those as lists of ids."""
    draw = random.Random(seed)
    return [
        [
            [draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(draw.randint(1, words))]
            for _ in range(draw.randint(1, sentences))
        ]
        for _ in range(count)
    ]


def numbered_documents():
    """Documents of three sentences that count up, with words of their own: order and document can be told."""
    return [[[5 + 7 * number + 2 * at, 6 + 7 * number + 2 * at] for at in range(3)] for number in range(8)]


def options(**changes):
    """Options of a training, by default with little warm-up and without decay."""
    usual = {"precision": "float32", "warmup_fraction": 0.05, "show_progress": False}
    return TrainingOptions(**(usual | {"optimizer": AdamW(weight_decay=0.0)} | changes))


def write_corpus(folder, tokenizer, documents, shard_tokens=200):
    """Write documents as shards, a line for each sentence."""
    folder.mkdir(exist_ok=True)
    lines = ["\n".join(" ".join(f"w{one}" for one in sentence) for sentence in each) for each in documents]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in lines))
    source = ShardSource([folder / "texts.jsonl"], deduplicate=False)
    write_shards(source, folder / "shards", tokenizer, shard_tokens=shard_tokens, overwrite=True, show_progress=False)
    return TokenCorpus.open(folder / "shards")


def flat(document):
    """All ids of a document."""
    return [one for sentence in document for one in sentence]
