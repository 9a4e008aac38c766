"""A trained pair model as a reranker."""

import numpy as np
import pytest

from bothways.errors import InvalidInput, NotFitted
from bothways.retrieval import CrossEncoder, Hit, Rerank, reranked
from bothways.tasks import PairClassifier

PASSAGES = [f"w{word} w{word + 20}" for word in range(5, 17)]


def trained(tiny_bert, label_of, target, **settings):
    pairs = PairClassifier.from_pretrained(tiny_bert, device="cpu")
    rows = [{"text_a": "w5", "text_b": text, "label": label_of(place)} for place, text in enumerate(PASSAGES)]
    pairs.fit(rows, validation=rows, target=target, epochs=1, seed=1, show_progress=False, **settings)
    return pairs


def test_a_model_of_labels_ranks_by_the_probability_of_the_relevant_one(tiny_bert):
    pairs = trained(tiny_bert, lambda place: "yes" if place % 2 else "no", "single")
    asked = [("w5", text) for text in PASSAGES]
    expected = [found.probabilities["yes"] for found in pairs.predict(asked, calibrated=False)]
    np.testing.assert_allclose(CrossEncoder(pairs, "yes").score("w5", PASSAGES), expected, rtol=1e-9)
    hits = [Hit(str(place), text, 1.0, place + 1) for place, text in enumerate(PASSAGES)]
    found = reranked(hits, "w5", Rerank(CrossEncoder(pairs, "yes")))
    assert [int(hit.id) for hit in found] == np.argsort(-np.array(expected), kind="stable").tolist()
    with pytest.raises(InvalidInput, match=r"one of the labels 'no', 'yes', got 'maybe'"):
        CrossEncoder(pairs, "maybe")


def test_a_calibration_that_states_the_same_for_all_does_not_take_their_order_away(tiny_bert):
    pairs = trained(tiny_bert, lambda place: "yes" if place % 2 else "no", "single", calibration="isotonic")
    stated = [found.probabilities["yes"] for found in pairs.predict([("w5", text) for text in PASSAGES])]
    assert len(set(stated)) < len(PASSAGES) == len(set(CrossEncoder(pairs).score("w5", PASSAGES)))


def test_a_model_of_grades_ranks_by_the_expected_grade(tiny_bert):
    pairs = trained(tiny_bert, lambda place: str(place % 3), "single")
    found = pairs.predict([("w5", text) for text in PASSAGES], calibrated=False)
    expected = [each.probabilities["1"] + 2 * each.probabilities["2"] for each in found]
    graded = CrossEncoder(pairs)
    assert graded.relevant is None
    np.testing.assert_allclose(graded.score("w5", PASSAGES), expected, rtol=1e-9)
    chosen = [each.probabilities["2"] for each in found]
    np.testing.assert_allclose(CrossEncoder(pairs, "2").score("w5", PASSAGES), chosen, rtol=1e-9)


def test_a_model_of_scores_ranks_by_its_score(tiny_bert):
    pairs = trained(tiny_bert, lambda place: place / 10, "regression")
    expected = [found.value for found in pairs.predict([("w5", text) for text in PASSAGES])]
    np.testing.assert_allclose(CrossEncoder(pairs).score("w5", PASSAGES), expected, rtol=1e-9)
    with pytest.raises(InvalidInput, match="must be none, as it predicts scores, got 'yes'"):
        CrossEncoder(pairs, "yes")


def test_a_model_without_a_trained_head_is_no_reranker(tiny_bert):
    with pytest.raises(NotFitted, match="needs a trained pair model"):
        CrossEncoder(PairClassifier.from_pretrained(tiny_bert, device="cpu"))
