import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from bothways.errors import InvalidInput, MissingDependency
from bothways.evaluation.outcomes import expected_calibration_error, reliability_bins
from bothways.evaluation.report import ReliabilityBin
from bothways.report import (
    Bar,
    Page,
    bars,
    confusion_matrix,
    learning_curve,
    reliability_diagram,
    render,
)
from bothways.report.charts import reliability_panel

SVG = "{http://www.w3.org/2000/svg}"
ODD_LABELS = ["<s>", "##ing", 'say "hi" & <b>bye</b>', "it's \\ {{x}}", "", "a\nb\x00", "the", "the", "中文", "x" * 200]


def texts(svg):
    """The words of a drawing; parsing it is half of the test."""
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def shapes(svg, role):
    """The paths of the marks of one kind."""
    groups = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}g") if role in each.get("class", "").split()]
    return [path for group in groups for path in group if path.tag == f"{SVG}path"]


def random_bins(shift, seed=5):
    generator = np.random.default_rng(seed)
    confidence = generator.beta(5, 1, 500)
    return reliability_bins(confidence, generator.random(500) < confidence - shift)


@pytest.mark.parametrize("classes", [1, 2, 30, 77])
def test_a_confusion_matrix_shows_every_count_it_is_given_and_no_other(classes):
    counts = np.random.default_rng(classes).integers(10_000, 99_999, (classes, classes))
    shown = texts(confusion_matrix([f"class {'x' * (i % 9)}" for i in range(classes)], counts))
    assert [text for text in shown if len(text) == 5 and text.isdigit()] == [str(count) for count in counts.ravel()]


def test_rows_of_a_confusion_matrix_are_true_classes_and_run_down_the_page():
    drawn = ElementTree.fromstring(confusion_matrix(["a", "b"], [[11, 12], [21, 22]]))
    places = {}
    for each in drawn.iter(f"{SVG}text"):
        if each.text in {"11", "12", "21", "22"}:
            x, y = each.get("transform").removeprefix("translate(").removesuffix(")").split(",")
            places[each.text] = float(x), float(y)
    assert places["11"][1] == places["12"][1] < places["21"][1] == places["22"][1]
    assert places["11"][0] == places["21"][0] < places["12"][0] == places["22"][0]
    assert {"true", "predicted"} <= set(texts(confusion_matrix(["a", "b"], [[11, 12], [21, 22]])))


def test_confusion_matrix_colours_go_by_the_share_of_the_row_not_by_the_count():
    few, many = (shapes(confusion_matrix(["a", "b"], m), "role-mark") for m in ([[3, 1], [1, 3]], [[300, 100], [1, 3]]))
    assert [cell.get("fill") for cell in few] == [cell.get("fill") for cell in many]
    assert few[0].get("fill") != few[1].get("fill")
    assert texts(confusion_matrix(["a", "b"], [[0, 0], [1, 2]])).count("0") == 2  # of a class without texts


@pytest.mark.parametrize(
    "counts", [[[1, 2]], [[1]], [[1, 2], [3]], [[1, -1], [0, 1]], [[0.5, 1], [1, 1]], [[float("nan"), 1], [1, 1]]]
)
def test_counts_that_are_no_confusion_matrix_are_refused(counts):
    with pytest.raises(InvalidInput, match="expected"):
        confusion_matrix(["a", "b"], counts)


def test_labels_with_markup_quotes_and_control_characters_are_shown_as_they_are():
    size = len(ODD_LABELS)
    shown = texts(confusion_matrix(ODD_LABELS, np.eye(size, dtype=int)))
    for label in ["<s>", "##ing", 'say "hi" & <b>bye</b>', "it's \\ {{x}}", "∅", "a⏎b\ufffd", "中文"]:
        assert shown.count(label) == 2
    assert shown.count("the") == 4


def test_a_long_label_keeps_its_two_ends():
    shown = texts(bars([Bar("beginning " + "x" * 300 + " ending", 1.0)]))
    cut = next(text for text in shown if "…" in text)
    assert cut.startswith("beginning")
    assert cut.endswith("ending")
    assert len(cut) <= 32


def test_a_reliability_diagram_names_the_calibration_error_of_each_side():
    before, after = random_bins(0.15), random_bins(0.0)
    left, right = reliability_diagram(before, after)
    assert f"Before calibration: ECE {expected_calibration_error(before):.3f}" in texts(left)
    assert f"After calibration: ECE {expected_calibration_error(after):.3f}" in texts(right)
    assert texts(left)[-1] != texts(right)[-1]


