"""A model beside its baseline: what is better, and where it is said."""

from dataclasses import replace

import numpy as np
import pytest

from bothways.evaluation.comparison import baseline_report
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.metrics.regression import number_outcomes
from bothways.report.evaluation import Evaluated, evaluation_page

TRUTH = np.arange(60) % 2


def classes(wrong):
    """Outcomes of a classifier that is wrong on so many rows."""
    right = np.where(np.arange(60) < wrong, 1 - TRUTH, TRUTH)
    return class_outcomes(("a", "b"), TRUTH, np.where(right[:, None] == np.arange(2), 0.9, 0.1))


def report_of(model, baseline, **words):
    return replace(model.report(resamples=50), baseline=baseline_report("toy", baseline, model, resamples=200, **words))


@pytest.mark.parametrize(
    ("model", "baseline", "better", "verdict"),
    [
        (4, 30, "model", "the model is better than the baseline: accuracy 0.9333 of the model, 0.5000 of the baseline"),
        (30, 4, "baseline", "the model is worse than the baseline: accuracy 0.5000 of the model, 0.9333 of the"),
        (4, 4, None, "the model is as good as the baseline: accuracy 0.9333"),
    ],
)
def test_the_better_one_is_named_and_first_if_it_is_the_baseline(model, baseline, better, verdict):
    report = report_of(classes(model), classes(baseline))
    found = report.baseline
    assert (found.better, report.to_dict()["baseline"]["better"]) == (better, better)
    assert verdict in found.verdict
    first, html = report.summary().splitlines()[0], report._repr_html_()
    assert first.startswith("On these rows, the model is worse" if better == "baseline" else "60 rows, 2 classes")
    assert html.startswith("<p>On these rows") is (better == "baseline")
    assert html.count("On these rows") == 1
    page = evaluation_page("m", {"": Evaluated(report, {})})
    titles = [section.title for section in page.sections]
    assert titles[:3] == ["Result", "Metrics", "Baseline"]
    how = {"model": "better than its baseline", "baseline": "worse than its baseline", None: "as good as its baseline"}
    assert how[better] in str(page.sections[0].blocks[0])


def test_the_lower_error_is_better():
    truth = np.linspace(0, 1, 40)
    near, far = number_outcomes(truth, truth + 0.01), number_outcomes(truth, truth[::-1])
    assert report_of(near, far).baseline.better == "model"
    assert report_of(far, near).baseline.better == "baseline"


def test_a_difference_that_may_be_chance_is_called_so_and_a_clear_one_is_not():
    assert report_of(classes(5), classes(4)).baseline.verdict.endswith("The difference may be chance.")
    assert "chance" not in report_of(classes(4), classes(30)).baseline.verdict
    few = report_of(classes(0), classes(5)).baseline  # 5 rows of 60: p = 2 / 2 ** 5
    assert next(iter(few.metrics.values())).difference.low > 0
    assert few.verdict.endswith("p = 0.0625 (mcnemar test of right or wrong). The difference may be chance.")


def test_the_values_are_those_of_the_comparison():
    found = report_of(classes(4), classes(10), remark="It was another one.").baseline
    lines, values = found.lines(), found.to_dict()
    assert lines[1].split()[:3] == ["accuracy", "0.8333", "+0.1000"]
    assert lines[-1] == values["remark"] == "It was another one."
    assert "p = 0.031" in lines[-2]  # 2 / 2 ** 6
    assert (values["accuracy"], values["accuracy_difference"]) == pytest.approx((50 / 60, 6 / 60))
    assert values["accuracy_difference_low"] < 0.1 < values["accuracy_difference_high"]
    assert values["tests"][0]["p_value"] == pytest.approx(2**-5)


def test_small_errors_keep_their_digits():
    truth = np.linspace(0, 1e-6, 40)
    report = report_of(number_outcomes(truth, truth + 1e-8), number_outcomes(truth, truth + 1e-7))
    (line,) = (line for line in report.baseline.lines() if line.split()[0] == "mae")
    assert line.split()[1] == "1e-07"
