"""The same ids as from SentencePiece itself, with which the models were trained.

Left out are texts that the ``tokenizers`` library reads in its own way, for transformers as for this package: special
tokens written out, several combining marks or joiners on one letter (some are lost), the sign that stands for a space.
"""

import re
import unicodedata

import pytest
from piece_files import FAMILIES, ids_of, opened, train
from text_samples import ten_thousand_texts, thousand_texts

sentencepiece = pytest.importorskip("sentencepiece", reason="the extra spm is not installed")


@pytest.fixture(scope="module")
def plain_texts():
    texts = [text for text in thousand_texts() if plain(text)]
    assert len(texts) > 850
    return texts


def plain(text: str) -> bool:
    """Whether a text has neither what the ``tokenizers`` library reads in its own way, nor special tokens."""
    special = re.search(r"<mask>|</?s>|<unk>|\[(CLS|SEP|MASK|PAD|UNK)\]", text)
    joined = re.search("[\u0300-\u036f][\u0300-\u036f\u200d]|[\u1100-\u11ff]{2}", unicodedata.normalize("NFD", text))
    own_space = "▁" in text
    return special is None and joined is None and not own_space


def without_accents(text: str) -> str:
    """As the original code, but for marks of no combining class (Hindi vowels), which the library removes too."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    return "".join(mark for mark in unicodedata.normalize("NFKD", text) if unicodedata.category(mark)[0] != "M")


def lowered(text: str) -> str:
    """One character at a time: Python writes a sigma at the end of a word in its own way."""
    return "".join(character.lower() for character in text)


def sentencepiece_ids(folder, family, texts) -> list[list[int]]:
    """What the model was trained with: the original code's steps around SentencePiece."""
    encode = sentencepiece.SentencePieceProcessor(model_file=str(folder / FAMILIES[family].file)).encode
    match family:
        case "albert":
            return [[2, *encode(lowered(without_accents(text))), 3] for text in texts]
        case "xlnet":
            return [[*encode(without_accents(text)), 4, 3] for text in texts]
        case "xlm-roberta":
            return [[0, *(number + 1 if number else 3 for number in encode(text)), 2] for text in texts]
        case "camembert":
            return [[5, *(number + 4 if number else 3 for number in encode(text)), 6] for text in texts]
    return [[1, *encode(text), 2] for text in texts]


def assert_unigram_same(ours: list[list[int]], expected: list[list[int]]) -> None:
    """The same pieces; of two ways that score alike, rounding chooses, and SentencePiece alone adds in float32."""
    different = [index for index, ids in enumerate(ours) if ids != expected[index]]
    assert [sorted(ours[index]) for index in different] == [sorted(expected[index]) for index in different]
    assert len(different) <= len(ours) // 100


@pytest.mark.parametrize(
    ("family", "options"),
    [(family, options) for family in FAMILIES for options in ({}, {"byte_fallback": True})],
    ids=str,
)
def test_unigram_files_equal_sentencepiece(tmp_path, plain_texts, family, options):
    train(tmp_path, family, **options)
    # Over 100 kB in one word, rounding in float32 reaches the scores' differences.
    texts = [text for text in plain_texts if len(text) < 10_000]
    assert_unigram_same(ids_of(opened(tmp_path, family), texts), sentencepiece_ids(tmp_path, family, texts))


@pytest.mark.slow
def test_deberta_equals_sentencepiece_on_ten_thousand_texts(tmp_path):
    train(tmp_path, "deberta-v2", byte_fallback=True)
    texts = [text for text in ten_thousand_texts() if plain(text) and len(text) < 10_000]
    assert len(texts) > 8500
    assert_unigram_same(ids_of(opened(tmp_path, "deberta-v2"), texts), sentencepiece_ids(tmp_path, "deberta-v2", texts))


@pytest.mark.parametrize(("family", "fallback"), [("xlm-roberta", False), ("deberta-v2", True), ("albert", False)])
def test_bpe_files_equal_sentencepiece(tmp_path, plain_texts, family, fallback):
    train(tmp_path, family, model_type="bpe", byte_fallback=fallback)
    ids = ids_of(opened(tmp_path, family), plain_texts)
    assert ids == sentencepiece_ids(tmp_path, family, plain_texts)


def test_a_byte_written_out_is_not_taken_for_the_byte(tmp_path):
    train(tmp_path, "deberta-v2", byte_fallback=True, further=("<0x41> 0x > x <",) * 100)
    ours = opened(tmp_path, "deberta-v2")
    assert "<0x41>" not in ours.tokens(ids_of(ours, ["a <0x41> b"])[0])
    assert ours.decode(ids_of(ours, ["a 😀 b"])[0]) == "a 😀 b"


def test_user_defined_symbols_do_not_start_a_word(tmp_path, plain_texts):
    """The symbols are those of ALBERT's own training; transformers 5 spells "a.b" as "▁a . ▁b"."""
    symbols = ("(", ")", '"', "-", ".", "–", "£", "€")  # noqa: RUF001
    train(tmp_path, "albert", user_defined_symbols=symbols)
    ours = opened(tmp_path, "albert")
    assert ours.tokens(ids_of(ours, ["a.b"])[0]) == ["[CLS]", "▁a", ".", "b", "[SEP]"]
    texts = [text for text in plain_texts if len(text) < 10_000]
    assert_unigram_same(ids_of(ours, texts), sentencepiece_ids(tmp_path, "albert", texts))


@pytest.mark.parametrize(("family", "kept"), [("albert", False), ("xlnet", False), ("deberta-v2", True)])
def test_a_comma_after_a_digit_stands_alone_in_albert_and_xlnet(tmp_path, family, kept):
    train(tmp_path, family, further=("It was 2000, and 2000, and 1999, again",) * 300)
    tokenizer = opened(tmp_path, family)
    found = tokenizer.tokens(ids_of(tokenizer, ["in 2000, 1999, and 5, 5,5"])[0])
    assert any(re.search(r"\d,$", token) for token in found) == kept
    assert "," in found or kept
