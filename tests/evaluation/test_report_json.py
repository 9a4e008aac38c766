"""The JSON of every kind of report and comparison is that of the committed file: programs and saved models read it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import report_inputs as given
from bothways.evaluation.comparison import compare
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.question_answering import answer_outcomes, score_answers
from bothways.evaluation.metrics.ranking import rank_outcomes, ranking_outcomes
from bothways.evaluation.metrics.regression import number_outcomes, similarity_outcomes
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.outcomes import TokenLosses, token_outcomes
from bothways.text.windows import TextsRead

FROZEN = json.loads(Path(__file__).with_name("reports.json").read_text(encoding="utf-8"))
LABELS, READ = given.LABELS, TextsRead(**given.READ)
DRAWS = {"resamples": 40, "seed": 3}


def read(outcomes):
    return replace(outcomes, tokens_read=READ)


def classes(seed, more=1.0):
    return class_outcomes(LABELS, *given.stated(seed, more))


def classes_in_another_order(seed, more):
    truth_N, stated_NC = given.stated(seed, more)
    return class_outcomes(LABELS[::-1], 2 - truth_N, stated_NC[:, ::-1])


def answers(seed):
    found, annotated, stated_N = given.answers(seed)
    return read(answer_outcomes(score_answers(found, annotated), stated_N))


def spans(seed, labels=("LOC", "PER"), scheme="BIO"):
    return span_outcomes(*given.spans(seed), TaggedWords(*given.words(seed, 5)), labels, scheme)


def tags(seed):
    return tag_outcomes(TaggedWords(*given.words(seed)), LABELS)


REPORTS = {
    "classification": lambda: read(classes(11)),
    "multi_label": lambda: label_outcomes(LABELS, *given.label_sets(12), threshold=0.6),
    "regression": lambda: number_outcomes(*given.numbers(13)),
    "regression, constant": lambda: read(number_outcomes([1.0, 2.0, 4.0], [2.0] * 3)),
    "masked_lm": lambda: token_outcomes(TokenLosses(*given.token_losses())),
    "answers": lambda: answers(14),
    "answers, 1.1": lambda: answer_outcomes(score_answers(["a tower", "x"], [["tower"], ["y"]]), [0.5, 0.7]),
    "spans": lambda: spans(15),
    "tags": lambda: read(tags(16)),
    "similarity": lambda: read(similarity_outcomes(*given.numbers(17))),
    "ranks": lambda: rank_outcomes(given.ranks(18)),
    "rankings": lambda: read(ranking_outcomes(*given.rankings(19), queries_without_contrast=2)),
}

COMPARISONS = {
    "compare classes": lambda: (read(classes(11)), classes_in_another_order(21, 2.0)),
    "compare label sets": lambda: [label_outcomes(LABELS, *given.label_sets(seed)) for seed in (12, 22)],
    "compare numbers": lambda: (number_outcomes(*given.numbers(13)), number_outcomes(*given.numbers(23, 0.5))),
    "compare similarities": lambda: [
        similarity_outcomes(*given.numbers(seed, noise)) for seed, noise in ((13, 1.0), (23, 0.5))
    ],
    "compare answers": lambda: (answers(14), answers(24)),
    "compare ranks": lambda: (rank_outcomes(given.ranks(18)), rank_outcomes(given.ranks(28))),
    "compare spans": lambda: (spans(15), spans(25, ("PER", "LOC"))),
    "compare spans of two schemes": lambda: (spans(15), spans(25, scheme="BIOES")),
    "compare tags": lambda: (tags(16), tags(26)),
}


def same(found, frozen):
    """The same keys and text, and numbers to rounding."""
    if isinstance(frozen, dict):
        assert found.keys() == frozen.keys()
        for key, value in frozen.items():
            same(found[key], value)
    elif isinstance(frozen, list):
        assert len(found) == len(frozen)
        for each, value in zip(found, frozen, strict=True):
            same(each, value)
    elif isinstance(frozen, float):
        assert found == pytest.approx(frozen, rel=1e-9, abs=1e-12)
    else:
        assert (found, type(found)) == (frozen, type(frozen))


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_has_the_json_that_it_always_had(kind):
    same(json.loads(json.dumps(REPORTS[kind]().report(**DRAWS).to_dict())), FROZEN[kind])


@pytest.mark.parametrize(("kind", "threshold"), [("out of domain", 1.0), ("out of domain, no threshold", None)])
def test_a_report_of_detection_has_the_json_that_it_always_had(kind, threshold):
    report = out_of_domain_report(*given.detector_scores(), threshold=threshold, **DRAWS)
    same(replace(report, tokens_read=READ if threshold else None).to_dict(), FROZEN[kind])


def test_a_report_of_an_ensemble_has_the_json_that_it_always_had():
    report = replace(
        classes(11).report(**DRAWS),
        disagreement={"differing": 0.25, "information": 0.1},
        members=(("runs/a", {"accuracy": 0.5, "nll": 1.0}), ("runs/b", {"accuracy": 0.6, "nll": 0.9})),
    )
    same(report.to_dict(), FROZEN["ensemble"])


@pytest.mark.parametrize("kind", COMPARISONS)
def test_a_comparison_has_the_json_that_it_always_had(kind):
    first, second = COMPARISONS[kind]()
    # Only one of the two was read, in the first of them.
    second = second if kind == "compare answers" else replace(second, tokens_read=first.tokens_read)
    same(json.loads(json.dumps(compare(first, second, **DRAWS).to_dict())), FROZEN[kind])


def test_every_frozen_report_is_checked():
    others = {"out of domain", "out of domain, no threshold", "ensemble"}
    assert {*REPORTS, *COMPARISONS, *others} == FROZEN.keys()


def test_estimates_are_attributes_and_a_wrong_one_names_those_there_are():
    report = classes(11).report(**DRAWS)
    assert report.accuracy == report.estimates["accuracy"]
    assert "accuracy" in dir(report)
    with pytest.raises(AttributeError, match="no estimate 'acuracy'; it has: accuracy, macro_f1, mcc"):
        report.acuracy  # noqa: B018
    with pytest.raises(AttributeError, match="'ece_sweep' has no interval: read it from `values`"):
        report.ece_sweep  # noqa: B018


def test_a_report_is_shown_as_its_table_and_survives_pickle_and_copy():
    import copy
    import pickle

    report = read(classes(11)).report(**DRAWS)
    assert str(report) == repr(report) == report.summary()
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report
    shown = report._repr_html_()
    assert f"<td>{report.accuracy.value:8.4f}</td>" in shown
    assert "1 of 60 texts were truncated" in shown


@pytest.mark.parametrize("kind", REPORTS)
def test_a_summary_has_a_line_for_each_number_with_its_interval(kind):
    report = REPORTS[kind]().report(**DRAWS)
    title, *lines = report.summary().splitlines()
    assert str(report.n) in title
    for line, (name, each) in zip(lines, report.estimates.items(), strict=False):
        assert line.split() == [name, f"{each.value:.4f}", f"[{each.low:.4f},", f"{each.high:.4f}]"]
    if kind == "multi_label":
        assert lines[len(report.estimates) :] == ["Labels are predicted at a probability of at least 0.6."]


def test_the_same_seed_gives_the_same_report_and_another_does_not():
    report = classes(11).report(**DRAWS)
    assert classes(11).report(**DRAWS) == report != classes(11).report(**{**DRAWS, "seed": 4})
