"""Tokenizers from SentencePiece files: ids as in the library, windows, saving, and what is refused."""

import re
import sys
import unicodedata

import pytest
from piece_files import FAMILIES, ids_of, opened, train
from test_text_oracle import assert_same, pairs_of, save_and_open
from text_samples import ADVERSARIAL, random_texts, ten_thousand_texts, thousand_texts

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsupportedConfig

pytest.importorskip("transformers")
pytest.importorskip("sentencepiece", reason="the extra spm is not installed")

NO_LIMIT = 10**9


def test_xlnets_special_tokens_end_every_window(tmp_path):
    train(tmp_path, "xlnet")
    tokenizer = opened(tmp_path, "xlnet")
    first, second = "The cabinet met.", "Voters gave the government a second term after a long campaign in the north."
    single, pair = tokenizer.encode([second, (first, second)], max_length=24, stride=3, offsets=True)
    assert len(single.windows) > 1 < len(pair.windows)
    end = [tokenizer.sep_id, tokenizer.cls_id]
    for window in single.windows:
        assert window.ids[-2:] == end
        assert window.types == [0] * (len(window.ids) - 1) + [2]
        assert window.offsets[-2:] == [(0, 0), (0, 0)]
        assert window.sequences[-2:] == [None, None]
        assert all(number not in end for number in window.ids[:-2])
    head = tokenizer.encode([first], max_length=99)[0].windows[0].ids[:-1]
    for window in pair.windows:
        assert window.ids[: len(head)] == head
        assert window.ids[-2:] == end
        assert window.types == [0] * len(head) + [1] * (len(window.ids) - len(head) - 1) + [2]
    for windows, skipped in ((single.windows, 0), (pair.windows, len(head))):
        whole = tokenizer.encode([second], max_length=NO_LIMIT, offsets=True)[0].windows[0]
        spans = {span for window in windows for span in window.offsets[skipped:-2]}
        assert spans == set(whole.offsets[:-2])


@pytest.mark.parametrize(
    ("family", "options"),
    [(family, {}) for family in FAMILIES]
    + [("deberta-v2", {"byte_fallback": True}), ("albert", {"model_type": "bpe"})],
    ids=str,
)
def test_a_saved_tokenizer_opens_in_transformers_and_here(tmp_path, family, options):
    train(tmp_path, family, **options)
    (tmp_path / "tokenizer_config.json").unlink()
    ours = opened(tmp_path, family)
    saved = tmp_path / "saved"
    theirs = save_and_open(ours, saved, family)
    assert_same(ours, theirs, ADVERSARIAL + random_texts(50))
    assert_same(ours, theirs, pairs_of(ADVERSARIAL))
    assert_same(opened(saved, family), theirs, ADVERSARIAL)
    assert theirs.padding_side == ("left" if family == "xlnet" else "right")
    file = FAMILIES[family].file
    assert (saved / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("absent", ["sentencepiece", "google.protobuf.message"])
def test_without_the_extra_the_install_line_is_given(tmp_path, monkeypatch, absent):
    train(tmp_path, "albert")
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingDependency, match=r"spiece\.model.*pip install 'bothways\[spm\]'"):
        opened(tmp_path, "albert")


def altered(change):
    """A function from the bytes of a model to those of a changed one."""

    def changed(content):
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(content)
        change(proto)
        return proto.SerializeToString()

    return changed


DAMAGED = {
    "no pieces": altered(lambda proto: proto.ClearField("pieces")),
    "unknown beyond the pieces": altered(lambda proto: setattr(proto.trainer_spec, "unk_id", 5000)),
    "no unknown": altered(lambda proto: setattr(proto.trainer_spec, "unk_id", -1)),
    "no score": altered(lambda proto: setattr(proto.pieces[40], "score", float("nan"))),
    "no character map": altered(lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"no map")),
    "empty": lambda _: b"",
    "beginning": lambda content: content[:10],
    "half": lambda content: content[:2000],
    "pointer": lambda _: b"version https://git-lfs.github.com/spec/v1",
    "no fields": lambda _: b"\xff" * 100,
    "another format": lambda _: b"{}",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused(tmp_path, damage):
    train(tmp_path, "albert")
    path = tmp_path / "spiece.model"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model"):
        opened(tmp_path, "albert")


def test_the_file_of_another_family_is_refused(tmp_path):
    train(tmp_path, "xlnet")
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model has no token '\[CLS\]'"):
        opened(tmp_path, "albert")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "model type 3"),
        ({"model_type": "char"}, "model type 4"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix=True"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix=False"),
        ({"model_type": "bpe", "user_defined_symbols": ("<ent>",)}, "user-defined"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(tmp_path, options, message):
    train(tmp_path, "xlm-roberta", **options)
    with pytest.raises(UnsupportedConfig, match=message):
        opened(tmp_path, "xlm-roberta")


@pytest.mark.parametrize("option", ["do_lower_case", "split_by_punct", "add_prefix_space"])
def test_a_setting_of_the_wrong_type_is_named(tmp_path, option):
    train(tmp_path, "deberta-v2", settings={option: "yes"})
    with pytest.raises(CorruptCheckpoint, match=f"{option}.*'yes'"):
        opened(tmp_path, "deberta-v2")


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
