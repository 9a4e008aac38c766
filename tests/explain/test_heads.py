"""Roles of heads, on attention that was made up and on real encoders; rollout; deletion curves."""

from collections import Counter

import numpy as np
import pytest
import torch

from bothways import load
from bothways.errors import InvalidInput
from bothways.explain import (
    Sentence,
    TextAttention,
    deletion_curves,
    head_roles,
    heads,
    pronoun_sentences,
    read_sentences,
    rollout,
)
from bothways.explain.heads import PRONOUN
from classifier_cases import rows
from everyday import some_families
from tiny_models import write_checkpoint

TREE = (
    "# text = w5 w6 w7.\n"
    "1\tw5\t_\tDET\t_\t_\t2\tdet\t_\t_\n"
    "2-3\tw6w7\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tw6\t_\tNOUN\t_\t_\t3\tnsubj:pass\t_\t_\n"
    "3\tw7\t_\tVERB\t_\t_\t0\troot\t_\t_\n"
    "3.1\tw8\t_\tVERB\t_\t_\t_\t_\t_\t_\n"
    "\n"
    "1\tw9\t_\tX\t_\t_\t0\troot\t_\t_\n"
)
SENTENCE = Sentence(("w5", "w6", "w7", "w6"), (2, 3, 0, 3), ("det", "nsubj", "root", "obj"))


@pytest.fixture
def model(base):
    return load(base, device="cpu")


def made_up(monkeypatch, weights):
    """Let every sentence of n tokens be attended to as ``weights(n)`` says, in one layer of two heads."""
    real = heads._sentence_attentions

    def looks(model, encoder, sentences):
        for number, looked in real(model, encoder, sentences):
            yield (
                number,
                heads._SentenceAttention(looked.window, weights(len(looked.words_n)), looked.words_n, looked.count),
            )

    monkeypatch.setattr(heads, "_sentence_attentions", looks)


def by_name(roles):
    return {each.role: each for each in roles}


def test_heads_that_look_at_neighbours_and_at_the_first_token_are_found(model, monkeypatch):
    def weights(size):
        previous, first = np.eye(size, k=-1), np.zeros((size, size))
        previous[0, 0] = first[:, 0] = 1
        return np.stack([previous, first])[None]

    made_up(monkeypatch, weights)
    found = by_name(head_roles(model, [SENTENCE], random=False, min_pairs=1))
    assert found["previous token"].scores_LN.tolist() == [[1.0, 0.25]]  # [CLS] stands before the first of four words
    assert (found["previous token"].best.layer, found["previous token"].best.head) == (0, 0)
    assert found["first token"].scores_LN.tolist() == found["[CLS]"].scores_LN.tolist() == [[0.25, 1.0]]
    assert found["next token"].scores_LN.tolist() == [[0.0, 0.0]]
    assert found["next token"].without == pytest.approx(1 / 6)  # uniform over six tokens
    assert found["same token elsewhere"].count == 2  # of two equal words
    assert found["previous token"].random is None


def test_dependencies_are_scored_by_the_word_attended_to_most_and_beside_the_best_distance(model, monkeypatch):
    def weights(size):
        last = np.zeros((size, size))
        last[:, -2] = 0.1  # where a word has no neighbour on that side
        following = np.eye(size, k=1) * 0.6 + last
        backward = np.eye(size, k=-1) * 0.6 + last
        return np.stack([following, backward])[None]

    made_up(monkeypatch, weights)
    found = by_name(head_roles(model, [SENTENCE, SENTENCE], random=False, min_pairs=2))
    assert found["det to its head"].scores_LN.tolist() == [[1.0, 0.0]]
    assert found["obj to its head"].scores_LN.tolist() == [[0.0, 1.0]]
    assert found["head to its det"].scores_LN.tolist() == [[0.0, 1.0]]
    assert (found["det to its head"].without, found["det to its head"].count) == (1.0, 2)
    assert "root to its head" not in found
    assert "det to its head" not in by_name(head_roles(model, [SENTENCE], random=False, min_pairs=2))


def test_a_pronoun_is_right_where_its_noun_gets_more_than_the_other(model, monkeypatch):
    looked = heads._SentenceAttention(None, np.zeros((1, 2, 3, 3)), np.arange(3), 3)
    looked.weights[0, 0, 2] = [0.6, 0.4, 0.0]
    tally = heads._Tally()
    tally.add_pronoun(heads.PronounSentence(Sentence(("a", "b", "it")), 2, 0, 1), looked)
    tally.add_pronoun(heads.PronounSentence(Sentence(("a", "b", "it")), 2, 1, 0), looked)
    assert tally.mean(PRONOUN).tolist() == [[0.5, 0.5]]  # one of two right; the second head gives both the same
    tally.add_pronoun(heads.PronounSentence(Sentence(("a", "b", "it")), 2, 0, 1), looked)
    assert tally.mean(PRONOUN)[0, 0] == pytest.approx(2 / 3)


