"""Texts, words and models that cannot be worked with are refused, with what to do."""

import pytest
from mask_cases import masked_lm

from bothways.errors import InvalidInput, NotFitted, TextTooLong
from bothways.tasks.masked_lm.fill_mask import FillMask
from bothways.tasks.masked_lm.masked_text import MOST_MASKS
from tiny_models import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return masked_lm(tmp_path_factory.mktemp("model") / "pieces", pieces=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat sat", r"text 1 has no mask: write \[MASK\] where"),
        ("", "no mask"),
        ("the [mask] sat", "no mask"),
        ("[MASK] " * (MOST_MASKS + 1), f"has {MOST_MASKS + 1} masks, but at most {MOST_MASKS}"),
        (7, "expected text 1 to be a string with a mask, got int"),
        (("the [MASK]", "cat"), "got tuple"),
        ("the [MASK] \ud800", "half of a surrogate pair"),
    ],
)
def test_a_text_without_masks_or_with_too_many_is_refused(model, text, words):
    with pytest.raises(InvalidInput, match=words):
        model.predict([text])


def test_the_number_of_a_bad_text_is_told(model):
    with pytest.raises(InvalidInput, match="text 3 has no mask"):
        model.predict(["[MASK]", "the [MASK]", "none", "a [MASK]"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top": 0}, "top must be at least 1"),
        ({"max_pieces": 0}, "max_pieces must be at least 1"),
        ({"beam": -1}, "beam must be at least 1"),
        ({"words": []}, "a list of at least one string"),
        ({"words": "cat"}, "a list of at least one string"),
        ({"words": iter(["cat", "dog"])}, "a list of at least one string"),
        ({"words": ["cat"], "max_pieces": 2}, "leave out max_pieces"),
        ({"words": ["cat", " "]}, "a non-empty word to fill"),
        ({"words": [3]}, "a non-empty word to fill"),
        ({"words": ["zebra"]}, r"cannot spell the word 'zebra': it becomes \[UNK\]"),
        ({"words": ["[SEP]"]}, r"cannot spell the word '\[SEP\]'"),
    ],
)
def test_options_out_of_range_and_words_that_cannot_be_spelt_are_refused(model, options, words):
    with pytest.raises(InvalidInput, match=words):
        model.predict("the [MASK] sat", **options)


def test_a_word_that_runs_together_with_the_text_before_the_mask_is_refused(model):
    with pytest.raises(InvalidInput, match=r"the word 's' merges with 'the cat' before the mask.*'cats'"):
        model.predict("the cat[MASK]", words=["s"])


def test_too_many_ways_to_share_out_pieces_are_refused(model):
    with pytest.raises(InvalidInput, match="4 masks, with 256 combinations"):
        model.predict("[MASK] [MASK] [MASK] [MASK]", max_pieces=4)


def test_long_texts_are_refused_on_request(model):
    strict = masked_lm(model.model.folder, on_overflow="error")
    with pytest.raises(TextTooLong, match=r"text 1 has 23 tokens .* limit of 18.*'window'"):
        strict.predict("the " * 20 + "[MASK]")
    with pytest.raises(TextTooLong, match="limit of 18"):
        strict.pseudo_log_likelihood("the " * 20)


def test_a_text_that_leaves_no_room_for_further_pieces_is_refused_by_their_number(model):
    strict = masked_lm(model.model.folder, on_overflow="error")
    text = "the " * 15 + "[MASK]"
    assert strict.predict(text, top=1).dropped_tokens == 0
    with pytest.raises(TextTooLong, match=r"has 18 tokens .* included\), and words .* may add 1: more than"):
        strict.predict(text, max_pieces=2)
    with pytest.raises(TextTooLong, match=r"span 16 tokens, but only 14 tokens fit besides .* and the further pieces"):
        model.predict("[MASK]" + " the" * 14 + " [MASK]", max_pieces=2)


@pytest.mark.parametrize("bad", [5, None])
def test_what_is_no_text_and_no_list_of_texts_is_not_scored(model, bad):
    with pytest.raises(InvalidInput, match=f"expected a text, or a list of them, got {type(bad).__name__}"):
        model.pseudo_log_likelihood(bad)


def test_masks_further_apart_than_the_model_reads_are_refused(model):
    with pytest.raises(TextTooLong, match=r"span 22 tokens, but only 16 tokens fit.*one mask at a time"):
        model.predict("[MASK]" + " the" * 20 + " [MASK]")


def test_a_mask_behind_the_cut_is_refused(model):
    cutting = masked_lm(model.model.folder, on_overflow="truncate")
    with pytest.raises(TextTooLong, match="mask 2 of text 1 comes after the first 16 tokens"):
        cutting.predict("the [MASK]" + " the" * 14 + " [MASK]")


@pytest.mark.parametrize("bad", ["", " ", 3])
def test_a_text_to_score_that_is_none_is_refused(model, bad):
    with pytest.raises(InvalidInput, match="text 2 is empty or not a string"):
        model.pseudo_log_likelihood(["the cat", bad])


def test_a_model_without_the_head_says_what_to_do(tiny_bert):
    bare = FillMask.from_pretrained(tiny_bert, device="cpu")
    for ask in (bare.predict, bare.pseudo_log_likelihood):
        with pytest.raises(NotFitted, match=r"has no masked language modelling head.*FillMask.fit, or bothways adapt"):
            ask("w5 [MASK]")


def test_a_family_without_such_a_head_is_refused(tmp_path):
    write_checkpoint(tmp_path / "xlnet", "xlnet")
    with pytest.raises(InvalidInput, match=r"XLNet models do not predict masked tokens.*BERT or RoBERTa"):
        FillMask.from_pretrained(tmp_path / "xlnet")
