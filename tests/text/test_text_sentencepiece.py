"""SentencePiece files give the ids, types and offsets of transformers, and where those are wrong, SentencePiece's.

transformers 5.23 differs from SentencePiece, with which the models were trained, in these places:

- Unknown characters of a model with byte fallback become one unknown token. Here they are bytes, as in SentencePiece.
- Models of type BPE are read as Unigram. Here they are BPE.
- User-defined symbols (the full stop in ALBERT's own file) start a new word. Here they do not, as in the published
  ``tokenizer.json`` files.
- DeBERTa v2 and v3: the character map of the file is passed over. Here it is used, as in transformers 4, whose
  converter transformers still ships.
- ALBERT and XLNet: pieces that end in a digit and a comma are used. Here they are not, as in the published
  ``tokenizer.json`` files and the original code.

In two places transformers and this package both differ from SentencePiece, because of the ``tokenizers`` library:
special tokens written out in a text are found there, and of several combining marks on one letter some are lost.
"""

import itertools
import json
import re
from types import SimpleNamespace

import pytest
from piece_files import ids_of, opened, train
from test_text_oracle import assert_same, pairs_of
from text_samples import ADVERSARIAL, random_texts, ten_thousand_texts, thousand_texts

from everyday import some_of

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece", reason="the extra spm is not installed")

NO_LIMIT = 10**9
CLASSES = {
    "albert": transformers.AlbertTokenizer,
    "xlnet": transformers.XLNetTokenizer,
    "xlm-roberta": transformers.XLMRobertaTokenizer,
    "camembert": transformers.CamembertTokenizer,
}
MAPS = ("nmt_nfkc", "nmt_nfkc_cf", "identity")


@pytest.fixture(scope="module")
def thousand():
    return thousand_texts()


@pytest.mark.parametrize(
    ("family", "rule"),
    some_of(
        list(itertools.product(CLASSES, MAPS)),
        *((family, "nmt_nfkc") for family in CLASSES),
        *(("albert", "nmt_nfkc_cf"), ("xlnet", "identity"), ("xlm-roberta", "nmt_nfkc_cf")),
    ),
)
def test_unigram_files_equal_transformers(tmp_path, thousand, family, rule):
    train(tmp_path, family, normalization_rule_name=rule)
    ours, theirs = opened(tmp_path, family), CLASSES[family].from_pretrained(tmp_path)
    assert_same(ours, theirs, thousand if rule == "nmt_nfkc" else ADVERSARIAL + random_texts(200))
    assert_same(ours, theirs, pairs_of(ADVERSARIAL))
    assert ours.special_ids == frozenset(theirs.all_special_ids)
    assert len(ours.vocabulary()) == len(theirs)
    roles = ("cls", "sep", "mask", "pad", "unk")
    assert [getattr(ours, f"{role}_id") for role in roles] == [getattr(theirs, f"{role}_token_id") for role in roles]


@pytest.mark.slow
@pytest.mark.parametrize("family", CLASSES)
def test_unigram_files_equal_transformers_on_ten_thousand_texts(tmp_path, family):
    train(tmp_path, family)
    assert_same(opened(tmp_path, family), CLASSES[family].from_pretrained(tmp_path), ten_thousand_texts())


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {"do_lower_case": False}),
        ("albert", {"keep_accents": True}),
        ("albert", {"do_lower_case": False, "keep_accents": True}),
        ("albert", {"add_prefix_space": False}),
        ("xlnet", {"do_lower_case": True}),
        ("xlm-roberta", {"add_prefix_space": False}),
        ("camembert", {"add_prefix_space": False}),
    ],
    ids=str,
)
def test_settings_are_followed_as_in_transformers(tmp_path, family, settings):
    train(tmp_path, family, settings=settings)
    ours, theirs = opened(tmp_path, family), CLASSES[family].from_pretrained(tmp_path)
    assert_same(ours, theirs, ADVERSARIAL + random_texts(200))


def test_xlnet_keeps_accents_when_told_to(tmp_path):
    """transformers 5 reads ``keep_accents`` for XLNet and does not follow it."""
    train(tmp_path, "xlnet", character_coverage=1.0)
    (plain,) = ids_of(opened(tmp_path, "xlnet"), ["ñ"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"keep_accents": True}))
    kept = opened(tmp_path, "xlnet")
    assert kept.tokens(ids_of(kept, ["ñ"])[0])[:2] == ["▁", "ñ"]
    assert plain != ids_of(kept, ["ñ"])[0]