def test_attention_to_a_word_of_several_tokens_is_their_sum_and_from_one_their_mean():
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]])
    found = heads._SentenceAttention(None, weights[None, None], np.array([-1, 0, 0, 1]), 3).of_words()[0, 0]
    np.testing.assert_allclose(found, [[0.5, 0.15, 0], [0.5, 0.25, 0], [0, 0, 0]])


def test_neither_position_nor_nouns_say_whose_pronoun_it_is():
    asked = pronoun_sentences()
    assert len(asked) >= 40
    first = [each.noun < each.other for each in asked]
    assert sum(first) * 2 == len(asked)
    pairs = Counter(frozenset((each.sentence.words[each.noun], each.sentence.words[each.other])) for each in asked)
    assert set(pairs.values()) == {2}
    for each in asked:
        words = each.sentence.words
        assert words[each.pronoun] in ("it", "they")
        assert max(each.noun, each.other) < each.pronoun
        assert all(words.count(words[at]) == 1 for at in (each.pronoun, each.noun, each.other))


@some_families("bert", "albert", "deberta-v2", "xlnet")
def test_every_family_has_roles_beside_those_of_a_random_encoder(tmp_path, model_type):
    write_checkpoint(tmp_path / "base", model_type)
    model = load(tmp_path / "base", device="cpu")
    drawn = torch.random.get_rng_state()
    found = by_name(head_roles(model, [SENTENCE], min_pairs=1))
    assert torch.equal(torch.random.get_rng_state(), drawn)  # the random encoder draws from its own
    layers, count = len(model.encoder.steps), model.config.heads
    assert all(each.scores_LN.shape == (layers, count) for each in found.values())
    assert all(0 <= each.random <= 1 and 0 <= each.score <= 1 for each in found.values())
    again = by_name(head_roles(model, [SENTENCE], min_pairs=1))
    assert all(each.to_dict() == again[name].to_dict() for name, each in found.items())


def test_conllu_is_read_with_its_trees(tmp_path):
    path = tmp_path / "trees.conllu"
    path.write_text(TREE, encoding="utf-8")
    first, second = read_sentences(path)
    assert first == Sentence(("w5", "w6", "w7"), (2, 3, 0), ("det", "nsubj:pass", "root"))
    assert second == Sentence(("w9",), (0,), ("root",))
    assert read_sentences(path, limit=1) == [first]
    path.write_text(TREE.replace("\t2\tdet", "\t_\t_"), encoding="utf-8")
    assert read_sentences(path)[0] == Sentence(("w5", "w6", "w7"))
    assert read_sentences([{"text": "w5, w6"}]) == [Sentence(("w5", ",", "w6"))]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1\tw5\t_\tDET", "1\tw5\tDET", "line 2 of .* has 9 columns"),
        ("3\tw7", "4\tw7", "line 5 of .*: expected word number 3"),
        ("\t2\tdet", "\t9\tdet", "line 2 of .*: expected a head from 0 to 3, got '9'"),
    ],
)
def test_broken_conllu_is_refused_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "trees.conllu"
    path.write_text(TREE.replace(old, new), encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        read_sentences(path)


def test_sentences_that_are_too_long_are_left_out(model):
    long = Sentence(("w5",) * 40)
    assert by_name(head_roles(model, [SENTENCE, long], random=False))["[CLS]"].count == 4
    with pytest.raises(InvalidInput, match="got none"):
        head_roles(model, [long], random=False)


# --- rollout ---


def test_rollout_multiplies_the_layers_with_half_of_the_identity():
    generator = np.random.default_rng(0)
    weights = generator.random((3, 2, 5, 5))
    weights /= weights.sum(-1, keepdims=True)
    found = rollout(TextAttention(tuple("abcde"), (True,) * 5, weights))
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    expected = np.eye(5)
    for layer in weights.mean(1):
        expected = (layer + np.eye(5)) / 2 @ expected
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- deletion curves ---


def test_words_deleted_by_attribution_lower_the_score_faster_than_at_random(classifier):
    texts = [row["text"] for row in rows(24) if len(row["text"].split()) > 3]
    found = deletion_curves(classifier, texts, "leave-one-out", fractions=(0, 0.25, 0.5, 0.75))
    assert found.attributed_NF.shape == found.random_NF.shape == (len(texts), 4)
    np.testing.assert_allclose(found.attributed_NF[:, 0], found.random_NF[:, 0])
    assert found.interval.low < found.gain < found.interval.high
    assert found.interval.low > 0
    apart = (found.random_NF - found.attributed_NF).mean(0)
    assert found.gain == pytest.approx((apart[:-1] + apart[1:]).sum() / 8)
    again = deletion_curves(classifier, texts, "leave-one-out", fractions=(0, 0.25, 0.5, 0.75))
    assert again.gain == found.gain


@pytest.mark.parametrize("fractions", [(0.5,), (0, 1), (0.5, 0.2), (-0.1, 0.5)])
def test_fractions_that_make_no_curve_are_refused(classifier, fractions):
    with pytest.raises(InvalidInput, match="ascending fractions"):
        deletion_curves(classifier, ["w5 w6"], fractions=fractions)
