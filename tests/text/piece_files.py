"""Small SentencePiece models, trained on the spot with the special pieces of each family's own file."""

import json
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from text_samples import news_texts

from bothways.text import SentencePiece, TextTokenizer, recipes

FAMILIES: dict[str, SentencePiece] = {
    "albert": recipes.ALBERT,
    "xlnet": recipes.XLNET,
    "xlm-roberta": recipes.XLM_ROBERTA,
    "camembert": recipes.CAMEMBERT,
    "deberta-v2": recipes.DEBERTA_V2,
}

_SPECIAL_PIECES = {
    "albert": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
    "xlnet": {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]},
    "xlm-roberta": {},
    "camembert": {},
    "deberta-v2": {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "unk_piece": "[UNK]",
    },
}

_PLAIN_MASK = {"__type": "AddedToken", "lstrip": False, "normalized": False}

# The flags that transformers 5 gives the mask: those of the settings, but none where the file itself declares a mask.
_MASK = {
    "albert": {**_PLAIN_MASK, "content": "[MASK]"},
    "xlnet": {**_PLAIN_MASK, "content": "<mask>"},
    "xlm-roberta": {**_PLAIN_MASK, "content": "<mask>", "lstrip": True},
    "camembert": {**_PLAIN_MASK, "content": "<mask>", "lstrip": True},
    "deberta-v2": {**_PLAIN_MASK, "content": "[MASK]"},
}


def corpus() -> list[str]:
    """News in English, and a few words of many scripts, so that some of them are known and most are not."""
    foreign = ["你好,世界。", "ДОБРЫЙ ДЕНЬ", "שָׁלוֹם עולם", "مرحبا بالعالم", "ÀÉÎÕÜ ça ñandú", "1,000,000 in 1999", "👍"]
    return news_texts()[:150] + foreign * 5


def opened(folder: Path, family: str) -> TextTokenizer:
    return TextTokenizer.from_folder(folder, FAMILIES[family])


def ids_of(tokenizer: TextTokenizer, texts: list) -> list[list[int]]:
    return [encoded.windows[0].ids for encoded in tokenizer.encode(texts, max_length=10**9)]


@cache
def _trained(family: str, further: tuple[str, ...], options: tuple) -> bytes:
    spm = pytest.importorskip("sentencepiece", reason="the extra spm is not installed")
    pytest.importorskip("google.protobuf", reason="the extra spm is not installed")
    stream = BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([*corpus(), *further]),
        model_writer=stream,
        vocab_size=800,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
        **{**_SPECIAL_PIECES[family], **dict(options)},
    )
    return stream.getvalue()


def train(folder: Path, family: str, *, settings: dict | None = None, further: tuple[str, ...] = (), **options) -> Path:
    """Write a model into ``folder`` under the name that the family's file has, with its settings beside it."""
    model = _trained(family, further, tuple(sorted(options.items())))
    (folder / FAMILIES[family].file).write_bytes(model)
    content = {"mask_token": _MASK[family], **(settings or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder
