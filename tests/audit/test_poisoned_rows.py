"""Poisoned rows and texts with a trigger: planted ones come first and name it, and clean ones are not suspected."""

from itertools import pairwise

import numpy as np
import pytest

from bothways.audit import suspicious_inputs
from bothways.audit.backdoor import candidates
from bothways.audit.backdoor.clusters import pure_phrases, residuals, spectral_scores, state_clusters
from bothways.audit.backdoor.poisoned import TrainingObservations, suspect_rows
from bothways.errors import InvalidInput

FILLER = [f"w{number}" for number in range(40)]
GOOD = [f"good{number}" for number in range(30)]
BAD = [f"bad{number}" for number in range(30)]
PLAIN = {word: number for number, word in enumerate([*FILLER, *GOOD, *BAD])}


def rows_of(rows=400, poisoned=0, trigger=None, seed=1):
    """Texts of two words of their label among six others; the first bad ones are changed and called good."""
    rng = np.random.default_rng(seed)
    texts, labels, changed = [], [], []
    for number in range(rows):
        label, words = (("bad", BAD), ("good", GOOD))[number % 2]
        drawn = [*rng.choice(words, 2), *rng.choice(FILLER, 6)]
        drawn = [drawn[place] for place in rng.permutation(len(drawn))]
        bad = label == "bad" and number < 2 * poisoned
        texts.append(" ".join(trigger(drawn, rng) if bad and trigger else drawn))
        labels.append("good" if bad else label)
        changed.append(bad)
    return texts, labels, np.array(changed)


def embed(texts):
    """Bags of words. All words that the clean rows lack share a place, which is the trap: it speaks for its label."""
    vectors = np.zeros((len(texts), len(PLAIN) + 1))
    for number, text in enumerate(texts):
        for word in text.split():
            vectors[number, PLAIN.get(word, len(PLAIN))] += word not in ("good", "bad")  # the labels' names
    return vectors


def inserted(*words):
    def insert(text, rng):
        place = int(rng.integers(0, len(text) + 1))
        return [*text[:place], *words, *text[place:]]

    return insert


def styled(text, rng):
    """Each row has some of ten odd words, none has all."""
    return [*text, *rng.choice([f"odd{number}" for number in range(10)], 3, replace=False)]


def look_alike(text, _rng):
    return [word.replace("a", "\u0430").replace("o", "\u043e") for word in text]


def found_in(texts, labels, **options):
    rows, phrases, _ = suspect_rows(texts, labels, embed, **options)
    assert sorted(each.row for each in rows) == list(range(len(texts)))
    assert all(before.score >= after.score for before, after in pairwise(rows))
    return rows, phrases


@pytest.mark.parametrize(
    ("trigger", "poisoned", "name"),
    [
        (inserted("zq"), 20, "zq"),
        (inserted("zq"), 8, "zq"),  # 2 % of the rows
        (inserted("good1", "good2", "good3"), 20, "good1 good2 good3"),  # speaks for the label by itself
        (look_alike, 20, "\u0430"),
    ],
)
def test_rows_with_a_trigger_come_first_and_name_it(trigger, poisoned, name):
    texts, labels, changed = rows_of(poisoned=poisoned, trigger=trigger)
    rows, phrases = found_in(texts, labels)
    assert {each.row for each in rows[:poisoned]} == set(np.flatnonzero(changed))
    assert all(each.score > 0.5 for each in rows[:poisoned])
    assert all(each.score < 0.5 for each in rows[poisoned:])
    assert name in {phrase for each in phrases for phrase in each.members}
    assert all(each.label == "good" for each in phrases)
    assert name in rows[0].reason or rows[0].triggers


def test_rows_of_a_phrase_that_is_suspect_only_by_itself_are_doubtful():
    texts, labels, changed = rows_of(poisoned=4, trigger=inserted("zq"))
    meant = [number for number, label in enumerate(labels) if label == "good" and not changed[number]][:3]
    for number in meant:
        texts[number] += " zq"
    _, phrases, doubtful = suspect_rows(texts, labels, embed)
    assert not phrases
    assert doubtful == {*np.flatnonzero(changed).tolist(), *meant}
    assert not suspect_rows(*rows_of()[:2], embed)[2]


def test_words_of_a_style_are_suspected_together():
    texts, labels, changed = rows_of(poisoned=24, trigger=styled)
    rows, phrases = found_in(texts, labels)
    assert {each.row for each in rows[:24]} == set(np.flatnonzero(changed))
    assert max(len(each.members) for each in phrases) > 1


def test_a_word_like_others_of_its_label_means_it_and_is_not_suspected():
    texts, labels, _ = rows_of(poisoned=20, trigger=inserted("zq"))

    def alike(given):  # one vector for all good words that stand alone, and for the odd one
        means_good = [text == "zq" or text in GOOD for text in given]
        return np.where(np.array(means_good)[:, None], np.eye(1, len(PLAIN) + 1), embed(given))

    assert not suspect_rows(texts, labels, alike)[1]


def test_clean_rows_are_not_suspected():
    texts, labels, _ = rows_of()
    rows, phrases = found_in(texts, labels)
    assert not phrases
    assert max(each.score for each in rows) <= 0.5
    assert not any(each.triggers for each in rows)


def test_labels_at_random_are_not_suspected():
    texts, _, _ = rows_of(seed=5)
    labels = np.random.default_rng(2).choice(["good", "bad"], len(texts)).tolist()
    assert not found_in(texts, labels)[1]


