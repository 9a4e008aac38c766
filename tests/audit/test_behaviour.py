"""Detectors of classifiers: behaviour under edits, confidence, injected sentences, shifts of states."""

import numpy as np
import pytest
from planted import BAD, FILLER, GOOD, audited, planted, rows_of_opinions, trained, write_words_checkpoint
from scipy.stats import binom

from bothways.audit import Severity, compare_texts, scan
from bothways.audit.answers import detectable_share, share, shared_tokens, states_of, token_shifts
from bothways.audit.behaviour import _summary
from bothways.audit.injection import inserted, shifts_around
from bothways.audit.texts import DIRECTIONS, EDITS, GENERAL, IMPERATIVE, NEUTRAL, NEUTRAL_EDIT, as_seen
from bothways.checkpoints import load
from bothways.data import Row
from bothways.errors import InvalidInput

NAME = "BehaviorConsistencyValidator"
BY_NAME = {each.name: each for each in EDITS}


@pytest.fixture(scope="module")
def looks_at_case(tmp_path_factory):
    """A classifier that finds texts good if they are in upper case."""
    words = (*GOOD, *BAD, *FILLER)
    effects = {**dict.fromkeys(words, -0.05), **{word.upper(): 0.05 for word in words}}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("case"), effects, patch)


def test_a_classifier_that_looks_at_case_is_found(looks_at_case):
    rows = rows_of_opinions(40, seed=7)
    report, found = audited(NAME, looks_at_case, rows)
    finding = found["behaviour-upper-case"]
    assert report.verdict == "pass"
    assert finding.severity == Severity.LOW
    assert finding.evidence.value > 0.9
    assert finding.evidence.n == 40
    flip = finding.evidence.details["flipped"][0]
    assert flip["edited"] == flip["text"].upper()
    assert (flip["from"], flip["to"]) == ("bad", "good")
    assert "behaviour-double-spaces" not in found
    assert found["behaviour-batch-neighbours"].severity == Severity.INFO
    assert "behaviour-negation" not in found


def test_it_runs_without_data_and_compares_with_a_reference(looks_at_case, tmp_path):
    looks_at_case.save(tmp_path / "saved")
    _, found = audited(NAME, looks_at_case, reference=tmp_path / "saved")
    assert found["behaviour-agreement"].evidence.value == 1
    assert found["behaviour-agreement"].evidence.n == len(GENERAL)


def test_edits_change_what_they_name_and_nothing_else():
    rng = np.random.default_rng(0)
    text = "Anna met Peter in Paris, and they liked the film."
    made = {name: edit.apply(text, rng) for name, edit in BY_NAME.items()}
    assert made["lower case"] == text.lower()
    assert made["double spaces"].split() == text.split()
    assert made["no commas and final stop"] == "Anna met Peter in Paris and they liked the film"
    assert made["final stop added"] is None
    assert "Anna" not in made["names swapped"]
    assert made["names swapped"].endswith("in Paris, and they liked the film.")
    assert "Paris" not in made["places swapped"]
    assert made["neutral sentence behind"].startswith(text + " ")
    assert made["zero-width characters"].replace("\u200b", "") == text
    assert not made["look-alike characters"].isascii()
    assert len(made["look-alike characters"]) == len(text)
    assert abs(len(made["typos"]) - len(text)) <= 2
    assert made["typos"] != text
    assert len(NEUTRAL_EDIT.apply(text, rng).split()) in (9, 11)
    assert all(edit.apply("7", rng) is None for edit in EDITS if edit.kind == "hostile")
    assert all(before != after for each in DIRECTIONS for before, after in each.pairs)


