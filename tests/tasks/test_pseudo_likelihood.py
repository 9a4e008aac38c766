"""The pseudo-log-likelihood of a text is the sum that the papers give."""

import pytest
from mask_cases import Oracle, masked_lm

from bothways.tasks.masked_lm import pseudo_likelihood as likelihood_module


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces") / "model"
    return masked_lm(folder, pieces=True), Oracle(folder)


def total(oracle, ids, hidden_with):
    """The sum over the tokens of the text, each with its group of masked places."""
    logs = 0.0
    for place, hidden in hidden_with.items():
        masked = [oracle.mask if index in hidden else number for index, number in enumerate(ids)]
        logs += float(oracle.logs(masked, place)[ids[place]])
    return logs


def test_each_token_is_masked_in_turn(pieces):
    model, oracle = pieces
    text = "The unhappy cats sat."
    ids = oracle.ids(text)
    answer = model.pseudo_log_likelihood(text)
    expected = total(oracle, ids, {place: {place} for place in range(1, len(ids) - 1)})
    assert answer.log_likelihood == pytest.approx(expected, abs=1e-5)
    assert answer.tokens == len(ids) - 2 == 6
    assert answer.perplexity == pytest.approx(2.718281828459045 ** (-expected / 6))


def test_of_a_word_the_pieces_behind_are_masked_too_on_request(pieces):
    model, oracle = pieces
    text = "unhappyly catscat. (cat"
    ids = oracle.ids(text)
    names = oracle.model.tokenizer.tokens(ids)
    assert names == ["[CLS]", "un", "##happy", "##ly", "cats", "##cat", ".", "(", "cat", "[SEP]"]
    groups = {1: {1, 2, 3}, 2: {2, 3}, 3: {3}, 4: {4, 5}, 5: {5}, 6: {6}, 7: {7}, 8: {8}}
    answer = model.pseudo_log_likelihood(text, whole_words=True)
    assert answer.log_likelihood == pytest.approx(total(oracle, ids, groups), abs=1e-5)
    assert answer.log_likelihood != pytest.approx(model.pseudo_log_likelihood(text).log_likelihood, abs=1e-3)


@pytest.mark.parametrize(
    "written", ["unhappy\u0301ly (cat", "u\u00adnhappyly\u0301 (\u0301 cat", "unhappy\u200dly (cat"]
)
def test_marks_and_unseen_characters_are_of_the_word_that_they_stand_in(pieces, written):
    model, oracle = pieces
    assert oracle.ids(written) == oracle.ids("unhappyly (cat")
    answers = [model.pseudo_log_likelihood(text, whole_words=True) for text in (written, "unhappyly (cat")]
    assert answers[0].log_likelihood == pytest.approx(answers[1].log_likelihood, abs=1e-5)


def test_special_tokens_in_a_text_are_not_counted(pieces):
    model, _ = pieces
    assert model.pseudo_log_likelihood("the cat [SEP] sat").tokens == 3


def test_unknown_tokens_are_counted(pieces):
    model, oracle = pieces
    text = "zzz the zzz"
    ids = oracle.ids(text)
    assert oracle.model.tokenizer.tokens(ids)[1:-1] == ["[UNK]", "the", "[UNK]"]
    answer = model.pseudo_log_likelihood(text)
    assert answer.tokens == 3
    assert answer.log_likelihood == pytest.approx(total(oracle, ids, {place: {place} for place in (1, 2, 3)}), abs=1e-5)
    assert model.pseudo_log_likelihood("zzz").perplexity > 1


def test_a_text_without_tokens_has_no_perplexity(pieces):
    model, _ = pieces
    answer = model.pseudo_log_likelihood("[SEP] [CLS]")
    assert (answer.tokens, answer.log_likelihood, answer.perplexity) == (0, 0.0, None)
    assert answer.to_dict()["perplexity"] is None


def test_of_a_long_text_each_token_counts_once_in_the_window_with_most_around_it(pieces):
    model, oracle = pieces
    text = " ".join(["the", "cat", "sat", "a", "happy", "un", "."][place % 7] for place in range(30))
    answer = model.pseudo_log_likelihood(text)
    ids = oracle.ids(text)[1:-1]
    windows = [(0, 16), (12, 28), (24, 30)]
    expected = 0.0
    for place in range(30):
        begin, end = max(
            (window for window in windows if window[0] <= place < window[1]),
            key=lambda window: min(place - window[0], window[1] - 1 - place),
        )
        inside = [1, *ids[begin:end], 2]
        expected += total(oracle, inside, {place - begin + 1: {place - begin + 1}})
    assert answer.windows == 3
    assert answer.tokens == 30
    assert answer.log_likelihood == pytest.approx(expected, abs=1e-5)


def test_a_cut_text_says_how_much_was_not_read(pieces):
    model, _ = pieces
    cutting = masked_lm(model.model.folder, on_overflow="truncate")
    answer = cutting.pseudo_log_likelihood("the cat " * 10)
    assert (answer.tokens, answer.dropped_tokens, answer.windows) == (16, 4, 1)


def test_asking_in_several_portions_changes_nothing(pieces, monkeypatch):
    model, _ = pieces
    text = "a happy cat sat on the cats."
    whole = model.pseudo_log_likelihood(text)
    monkeypatch.setattr(likelihood_module, "MOST_TOKENS", 20)
    parts = model.pseudo_log_likelihood(text)
    assert parts.tokens == whole.tokens
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-5)


def test_one_text_and_many_give_the_same(pieces):
    model, _ = pieces
    texts = ["the cat", "a happy cat sat on the cats.", "un"]
    many = model.pseudo_log_likelihood(texts)
    assert [one.log_likelihood for one in many] == pytest.approx(
        [model.pseudo_log_likelihood(text).log_likelihood for text in texts], abs=1e-5
    )