def test_reliability_bins_without_texts_are_left_out():
    filled = ReliabilityBin(0.5, 0.6, 10, 0.55, 0.4)
    empty = ReliabilityBin(0.6, 0.7, 0, float("nan"), float("nan"))
    assert reliability_panel([filled, empty], "same") == reliability_panel([filled], "same")
    with pytest.raises(InvalidInput, match="at least one bin"):
        reliability_diagram([filled], [empty])


def test_bars_show_their_values_and_draw_an_interval_only_where_there_is_one():
    svg = bars([Bar("a", 0.912, (0.9, 0.95)), Bar("b", 0.5), Bar("c", -0.001)], "F1", (0, 1))
    assert [text for text in texts(svg) if text in {"0.91", "0.50", "0.00", "-0.00"}] == ["0.91", "0.50", "0.00"]
    rules = [
        line
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if {"mark-rule", "role-mark"} <= set(group.get("class", "").split())
        for line in group.iter(f"{SVG}line")
    ]
    assert len(rules) == 1


@pytest.mark.parametrize("count", [1, 2, 30])
def test_bars_stand_in_the_order_given(count):
    labels = [f"label {(7 * i) % 31:02d}" for i in range(count)]
    shown = texts(bars([Bar(label, i / 40) for i, label in enumerate(labels)]))
    assert [text for text in shown if text.startswith("label")] == labels


@pytest.mark.parametrize(
    "rows", [[], [Bar("a", float("nan"))], [Bar("a", 1.0, (2.0, 1.0))], [Bar("a", 1, (0, float("inf")))]]
)
def test_bars_without_a_meaning_are_refused(rows):
    with pytest.raises(InvalidInput):
        bars(rows)


def test_a_learning_curve_has_a_panel_for_each_kind_of_point():
    loss, scores = [1 / step for step in range(1, 20)], [(1, 0.5), (2, 0.75)]
    first, second = learning_curve(loss, scores, "macro F1")
    assert "Training loss" in texts(first)
    assert "Macro F1, per epoch" in texts(second)
    assert learning_curve(loss) == (first,)
    assert learning_curve([], scores, "macro F1") == (second,)
    with pytest.raises(InvalidInput):
        learning_curve([])


def test_a_long_run_is_averaged_and_says_so():
    (svg,) = learning_curve([float(step % 2) for step in range(1, 3001)])
    assert "Training loss, mean of 10 steps" in texts(svg)
    (line,) = [path for path in shapes(svg, "role-mark") if path.get("stroke")]
    assert line.get("d").count("L") + 1 == 300


def test_a_diverged_loss_leaves_a_gap():
    losses = [float("nan") if step in (4, 5) else 1 / step for step in range(1, 9)]
    (svg,) = learning_curve(losses)
    (line,) = [path for path in shapes(svg, "role-mark") if path.get("stroke")]
    assert line.get("d").count("M") == 2


@pytest.mark.parametrize("scores", [[(1, 0.9)], [(1, 0.9), (2, 0.9)]])
def test_the_axis_of_a_constant_score_is_labelled_with_that_score(scores):
    (svg,) = learning_curve([], scores)
    labels = [float(text) for text in texts(svg) if "." in text]
    assert 0.9 in labels
    assert min(labels) < 0.9 < max(labels) < 1


def test_the_same_data_give_the_same_drawing_whatever_theme_is_set():
    import altair as alt

    first = confusion_matrix(["a", "b"], [[1, 2], [3, 4]])
    with alt.theme.enable("dark"):
        assert confusion_matrix(["a", "b"], [[1, 2], [3, 4]]) == first


@pytest.mark.parametrize("absent", ["altair", "vl_convert", "jinja2"])
def test_without_the_extra_charts_and_pages_say_what_to_install(monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    for draw in (lambda: bars([Bar("a", 1.0)]), lambda: render(Page("Title", "", ()))):
        with pytest.raises(MissingDependency, match=r"pip install 'bothways\[report\]'"):
            draw()


def test_importing_the_report_loads_neither_altair_nor_torch():
    code = "import sys, bothways.report; print({'altair', 'vl_convert', 'jinja2', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
