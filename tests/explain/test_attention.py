"""Attention weights of a text, and the causal mask worked out from them."""

import numpy as np
import pytest
import torch

from bothways import load
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain import Head, TextAttention, attention_of, causal, illustrative_head

SENTENCE = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def model(minilm_folder):
    return load(minilm_folder, device="cpu")


@pytest.fixture(scope="module")
def attention(model):
    return attention_of(model, SENTENCE)


def softmax(scores_SS):
    raised_SS = np.exp(scores_SS - scores_SS.max(-1, keepdims=True))
    return raised_SS / raised_SS.sum(-1, keepdims=True)


def masked_softmax(scores_SS):
    future_SS = np.triu(np.ones_like(scores_SS, dtype=bool), 1)
    return softmax(np.where(future_SS, -np.inf, scores_SS))


def made_up(weights_LNSS, words):
    return TextAttention(tuple(f"t{at}" for at in range(len(words))), tuple(words), np.asarray(weights_LNSS, float))


# --- the weights ---


def test_there_is_a_weight_for_every_layer_head_and_pair_of_tokens(attention):
    assert attention.tokens == (
        "[CLS]", "the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", ".", "[SEP]",
    )  # fmt: skip
    assert attention.weights_LNSS.shape == (6, 12, 13, 13)


def test_the_weights_are_those_of_the_ecosystems_library(attention, minilm_folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    with torch.inference_mode():
        layers = theirs(**tokenizer(SENTENCE, return_tensors="pt"), output_attentions=True).attentions
    expected_LNSS = torch.cat(layers).numpy()
    np.testing.assert_allclose(attention.weights_LNSS, expected_LNSS, atol=1e-5)


def test_a_head_and_the_means_are_slices_of_the_whole(attention):
    head_SS = attention.head(Head(2, 7))
    np.testing.assert_array_equal(head_SS, attention.weights_LNSS[2, 7])
    np.testing.assert_allclose(attention.mean(2), sum(attention.head(Head(2, head)) for head in range(12)) / 12, 1e-5)
    np.testing.assert_allclose(attention.mean(), sum(attention.mean(layer) for layer in range(6)) / 6, 1e-5)


@pytest.mark.parametrize("head", [Head(6, 0), Head(0, 12), Head(-1, 0)])
def test_a_head_that_is_not_there_is_refused(attention, head):
    with pytest.raises(InvalidInput, match="layer from 0 to 5"):
        attention.head(head)
    with pytest.raises(InvalidInput, match="layer from 0 to 5"):
        attention.mean(6)


def test_special_tokens_and_punctuation_are_no_words(attention):
    left_out = [token for token, word in zip(attention.tokens, attention.words, strict=True) if not word]
    assert left_out == ["[CLS]", ".", "[SEP]"]


def test_both_texts_of_a_pair_are_read_at_once(model):
    pair = attention_of(model, ("Who sat?", "A cat."))
    assert pair.tokens == ("[CLS]", "who", "sat", "?", "[SEP]", "a", "cat", ".", "[SEP]")
    assert [token for token, word in zip(pair.tokens, pair.words, strict=True) if word] == ["who", "sat", "a", "cat"]
    np.testing.assert_allclose(pair.weights_LNSS.sum(-1), 1.0, atol=1e-5)


def test_a_text_beyond_the_limit_is_refused(model):
    with pytest.raises(TextTooLong, match="512"):
        attention_of(model, "word " * 600)


# --- the causal mask ---


@pytest.mark.parametrize("size", [1, 2, 9])
def test_causal_is_a_mask_on_the_scores_before_the_softmax(size):
    scores_SS = np.random.default_rng(size).normal(scale=3.0, size=(size, size))
    np.testing.assert_allclose(causal(softmax(scores_SS)), masked_softmax(scores_SS), rtol=1e-12)


def test_causal_of_a_real_head_looks_at_no_later_token_and_keeps_the_proportions(attention):
    weights_SS = attention.head(Head(4, 2))
    masked_SS = causal(weights_SS)
    assert not np.triu(masked_SS, 1).any()
    np.testing.assert_allclose(masked_SS.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(masked_SS[8, 1] / masked_SS[8, 2], weights_SS[8, 1] / weights_SS[8, 2], rtol=1e-6)


def test_causal_leaves_the_given_weights_alone():
    weights_SS = np.full((2, 2), 0.5)
    causal(weights_SS)
    assert (weights_SS == 0.5).all()


def test_the_first_token_looks_at_itself_even_if_its_weight_was_rounded_to_zero():
    np.testing.assert_array_equal(causal([[0.0, 1.0], [0.5, 0.5]]), [[1.0, 0.0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.5]], "shape"),
        (np.zeros((0, 0)), "shape"),
        ([[1.0, 0.0], [np.nan, 1.0]], "finite"),
        ([[1.0, 0.0], [-0.5, 1.5]], "finite numbers >= 0"),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]], r"token 1 .* rounded to zero"),
    ],
)
def test_weights_that_no_causal_mask_can_be_worked_out_from_are_refused(weights, message):
    with pytest.raises(InvalidInput, match=message):
        causal(weights)


# --- the head to show ---

WORDS = (False, True, True, True, False)
ITSELF = np.eye(5)
NEIGHBOURS = np.eye(5)[[0, 2, 3, 2, 4]]
SPECIAL = np.eye(5)[[0, 0, 4, 0, 4]]
DISTANT = np.eye(5)[[0, 3, 2, 1, 4]]


@pytest.mark.parametrize("others", [ITSELF, NEIGHBOURS, SPECIAL])
def test_the_illustrative_head_reads_from_distant_words(others):
    assert illustrative_head(made_up([[others, others], [others, DISTANT]], WORDS)) == Head(1, 1)
    assert illustrative_head(made_up([[others, others], [DISTANT, others]], WORDS)) == Head(1, 0)


def test_the_illustrative_head_is_one_of_the_last_layer():
    partly = 0.9 * ITSELF + 0.1 * DISTANT
    assert illustrative_head(made_up([[DISTANT, DISTANT], [ITSELF, partly]], WORDS)) == Head(1, 1)


def test_what_special_tokens_read_does_not_count():
    special_reads_words = np.eye(5)[[2, 1, 2, 3, 2]]
    partly = 0.9 * ITSELF + 0.1 * DISTANT
    assert illustrative_head(made_up([[special_reads_words, partly]], WORDS)) == Head(0, 1)


@pytest.mark.parametrize("text", ["Yes!", "Well done!"])
def test_a_text_without_distant_words_has_no_illustrative_head(model, text):
    with pytest.raises(InvalidInput, match="not neighbours"):
        illustrative_head(attention_of(model, text))