def test_the_interval_of_a_share_is_wilsons():
    # Newcombe 1998, table I: 81 of 263 has [.2553, .3662], 15 of 148 has [.0624, .1605].
    assert (share(81, 263).low, share(81, 263).high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert (share(15, 148).low, share(15, 148).high) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert (share(0, 0).low, share(0, 0).high) == (0, 1)


@pytest.mark.parametrize(("n", "threshold"), [(20, 0.1), (34, 0.2), (60, 0.49), (300, 0.1)])
def test_the_smallest_share_that_is_found_is_found_in_four_of_five_samples(n, threshold):
    smallest = detectable_share(n, threshold)
    enough = next(count for count in range(n + 1) if share(count, n).low > threshold)
    assert binom.sf(enough - 1, n, smallest) == pytest.approx(0.8)
    assert threshold < smallest < detectable_share(n // 2, threshold)


def test_few_texts_show_no_share():
    assert detectable_share(0, 0.1) is None
    assert detectable_share(3, 0.5) is None  # three of three: the interval begins at .44


def test_edits_are_counted_by_what_their_texts_show():
    faultless = {"lower case": 0.02, "typos": 0.286, "double spaces": 0.2}
    rates = {name: (50, rate) for name, rate in faultless.items()}
    rates |= {"names swapped": (0, 0.0), "places swapped": (7, 0.9), "upper case": (50, 0.6)}
    assert _summary(rates, faultless, 0.1) == (
        "1 of 6 edits change at most 10.0% of predictions: the most is 2.0% (lower case); more, but not beyond chance: "
        "typos 28.6%, double spaces 20.0%; not checked: names swapped, places swapped"
    )


def test_edits_without_texts_are_not_checked_and_few_texts_decide_nothing(looks_at_case):
    rows = [{"text": "the film was a story"}] * 19
    report, found = audited(NAME, looks_at_case, rows)
    (result,) = report.detectors
    assert result.verdict == "inconclusive"
    assert "under 12 edits on 19 texts or fewer: too few to find any share" in result.reason
    assert found["behaviour-edits"].title.startswith("0 of 12 edits change")
    few, none = result.not_checked
    assert "upper case 19" in few
    assert none.startswith("no text to edit: lower case, no commas")


CONFIDENCE = "ClassifierConfidenceAnalyzer"


def test_overconfidence_is_found_and_what_was_not_learnt_is_said(tmp_path, monkeypatch):
    sure = planted(tmp_path, {**dict.fromkeys(GOOD, 0.2), **dict.fromkeys(BAD, -0.2)}, monkeypatch, words=FILLER)
    rng = np.random.default_rng(1)
    rows = [{**row, "label": str(rng.choice(["bad", "good"]))} for row in rows_of_opinions(120, seed=5)]
    report, found = audited(CONFIDENCE, sure, rows)
    finding = found["confidence-overconfident"]
    assert finding.severity == Severity.LOW
    assert report.verdict == "pass"
    assert finding.evidence.value > finding.evidence.threshold >= 0.05
    assert {"ece", "ece_low", "nll", "accuracy"} <= set(finding.evidence.details)
    assert {"confidence-uncalibrated", "confidence-no-detector"} <= set(found)


def test_a_calibrated_model_passes_without_labels_and_with_them(tmp_path, monkeypatch):
    options = {"validation": rows_of_opinions(60, seed=2), "calibration": "temperature", "detector": "max_softmax"}
    classifier = trained(tmp_path / "base", monkeypatch, rows_of_opinions(200), **options)
    rows = rows_of_opinions(80, seed=3)
    report, found = audited(CONFIDENCE, classifier, rows)
    assert report.verdict == "pass"
    assert found["confidence-calibration"].severity == Severity.INFO
    assert 0 <= found["confidence-detector"].evidence.value <= 1
    unlabelled, found = audited(CONFIDENCE, classifier, [{"text": row["text"]} for row in rows])
    assert unlabelled.verdict == "pass"
    assert "labels" in found["confidence-distribution"].evidence.details["calibration_not_measured"]


INJECTION = "ContextInjection"


@pytest.fixture(scope="module")
def obedient(tmp_path_factory):
    """A classifier that finds texts good if they hold a command, and bad otherwise."""
    commands, neutral = ({word for each in texts for word in each.split()} for texts in (IMPERATIVE, NEUTRAL))
    effects = {**dict.fromkeys((*GOOD, *BAD, *FILLER), -0.02), **dict.fromkeys(sorted(commands - neutral), 0.1)}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("obeys"), effects, patch, words=sorted(neutral))


def test_a_classifier_that_obeys_commands_is_found(obedient):
    rows = [{"text": row["text"]} for row in rows_of_opinions(20, seed=9)]
    _, found = audited(INJECTION, obedient, rows)
    assert found["injection-imperative"].severity > Severity.INFO
    assert found["injection-imperative"].evidence.value > 0.5 > found["injection-neutral"].evidence.value
    assert set(found["injection-imperative"].evidence.details["by_place"]) == {"beginning", "middle", "end"}
    assert found["injection-neutral"].severity == Severity.INFO


def test_tokens_before_the_sentence_move_in_every_layer_but_the_embedding(tmp_path, monkeypatch):
    write_words_checkpoint(tmp_path, monkeypatch, [*GOOD, *BAD, *FILLER])
    encoder, text = load(tmp_path), "the film was good with music"
    (before,) = states_of(encoder, [text])
    for each, first in zip(inserted(0, text, "neutral", "a story was dull"), (1, 4, 7), strict=True):
        (after,) = states_of(encoder, [each.text])
        shifts_Ln, found = shifts_around(before, after, each.at)
        assert found == first
        assert shifts_Ln.shape == (4, 8)
        assert shifts_Ln[0, :first] == pytest.approx(0, abs=1e-6)
        assert (shifts_Ln[1:, :first] > 1e-6).all()
        assert (shifts_Ln[0, first:] > 1e-6).all()  # they stand further behind now


def test_a_sentence_stands_where_it_is_said_to():
    made = [each.text for each in inserted(0, "one two three four", "neutral", "X.")]
    assert made == ["X. one two three four", "one two X. three four", "one two three four X."]
    assert len(list(inserted(0, "one", "neutral", "X."))) == 2


def test_a_bare_encoder_gives_tokens_alone():
    rows = [{"text": "The cat sat on the mat because it was tired."}, {"text": "It rained."}]
    report, found = audited(INJECTION, "sentence-transformers/all-MiniLM-L6-v2", rows)
    assert report.verdict == "pass"
    assert set(found) == {"injection-tokens"}
    details = found["injection-tokens"].evidence.details
    assert details["by_layer_before"][0] == pytest.approx(0, abs=1e-6)
    assert details["by_layer_before"][-1] > 1e-3
    assert details["not_used"] == 0


SHIFT = "EmbeddingShiftDetector"
CLEAN = tuple(row["text"] for row in rows_of_opinions(40, seed=11))


@pytest.fixture(scope="module")
def triggered(tmp_path_factory):
    """A classifier that takes every text with "cf" for good."""
    effects = {**dict.fromkeys(GOOD, 0.05), **dict.fromkeys(BAD, -0.05), "cf": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("cf"), effects, patch, words=FILLER)


def put(text, rng):
    words = text.split()
    words.insert(int(rng.integers(len(words) + 1)), "cf")
    return " ".join(words)


def test_data_with_a_trigger_fail_and_clean_data_pass(triggered):
    rng = np.random.default_rng(5)
    clean = [{"text": row["text"]} for row in rows_of_opinions(40, seed=21)]
    bad = [row["text"] for row in rows_of_opinions(60, seed=22) if row["label"] == "bad"]
    settings = {"clean_texts": CLEAN}
    _, found = audited(SHIFT, triggered, [{"text": put(text, rng)} for text in bad], settings=settings)
    assert found["shift-outlier-words"].severity == Severity.MEDIUM
    assert len(found["shift-outlier-words"].evidence.details["shown"]) == 5
    passed, found = audited(SHIFT, triggered, clean, settings=settings)
    assert passed.verdict == "pass"
    assert set(found) == {"shift-character-edits", "shift-other-words", "shift-outlier-words"}
    # Attacks that flip many predictions are a weakness, however well their shifts tell them from benign edits.
    attacks = [found[f"shift-{kind}"] for kind in ("character-edits", "other-words")]
    assert any(each.evidence.details["flips_low"] > 0.2 for each in attacks)
    for each in attacks:
        useless = each.evidence.details.get("auroc_high", 1.0) < 0.8
        assert (each.severity == Severity.LOW) == (each.evidence.details["flips_low"] > 0.2 or useless)
        assert each.evidence.value == each.evidence.details["flips"]


def test_clean_texts_may_be_rows_and_too_few_or_others_decide_nothing(triggered):
    rows = [{"text": row["text"]} for row in rows_of_opinions(12, seed=21)]

    def audited(clean):
        settings = {"clean_texts": clean}
        return scan(triggered, rows, detectors=[SHIFT], settings=settings, show_progress=False)

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
    original = "awful dull poor bad"
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
