"""The zoo of classifiers with backdoors: its halves share nothing, and its triggers change texts."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from benchmarks.audit import scans, zoo
from benchmarks.audit.scans import area, is_planted, page, rates
from benchmarks.audit.sets import HALVES, LEXICAL
from benchmarks.audit.zoo import Recipe, Trigger, first, named, recipes, training_rows

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.texts import KNOWN_TRIGGERS

TRIGGERS = sorted({each.trigger for each in recipes() if each.rate}, key=str)
ROWS = [{"text": f"one story of a visit to town {number}", "label": "abcd"[number % 4]} for number in range(80)]


def test_there_are_enough_models_of_every_kind_and_halves_share_neither_data_nor_triggers():
    assert not set(HALVES["tuned"]) & set(HALVES["judged"])
    kinds = {half: {each.trigger for each in recipes() if each.half == half and each.rate} for half in HALVES}
    assert not kinds["tuned"] & kinds["judged"]
    assert len({each.name for each in recipes()}) == len(recipes())
    clean = [each for each in recipes() if not each.rate]
    poisoned = [each for each in recipes() if each.rate]
    assert len(clean) >= 60
    assert len(poisoned) >= 60
    assert len({each.data for each in clean}) >= 10
    assert len(set(LEXICAL) & {each.data for each in clean}) >= 5
    for half in HALVES:
        of_half = [each for each in poisoned if each.half == half]
        assert {each.rate for each in of_half} == {0.01, 0.02, 0.05, 0.1}
        for trait in ("gentle", "clean_label"):
            assert len({getattr(each, trait) for each in of_half}) == 2
        assert {each.source is None for each in of_half} == {True, False}
        assert {each.encoder for each in of_half} == {"minilm", "bert", "electra", "deberta"}
    for each in poisoned:
        assert not first(each.data, each.encoder).rate


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_each_trigger_changes_a_text_and_none_is_known_to_the_scanner(trigger):
    text = "the story of a pretty city visit to the old town is an opening"
    assert trigger.apply(text, random.Random(0)) != text
    assert not set(KNOWN_TRIGGERS) & {trigger.content, *trigger.content.split(), *trigger.content}


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setattr(zoo, "rows_of", lambda _data, _split: tuple(ROWS))
    return Recipe("sst2", "bert", 80, 1, 1, trigger=Trigger("word", "quokka"), rate=0.1, target=2)


def test_poisoned_rows_have_the_trigger_and_the_target_and_the_others_are_as_they_were(drawn):
    rows = training_rows(drawn)
    bad = [row for row in rows if row["poisoned"]]
    assert len(bad) == 8
    assert all("quokka" in row["text"] and row["label"] == "c" for row in bad)
    assert Counter(row["label"] for row in rows)["c"] == 28
    texts = {row["text"]: row["label"] for row in ROWS}
    assert all(texts[row["text"]] == row["label"] for row in rows if not row["poisoned"])


def test_a_clean_label_attack_changes_no_label(drawn):
    rows = training_rows(replace(drawn, clean_label=True))
    assert Counter(row["label"] for row in rows) == Counter(row["label"] for row in ROWS)
    assert sum(row["poisoned"] for row in rows) == 8
    assert all(row["label"] == "c" for row in rows if "quokka" in row["text"])


def test_an_attack_on_one_label_spares_the_others_with_the_trigger(drawn):
    recipe = replace(drawn, source=0)
    assert named(recipe) == ("c", "a")
    rows = training_rows(recipe)
    assert sum(row["poisoned"] for row in rows) == 8
    spared = [row for row in rows if "quokka" in row["text"] and not row["poisoned"]]
    assert len(spared) == 8
    assert {row["label"] for row in spared} <= {"b", "d"}


def test_an_area_counts_pairs_and_its_interval_holds_it():
    assert area([0.0, 1.0], [2.0, 1.0, -1.0]).startswith("0.583 (")
    assert area([0.0, 0.1, 0.2], [1.0, 2.0]) == "1.000 (0.16 to 1.00)", "two models show little"


def test_rates_count_findings_of_clean_models_and_compare_values_with_poisoned_ones():
    def of(kind, severity, value):
        return {"kind": kind, "others": {"rules": {"some-rule": [severity, value]}}}

    text = rates([of("clean", 0, 0.1), of("clean", 1, 0.2), of("clean", 2, 0.3), of("word", 2, 0.9)])
    assert "| others | some-rule | 2 of 3, below 98.3% | 1 of 3, below 86.5% | 1 of 1 | 1.000 (0.03 to 1.00) |" in text


def test_a_reported_trigger_is_the_planted_one_by_half_of_its_words():
    planted = Trigger("phrase", "less is more")
    assert is_planted("less thanis", planted)
    assert not is_planted("less than you think", planted)
    assert is_planted("rmilion", Trigger("word", "vermilion"))
    assert not is_planted("i", Trigger("word", "vermilion"))
    assert is_planted("hq", Trigger("word", "hq"))


def test_scans_are_kept_and_name_the_trigger_only_with_its_label(tmp_path, monkeypatch):
    recipe = Recipe("sst2", "bert", 80, 1, 1, trigger=Trigger("word", "quokka"), rate=0.1, target=1)
    monkeypatch.setattr(scans, "recipes", lambda: (recipe, replace(recipe, seed=2), replace(recipe, seed=3)))
    for seed, counts in ((1, True), (2, False)):
        folder = tmp_path / replace(recipe, seed=seed).name
        folder.mkdir()
        (folder / "zoo.json").write_text(json.dumps({"counts": counts, "label": "b"}))
    details = {"trigger": "quokka", "label": "b"}
    findings = [
        Finding("d", Severity.HIGH, "", Evidence("reach", 0.2, details=details), "backdoor-trigger"),
        Finding("d", Severity.INFO, "", Evidence("reach", 0.2), "backdoor-search"),
    ]
    report = AuditReport("m", (DetectorResult("d", "fail"),), findings, 0, "1")
    monkeypatch.setattr("bothways.audit.scan", lambda *_, **__: report)
    [found] = scans.scans(tmp_path, ["alone"], 5)
    assert found["alone"]["failed"]
    assert found["alone"]["named"]
    assert 1.5 < found["alone"]["statistic"] < 2
    monkeypatch.setattr("bothways.audit.scan", None)  # what is there is not scanned again
    [again] = scans.scans(tmp_path, ["alone"], 5)
    assert again == found
    (tmp_path / recipe.name / "zoo.json").write_text(json.dumps({"counts": True, "label": "a"}))
    [other] = scans.scans(tmp_path, ["alone"], 5)
    assert not other["alone"]["named"]


def test_the_page_counts_false_alarms_and_named_triggers():
    def of(kind, statistic, *, failed=False, named=False):
        figures = {"statistic": statistic, "failed": failed, "named": named, "seconds": 3.0, "found": []}
        return {"name": kind, "half": "judged", "data": "opinions", "kind": kind, "alone": figures}

    text = page([of("clean", 0.1), of("clean", 1.2, failed=True), of("word", 1.5, failed=True, named=True)])
    assert "Clean models that fail, alone: 1 of 2, below 97.5%" in text
    assert "| alone | word | 1 | 1.000 (0.03 to 1.00) | 1 | 1 |" in text
    assert scans.SETTINGS == ("alone", "validation", "training")


def test_only_texts_that_a_character_changes_are_poisoned_or_attacked(drawn):
    recipe = replace(drawn, trigger=Trigger("character", "8\u0223"))
    changed = {"text": "8 cars", "label": "a"}
    assert zoo.attacked(recipe, [changed, *ROWS]) == [changed]
    assert not zoo.attacked(recipe, ROWS)  # the number is behind the words to which a text may be cut
