"""`BehaviorConsistencyValidator`: a classifier that looks at case is found, and edits are what they say."""

import numpy as np
import pytest
from planted import BAD, FILLER, GOOD, audited, planted, rows_of_opinions

from bothways.audit import Severity
from bothways.audit.answers import share
from bothways.audit.texts import DIRECTIONS, EDITS, GENERAL, NEUTRAL_EDIT

NAME = "BehaviorConsistencyValidator"
BY_NAME = {each.name: each for each in EDITS}


@pytest.fixture(scope="module")
def looks_at_case(tmp_path_factory):
    """A classifier that finds texts good if they are in upper case."""
    words = (*GOOD, *BAD, *FILLER)
    effects = {**dict.fromkeys(words, -0.05), **{word.upper(): 0.05 for word in words}}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("case"), effects, patch)


def test_a_classifier_that_looks_at_case_fails(looks_at_case):
    rows = rows_of_opinions(40, seed=7)
    report, found = audited(NAME, looks_at_case, rows)
    finding = found["behaviour-upper-case"]
    assert report.verdict == "fail"
    assert finding.severity == Severity.MEDIUM
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