def test_renamed_and_added_tokens_are_followed(tmp_path):
    decoder = {
        "802": {"content": "<ent>", "special": True, "normalized": False},
        "803": {"content": "brand name", "special": False, "normalized": False},
    }
    train(tmp_path, "xlm-roberta", settings={"mask_token": "<hide>", "added_tokens_decoder": decoder})
    ours = opened(tmp_path, "xlm-roberta")
    assert (ours.token(ours.mask_id), ours.mask_id) == ("<hide>", 801)
    assert_same(
        ours, transformers.XLMRobertaTokenizer.from_pretrained(tmp_path), ["a <ent> a brand name <hide>", "<hide>"]
    )


def test_deberta_equals_the_class_of_transformers_on_printable_ascii(tmp_path, thousand):
    """Other texts it does not normalise; and of the spaces before a text it counts one to the first word."""
    train(tmp_path, "deberta-v2")
    ascii_only = [re.sub("[^ -~]", "", text).lstrip() for text in thousand]
    theirs = transformers.DebertaV2Tokenizer.from_pretrained(tmp_path)
    assert_same(opened(tmp_path, "deberta-v2"), theirs, ascii_only)
    assert_same(opened(tmp_path, "deberta-v2"), theirs, pairs_of(ascii_only[-100:]))


@pytest.mark.parametrize("rule", MAPS)
@pytest.mark.parametrize(("lower", "split"), [(False, False), (True, False), (False, True)])
def test_deberta_equals_the_converter_of_transformers(tmp_path, thousand, rule, lower, split):
    """Between two letters: at the edges the converter leaves lone spaces that SentencePiece drops."""
    train(
        tmp_path,
        "deberta-v2",
        normalization_rule_name=rule,
        settings={"do_lower_case": lower, "split_by_punct": split},
    )
    texts = thousand if rule == "nmt_nfkc" else ADVERSARIAL
    assert_converter_same(opened(tmp_path, "deberta-v2"), converted(tmp_path, lower=lower, split=split), texts)


@pytest.mark.slow
def test_deberta_equals_the_converter_of_transformers_on_ten_thousand_texts(tmp_path):
    train(tmp_path, "deberta-v2")
    theirs = converted(tmp_path, lower=False, split=False)
    assert_converter_same(opened(tmp_path, "deberta-v2"), theirs, ten_thousand_texts())


def assert_converter_same(ours, theirs, texts):
    texts = [f"x{text}y" for text in texts]
    pairs = zip(ours.encode(texts, max_length=NO_LIMIT, offsets=True), theirs.encode_batch(texts), strict=True)
    for encoded, expected in pairs:
        assert encoded.windows[0].ids == expected.ids
        assert encoded.windows[0].offsets == expected.offsets


def converted(folder, *, lower, split):
    from transformers.convert_slow_tokenizer import DebertaV2Converter

    ids = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}
    slow = SimpleNamespace(
        vocab_file=str(folder / "spm.model"), do_lower_case=lower, split_by_punct=split, convert_tokens_to_ids=ids.get
    )
    tokenizer = DebertaV2Converter(slow).converted()
    tokenizer.add_special_tokens([*ids, "[MASK]"])
    return tokenizer


def test_the_mask_that_debertas_file_lacks_gets_the_next_id(tmp_path):
    train(tmp_path, "deberta-v2")
    ours = opened(tmp_path, "deberta-v2")
    assert ours.mask_id == len(ours.vocabulary()) - 1
    assert ours.tokens(ids_of(ours, ["[MASK]"])[0]) == ["[CLS]", "[MASK]", "[SEP]"]


@pytest.mark.parametrize("family", CLASSES)
def test_bytes_stand_where_transformers_has_an_unknown_token(tmp_path, family):
    train(tmp_path, family, byte_fallback=True)
    ours, theirs = opened(tmp_path, family), CLASSES[family].from_pretrained(tmp_path)
    texts = ADVERSARIAL + random_texts(300)
    expected = theirs(texts, return_offsets_mapping=True)
    for index, encoded in enumerate(ours.encode(texts, max_length=NO_LIMIT, offsets=True)):
        window = encoded.windows[0]
        merged: list[tuple[int, tuple[int, int]]] = []
        for token, number, span in zip(ours.tokens(window.ids), window.ids, window.offsets, strict=True):
            known = (ours.unk_id if token.startswith("<0x") else number, span)
            if known[0] != ours.unk_id or not merged or merged[-1] != known:
                merged.append(known)
        theirs_of = zip(expected["input_ids"][index], map(tuple, expected["offset_mapping"][index]), strict=True)
        assert merged == list(theirs_of), texts[index]
