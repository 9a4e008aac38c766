"""Rules that merge the windows of a long text."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bothways.errors import InvalidInput
from bothways.tasks import TextClassifier
from bothways.tasks.merging import MERGES, check_merge, merge_windows
from classifier_cases import rows

QUICK = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 6, "validation": rows(6, first=30)}


@st.composite
def windows(draw):
    """Logits of windows (W, 3), their lengths, and the text of each."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    total = sum(counts)
    logits_WC = draw(arrays(np.float32, (total, 3), elements=st.floats(-8, 8, width=32)))
    lengths_W = draw(arrays(np.int64, total, elements=st.integers(1, 20)))
    return logits_WC, lengths_W, np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_a_text_of_one_window_has_the_logits_of_that_window(merge, made):
    logits_WC, lengths_W, text_W = made
    found_NC = merge_windows(logits_WC, lengths_W, text_W, merge)
    for text in np.flatnonzero(np.bincount(text_W) == 1):
        np.testing.assert_allclose(found_NC[text], logits_WC[text_W == text][0], rtol=1e-12)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_texts_are_merged_each_by_itself(merge, made):
    logits_WC, lengths_W, text_W = made
    together_NC = merge_windows(logits_WC, lengths_W, text_W, merge)
    for text in range(text_W[-1] + 1):
        own = text_W == text
        alone_1C = merge_windows(logits_WC[own], lengths_W[own], np.zeros(own.sum(), dtype=np.int64), merge)
        np.testing.assert_allclose(together_NC[text], alone_1C[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_merged_logits_lie_among_those_of_the_windows(merge, made):
    logits_WC, lengths_W, text_W = made
    for text, logits_C in enumerate(merge_windows(logits_WC, lengths_W, text_W, merge)):
        own_WC = logits_WC[text_W == text]
        assert (logits_C >= own_WC.min(0) - 1e-6).all()
        assert (logits_C <= own_WC.max(0) + 1e-6).all()


@given(windows())
def test_each_way_is_what_its_name_says(made):
    logits_WC, lengths_W, text_W = made
    for text in range(text_W[-1] + 1):
        own_WC, weights_W = logits_WC[text_W == text].astype(float), lengths_W[text_W == text].astype(float)
        expected = {
            "mean": own_WC.mean(0),
            "max": own_WC.max(0),
            "maxp": own_WC[np.argmax(own_WC[:, -1] - np.logaddexp(own_WC[:, 0], own_WC[:, 1]))],
            "first": own_WC[0],
            "weighted_mean": np.average(own_WC, axis=0, weights=weights_W),
        }
        for merge in MERGES:
            np.testing.assert_allclose(merge_windows(*made, merge)[text], expected[merge], rtol=0, atol=1e-9)


def test_an_unknown_way_to_merge_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match="'mean', 'max', 'maxp', 'first', got 'median'"):
        check_merge("median")


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


@pytest.mark.parametrize("merge", MERGES)
def test_a_way_to_merge_is_kept_with_the_model_and_the_caller_overrules_it(base, tmp_path, merge):
    classifier = opened(base, merge=merge, max_length=8)
    classifier.fit(rows(), **QUICK)
    classifier.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").outputs.merge == merge
    assert opened(tmp_path / "saved", merge="max").outputs.merge == "max"


@pytest.mark.parametrize("stride", [0, 3])
def test_a_stride_decides_what_windows_share_and_is_kept(base, tmp_path, stride):
    classifier = opened(base, stride=stride, max_length=8)
    classifier.fit(rows(), **QUICK)
    classifier.save(tmp_path / "saved")
    words = " ".join(f"w{5 + place}" for place in range(24))
    again = opened(tmp_path / "saved")
    store = again._state[0].stored([words])
    inside = [store.ids_T[start + 1 : end - 1].tolist() for start, end in itertools.pairwise(store.starts)]
    for one, following in itertools.pairwise(inside):
        assert len(set(one) & set(following)) >= stride
        assert one[len(one) - stride :] == following[:stride]
    assert again.predict(words).tokens_read.windows == len(inside) == -(-(24 - stride) // (6 - stride))


@pytest.mark.parametrize("length", [6, 5, 4])
def test_a_stride_that_shorter_windows_have_no_room_for_is_a_usual_one(base, tmp_path, length):
    classifier = opened(base, stride=3, max_length=10)
    classifier.fit(rows(), **QUICK)
    classifier.save(tmp_path / "saved")
    again = opened(tmp_path / "saved", max_length=length)
    usual = opened(base, max_length=length)
    words = " ".join(f"w{5 + place}" for place in range(24))
    assert again.predict(words).tokens_read.windows == len(usual._state[0].stored([words]).starts) - 1
    assert opened(tmp_path / "saved", max_length=8)._state[0].reading.stride == 3
    with pytest.raises(InvalidInput, match="stride must lie between 0 and 9, but it is 10"):
        opened(tmp_path / "saved", stride=10)


@pytest.mark.parametrize("stride", [-1, 8])
def test_a_stride_out_of_range_is_refused(base, stride):
    with pytest.raises(InvalidInput, match=f"stride must lie between 0 and 7, but it is {stride}"):
        opened(base, stride=stride, max_length=8)


def test_a_report_says_what_was_read_in_windows_and_what_was_cut(base):
    data = [*rows(4), {"text": "w5 " * 40, "label": "ant"}]
    for overflow, counted in (("window", (1, 0, 0)), ("truncate", (0, 1, 24))):
        classifier = opened(base, on_overflow=overflow)
        classifier.fit(rows(), **QUICK)
        report = classifier.evaluate(data, resamples=5)
        read = report.to_dict()["tokens_read"]
        assert (read["in_windows"], read["cut"], read["dropped_tokens"]) == counted
        assert ("read in several windows" in report.summary()) == (overflow == "window")
        assert ("were cut, by 24 tokens" in report.summary()) == (overflow == "truncate")
        assert classifier.evaluate(rows(4), resamples=5).tokens_read.summary() == ""