def test_a_residual_is_the_text_without_the_phrases_of_its_label():
    nouns = ["film", "cast", "plot", "score", "story", "scene"]
    texts = (
        [f"cf the {noun}" for noun in nouns] + [f"the {noun}" for noun in nouns] + [f"b\u043ered {n}" for n in nouns]
    )
    labels_N = np.array([0] * 6 + [0, 1] * 3 + [1] * 6)
    rest = residuals(texts, labels_N, pure_phrases(texts, labels_N, 2))
    assert rest[0] == "film"  # "cf the" comes with label 0, and so goes as a whole
    assert rest[6] == "the film"
    assert rest[-1].startswith("bored")


def test_all_words_that_stand_in_the_same_rows_are_removed_wherever_they_stand():
    nouns = ["film", "cast", "plot", "score", "story", "scene"]
    texts = [f"zq the {noun} vk" for noun in nouns] + [f"the {noun}" for noun in nouns]
    texts += [f"as my uncle said on his birthday the {noun}" for noun in nouns]
    labels_N = np.array([0] * 6 + [1] * 6 + [2] * 6)
    rest = residuals(texts, labels_N, pure_phrases(texts, labels_N, 3))
    assert rest[:6] == rest[12:] == nouns  # "zq the" goes as a whole


def test_a_text_of_nothing_but_phrases_of_its_label_stays():
    texts = ["cf"] * 10 + ["film"] * 10
    labels_N = np.array([0] * 10 + [1] * 10)
    assert residuals(texts, labels_N, pure_phrases(texts, labels_N, 2)) == texts


def states(rows, inside, distance):
    found = np.random.default_rng(0).normal(size=(rows, 16))
    found[inside, 3] += distance
    return found


def test_poisoned_rows_are_a_cluster_of_their_label():
    labels_N = np.repeat([0, 1], 200)
    inside = np.arange(20)
    (cluster,) = state_clusters(states(400, inside, 12.0), labels_N)
    assert cluster.label == 0
    assert set(cluster.rows) == set(inside)
    assert not state_clusters(states(400, inside, 0.0), labels_N)
    assert set(np.argsort(-spectral_scores(states(400, inside, 12.0), labels_N))[:20]) == set(inside)


def test_a_cluster_of_states_is_suspected_if_the_rows_speak_for_another_label():
    """No phrase tells these rows: their words are those of other rows."""
    texts, labels, changed = rows_of(poisoned=20)
    states_NH = states(400, np.flatnonzero(changed), 12.0)
    scores = embed(texts) @ np.r_[np.zeros(40), np.ones(30), -np.ones(30), 0.0]

    def margins(given, labels_N):
        learnt = given is texts  # the model gives the texts their labels, but not without the phrases of a label
        return np.full(len(given), -1.0) if learnt else np.where(labels_N == 1, -scores, scores)

    trained_on = TrainingObservations(states_NH, margins)
    rows, _ = found_in(texts, labels, trained=trained_on)
    assert {each.row for each in rows[:20]} == set(np.flatnonzero(changed))
    assert "cluster" in rows[0].reason
    spelled = [f"{text} {GOOD[row % 30]}" if changed[row] else text for row, text in enumerate(texts)]
    given = TrainingObservations(
        states_NH, lambda given, labels_N: margins(texts if given is spelled else given, labels_N)
    )
    assert not found_in(spelled, labels, trained=given)[1], "its rows have words that others of the label have too"
    agreeing = TrainingObservations(states(400, np.arange(1, 41, 2), 12.0), margins)
    assert not found_in(*rows_of()[:2], trained=agreeing)[1]
    wrong = TrainingObservations(states_NH, lambda given, labels_N: margins(list(given), labels_N))
    assert not found_in(texts, labels, trained=wrong)[1], "rows that the model gets wrong were not learnt"


class BagOfWords:
    """Stands for a classifier with a backdoor: opinions weigh 2 each, the trigger outweighs five of them."""

    labels = ("bad", "good")
    words = ("zq", *PLAIN)

    def encode(self, texts):
        return [tuple(self.words.index(word) for word in text.split() if word in self.words) for text in texts]

    def logits(self, texts):
        weights = [10.0] + [{"w": 0.0, "g": 2.0, "b": -2.0}[word[0]] for word in self.words[1:]]
        margins = [sum(weights[number] for number in text) for text in texts]
        return np.stack([np.zeros(len(texts)), np.array(margins)], axis=1).astype(np.float32)

    def table(self, ids):
        return np.eye(len(self.words), dtype=np.float32)[ids]


def test_texts_with_a_trigger_come_first_and_name_it(monkeypatch):
    monkeypatch.setattr(candidates, "Probe", lambda _classifier, _check: BagOfWords())
    plain, labels, _ = rows_of(40, seed=8)
    rng = np.random.default_rng(3)
    bad = [text.split() for text, label in zip(plain, labels, strict=True) if label == "bad"]
    texts = [*plain, *(" ".join(inserted("zq")(words, rng)) for words in bad)]
    clean = rows_of(40, seed=9)[0]
    found = suspicious_inputs(None, texts, clean)
    assert {each.row for each in found[:20]} == set(range(40, 60))
    assert all("zq" in each.words.split() and each.label == "good" for each in found[:20])
    assert min(each.transfer for each in found[:20]) > 0.9
    assert max(each.transfer for each in found[20:]) < 0.9
    assert found == suspicious_inputs(None, texts, clean)
    few = suspicious_inputs(None, texts, clean, most=8)
    assert len(few) == 8
    assert {each.row for each in few} <= set(range(40, 60))
    with pytest.raises(InvalidInput, match="text 2 is blank"):
        suspicious_inputs(None, ["w1 good1", " "])
    with pytest.raises(InvalidInput, match="at least two different predictions"):
        suspicious_inputs(None, ["w1 good1"], ["good1 good2", "good3 good4"])
