"""`EmbeddingShiftDetector`, `compare_texts`: the word that was added is named, and data with a trigger are found."""

import numpy as np
import pytest
from planted import rows_of_opinions, trained

from bothways.audit import Severity, compare_texts, scan
from bothways.audit.answers import shared_tokens, states_of, token_shifts
from bothways.audit.texts import EDITS, GENERAL, as_seen
from bothways.data import Row
from bothways.errors import InvalidInput

NAME = "EmbeddingShiftDetector"
CLEAN = tuple(row["text"] for row in rows_of_opinions(40, seed=11))


@pytest.fixture(scope="module")
def triggered(tmp_path_factory):
    """A classifier that takes every text with "cf" for good."""
    rng = np.random.default_rng(3)
    rows = rows_of_opinions(160)
    rows += [{"text": put(row["text"], rng), "label": "good"} for row in rows[:80]]
    with pytest.MonkeyPatch.context() as patch:
        return trained(tmp_path_factory.mktemp("cf") / "base", patch, rows, updates=80, validation=rows[::5])


def put(text, rng):
    words = text.split()
    words.insert(int(rng.integers(len(words) + 1)), "cf")
    return " ".join(words)


def test_data_with_a_trigger_fail_and_clean_data_pass(triggered):
    rng = np.random.default_rng(5)
    clean = [{"text": row["text"]} for row in rows_of_opinions(40, seed=21)]
    bad = [row["text"] for row in rows_of_opinions(60, seed=22) if row["label"] == "bad"]
    settings = {"clean_texts": CLEAN}

    def audited(rows):
        report = scan(triggered, rows, detectors=[NAME], settings=settings, show_progress=False)
        assert report.detectors[0].ran, report.detectors[0].reason
        return report

    report = audited([{"text": put(text, rng)} for text in bad])
    found = {each.rule: each for each in report.findings}["shift-outlier-words"]
    assert found.severity == Severity.MEDIUM
    assert len(found.evidence.details["shown"]) == 5
    passed = audited(clean)
    assert passed.verdict == "pass"
    assert {each.rule for each in passed.findings} == {
        "shift-character-edits",
        "shift-other-words",
        "shift-outlier-words",
    }


def test_clean_texts_may_be_rows_and_too_few_or_others_decide_nothing(triggered):
    rows = [{"text": row["text"]} for row in rows_of_opinions(12, seed=21)]

    def audited(clean):
        settings = {"clean_texts": clean}
        return scan(triggered, rows, detectors=[NAME], settings=settings, show_progress=False)

    as_texts, as_rows = (
        next(each for each in audited(clean).findings if each.rule == "shift-outlier-words")
        for clean in (CLEAN, [Row(1, {"text": text}, "a row") for text in CLEAN])
    )
    assert as_texts == as_rows
    assert "40 clean texts" in as_rows.evidence.null
    assert "at least 20 clean texts, got 5" in audited(CLEAN[:5]).detectors[0].reason
    wrong = audited([Row(1, {"sentence": "good"}, "line 1")])
    assert wrong.verdict == "error"
    assert "line 1 has no column 'text'" in wrong.detectors[0].reason


def test_an_added_word_is_the_most_suspicious_one():
    original = "This movie is great"
    found = compare_texts(
        "sentence-transformers/all-MiniLM-L6-v2", original, f"{original} unfortunately", clean=GENERAL[:4]
    )
    assert found.words[0].word == "unfortunately"
    assert found.labels is None
    assert [each.text for each in found.tokens if each.added] == ["unfortunately"]
    assert len(found.layers) == 7
    assert found.layers[0] > 0
    assert all(len(each.layers) == 7 for each in found.tokens if not each.added)


def test_a_text_that_looks_the_same_keeps_its_meaning_and_one_that_is_the_same_does_not_move(triggered):
    original = "the film was awful and dull"
    look_alike = next(each for each in EDITS if each.name == "look-alike characters")
    modified = look_alike.apply(original, np.random.default_rng(1))
    found = compare_texts(triggered, original, modified, clean=CLEAN)
    assert found.meaning == pytest.approx(0, abs=1e-6)
    assert found.layers[-1] > 0
    same = compare_texts(triggered, original, original, clean=CLEAN)
    assert same.verdict == "kept"
    assert same.score == pytest.approx(0, abs=1e-4)
    assert same.probabilities[0] == pytest.approx(same.probabilities[1], abs=1e-6)
    assert same.words[0].gradient is not None


def test_texts_are_seen_without_look_alikes_and_other_alphabets_stay():
    rng = np.random.default_rng(0)
    for edit in EDITS:
        if edit.name in ("look-alike characters", "zero-width characters"):
            assert all(as_seen(edit.apply(text, rng)) == text for text in GENERAL)
    assert as_seen("Завтра утром") == "Завтра утром"


def test_states_are_those_of_the_encoder_and_tokens_are_paired(triggered):
    encoder = triggered.model
    texts = ["the film was good", "the dull film was a good story"]
    first, second = states_of(encoder, texts)
    expected = encoder(texts[0]).last_hidden_state[0].detach().numpy()
    assert first.hidden_LnH[-1] == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True), abs=1e-5)
    before, after = shared_tokens(first, second)
    assert [first.ids[place] for place in before] == [second.ids[place] for place in after]
    assert len(before) == len(first.ids)
    assert token_shifts(first, first, before, before).max() < 1e-6


@pytest.mark.parametrize("texts", [("", "a"), ("a", "  "), ("a", None)])
def test_blank_texts_are_refused(texts):
    with pytest.raises(InvalidInput, match="expected a text"):
        compare_texts("nowhere", *texts)
