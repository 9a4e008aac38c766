"""Bars in groups, and the page that compares measured models."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from bothways.advice import Measured, ModelComparison, Speed, card
from bothways.advice.comparing import ComparedModel, Machine
from bothways.errors import InvalidInput
from bothways.report import BarGroup, grouped_bars, render
from bothways.report.models import model_comparison_page

SVG = "{http://www.w3.org/2000/svg}"
BERT, DISTILBERT = "google-bert/bert-base-uncased", "distilbert/distilbert-base-uncased"


def texts(svg):
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_value_of_every_group_is_written_beside_its_bar():
    shown = texts(grouped_bars([BarGroup("a", (11.0, 2222.4)), BarGroup("b", (0.123, 44.0))], ("k1", "k2"), "key", "x"))
    assert {"11", "2,222", "0.12", "44", "a", "b", "k1", "k2", "key", "x"} <= set(shown)


def test_bars_are_as_long_as_their_values():
    drawn = ElementTree.fromstring(grouped_bars([BarGroup("a", (50.0,)), BarGroup("b", (100.0,))], ("k",)))
    groups = [each for each in drawn.iter(f"{SVG}g") if "mark-rect" in each.get("class", "")]
    widths = [float(re.search(r"h([\d.]+)", path.get("d"))[1]) for group in groups for path in group.iter(f"{SVG}path")]
    assert widths[1] == pytest.approx(2 * widths[0])


@pytest.mark.parametrize(
    ("groups", "keys", "said"),
    [
        ([], ("k",), "at least one group"),
        ([BarGroup("a", ())], (), "at least one group"),
        ([BarGroup("a", (1.0,))], ("k", "l"), "expected 2 values"),
        ([BarGroup("a", (float("nan"),))], ("k",), "finite"),
        ([BarGroup("a", (-1.0,))], ("k",), "from 0"),
    ],
)
def test_bars_that_cannot_be_drawn_are_refused(groups, keys, said):
    with pytest.raises(InvalidInput, match=said):
        grouped_bars(groups, keys)


def comparison(*names, speeds=((100.0, 200.0), (160.0, 320.0)), peak=700_000_000):
    models = tuple(
        ComparedModel(
            card(name),
            (1e6, 2e6),
            Measured(name, 8, 1, (Speed(32, 10.0, fast), Speed(128, 40.0, slow)), 250_000_000, peak),
            84.0 + at,
        )
        for at, (name, (fast, slow)) in enumerate(zip(names, speeds, strict=False))
    )
    return ModelComparison(models, (32, 128), 8, "MNLI dev", Machine("a <processor>", 2, 1, "3.11", "2.13"))


def test_the_page_shows_what_was_measured_counted_and_published():
    page = render(model_comparison_page(comparison(BERT, DISTILBERT)))
    assert page.count("<svg") == 3
    for part in ("109.5 M", "66.4 M", "320", "700", "84.0", "85.0", "a &lt;processor&gt;"):
        assert part in page
    assert "1.60 times its speed here with 61\u00a0% of its parameters" in page
    assert not re.search(r'(src|href)="http', page)


def test_a_page_without_both_halves_of_the_distillation_does_not_speak_of_it():
    assert "DistilBERT against" not in render(model_comparison_page(comparison(BERT)))


def test_where_memory_is_not_known_the_page_says_so():
    page = render(model_comparison_page(comparison(BERT, peak=None)))
    assert "does not report the memory" in page
    assert page.count("<svg") == 2
