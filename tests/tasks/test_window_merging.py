"""Rules that merge the windows of a long text."""

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bothways.choices import Merge
from bothways.errors import InvalidInput
from bothways.tasks import TextClassifier
from bothways.tasks.backend import stored_windows
from bothways.tasks.classification.outputs import merge_windows
from classifier_cases import rows

QUICK = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 6, "validation": rows(6, first=30)}


@st.composite
def windows(draw):
    """Logits of a text's windows (W, 3), and their lengths."""
    count = draw(st.integers(1, 5))
    logits_WC = draw(arrays(np.float32, (count, 3), elements=st.floats(-8, 8, width=32)))
    return logits_WC, draw(arrays(np.int64, count, elements=st.integers(1, 20)))


@pytest.mark.parametrize("merge", get_args(Merge))
@given(windows())
def test_a_text_of_one_window_has_the_logits_of_that_window(merge, made):
    logits_WC, lengths_W = made
    assert merge_windows(logits_WC[:1], lengths_W[:1], merge, 3).tolist() == logits_WC[0].astype(np.float64).tolist()


@pytest.mark.parametrize("merge", get_args(Merge))
@given(windows())
def test_merged_logits_lie_among_those_of_the_windows(merge, made):
    logits_WC, lengths_W = made
    merged_C = merge_windows(logits_WC, lengths_W, merge, 3)
    assert (merged_C >= logits_WC.min(0) - 1e-6).all()
    assert (merged_C <= logits_WC.max(0) + 1e-6).all()


def test_hidden_states_behind_the_logits_choose_no_window():
    """The window of the most probable last label is that of the logits, whatever a detector reads beside them."""
    rows_WK = np.array([[0.0, 2.0, -9.0], [0.0, 1.0, 9.0]], dtype=np.float32)
    assert merge_windows(rows_WK, np.array([4, 4]), "maxp", 2).tolist() == [0.0, 2.0, -9.0]


@given(windows())
def test_each_way_is_what_its_name_says(made):
    own_WC, weights_W = made[0].astype(float), made[1].astype(float)
    expected = {
        "mean": own_WC.mean(0),
        "max": own_WC.max(0),
        "maxp": own_WC[np.argmax(own_WC[:, -1] - np.logaddexp(own_WC[:, 0], own_WC[:, 1]))],
        "first": own_WC[0],
        "weighted_mean": np.average(own_WC, axis=0, weights=weights_W),
    }
    for merge in get_args(Merge):
        np.testing.assert_allclose(merge_windows(*made, merge, 3), expected[merge], rtol=0, atol=1e-9)


def test_an_unknown_way_to_merge_is_refused_with_those_there_are(tiny_bert):
    with pytest.raises(InvalidInput, match="'mean', 'max', 'maxp', 'first', got 'median'"):
        opened(tiny_bert, merge="median")


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def saved(tiny_bert, tmp_path_factory):
    """A classifier that was trained with windows of its own, which no test writes to."""
    classifier = opened(tiny_bert, merge="max", stride=3, max_length=10)
    classifier.fit(rows(), **QUICK)
    folder = tmp_path_factory.mktemp("windows") / "saved"
    classifier.save(folder)
    return folder


@pytest.mark.parametrize("merge", get_args(Merge))
def test_a_way_to_merge_is_kept_with_the_model_and_the_caller_overrules_it(saved, tmp_path, merge):
    assert opened(saved).fitted.outputs.merge == "max"
    opened(saved, merge=merge).save(tmp_path / "again")
    assert opened(tmp_path / "again").fitted.outputs.merge == merge


@pytest.mark.parametrize("stride", [0, 3])
def test_a_stride_decides_what_windows_share_and_is_kept(saved, tmp_path, stride):
    opened(saved, stride=stride, max_length=8).save(tmp_path / "again")
    words = " ".join(f"w{5 + place}" for place in range(24))
    again = opened(tmp_path / "again")
    store = stored_windows(again.backend, [words])
    inside = [store.ids_T[start + 1 : end - 1].tolist() for start, end in itertools.pairwise(store.starts)]
    for one, following in itertools.pairwise(inside):
        assert len(set(one) & set(following)) >= stride
        assert one[len(one) - stride :] == following[:stride]
    assert again.predict(words).tokens_read.windows == len(inside) == -(-(24 - stride) // (6 - stride))


@pytest.mark.parametrize("length", [6, 5, 4])
def test_a_stride_that_shorter_windows_have_no_room_for_is_a_usual_one(saved, tiny_bert, length):
    again = opened(saved, max_length=length)
    usual = opened(tiny_bert, max_length=length)
    words = " ".join(f"w{5 + place}" for place in range(24))
    assert again.predict(words).tokens_read.windows == len(stored_windows(usual.backend, [words]).starts) - 1
    assert opened(saved, max_length=8).backend.reading.stride == 3
    with pytest.raises(InvalidInput, match="stride must lie between 0 and 9, got 10"):
        opened(saved, stride=10)


@pytest.mark.parametrize("stride", [-1, 8])
def test_a_stride_out_of_range_is_refused(tiny_bert, stride):
    with pytest.raises(InvalidInput, match=f"stride must lie between 0 and 7, got {stride}"):
        opened(tiny_bert, stride=stride, max_length=8)


def test_a_report_says_what_was_read_in_windows_and_what_was_cut(saved):
    data = [*rows(4), {"text": "w5 " * 40, "label": "ant"}]
    for overflow, counted in (("window", (1, 0, 0)), ("truncate", (0, 1, 24))):
        classifier = opened(saved, on_overflow=overflow, max_length=18)
        report = classifier.evaluate(data, resamples=5)
        read = report.to_dict()["tokens_read"]
        assert (read["in_windows"], read["cut"], read["dropped_tokens"]) == counted
        assert ("read in several windows" in report.summary()) == (overflow == "window")
        assert ("were truncated: 24 tokens" in report.summary()) == (overflow == "truncate")
        assert classifier.evaluate(rows(4), resamples=5).tokens_read.summary() == ""
