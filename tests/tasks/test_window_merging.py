"""What the windows of a long text say, made one answer: fixed ways, and attention that is learnt."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file

from bothways.checkpoints.files import sha256_of
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted
from bothways.tasks import TextClassifier
from bothways.tasks.merging import MERGES, check_merge, merge_windows
from bothways.tasks.targets import SingleLabel
from bothways.tasks.window_attention import LongTexts, WindowAttention, learn_attention
from classifier_cases import rows, same, tensors
from tiny_models import write_checkpoint

FIXED = tuple(merge for merge in MERGES if merge != "attention")
QUICK = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 6, "validation": rows(6, first=30)}


@st.composite
def windows(draw):
    """Rows of windows (W, 3 and a score), their lengths, and the text of each."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    total = sum(counts)
    rows_WK = draw(arrays(np.float32, (total, 4), elements=st.floats(-8, 8, width=32)))
    lengths_W = draw(arrays(np.int64, total, elements=st.integers(1, 20)))
    return rows_WK, lengths_W, np.repeat(np.arange(len(counts)), counts)


def merged(rows_WK, lengths_W, text_W, merge):
    """The merged logits; the last column is there for attention alone."""
    return merge_windows(rows_WK if merge == "attention" else rows_WK[:, :-1], lengths_W, text_W, merge)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_a_text_of_one_window_has_the_logits_of_that_window(merge, made):
    rows_WK, lengths_W, text_W = made
    found_NC = merged(rows_WK, lengths_W, text_W, merge)
    for text in np.flatnonzero(np.bincount(text_W) == 1):
        np.testing.assert_allclose(found_NC[text], rows_WK[text_W == text][0, :-1], rtol=1e-12)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_texts_are_merged_each_by_itself(merge, made):
    rows_WK, lengths_W, text_W = made
    together_NC = merged(rows_WK, lengths_W, text_W, merge)
    for text in range(text_W[-1] + 1):
        own = text_W == text
        alone_1C = merged(rows_WK[own], lengths_W[own], np.zeros(own.sum(), dtype=np.int64), merge)
        np.testing.assert_allclose(together_NC[text], alone_1C[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("merge", MERGES)
@given(windows())
def test_merged_logits_lie_among_those_of_the_windows(merge, made):
    rows_WK, lengths_W, text_W = made
    for text, logits_C in enumerate(merged(rows_WK, lengths_W, text_W, merge)):
        own_WC = rows_WK[text_W == text][:, :-1]
        assert (logits_C >= own_WC.min(0) - 1e-6).all()
        assert (logits_C <= own_WC.max(0) + 1e-6).all()


@given(windows())
def test_each_way_is_what_its_name_says(made):
    rows_WK, lengths_W, text_W = made
    for text in range(text_W[-1] + 1):
        own_WC, weights_W = rows_WK[text_W == text, :-1].astype(float), lengths_W[text_W == text].astype(float)
        expected = {
            "mean": own_WC.mean(0),
            "max": own_WC.max(0),
            "maxp": own_WC[np.argmax(own_WC[:, -1] - np.logaddexp(own_WC[:, 0], own_WC[:, 1]))],
            "first": own_WC[0],
            "weighted_mean": np.average(own_WC, axis=0, weights=weights_W),
        }
        for merge in FIXED:
            np.testing.assert_allclose(merged(*made, merge)[text], expected[merge], rtol=0, atol=1e-9)


@given(windows())
def test_attention_weighs_by_a_softmax_that_a_constant_does_not_change(made):
    rows_WK, lengths_W, text_W = made
    scores_W = np.exp(rows_WK[:, -1].astype(float))
    found_NC = merged(*made, "attention")
    for text in range(text_W[-1] + 1):
        own = text_W == text
        expected_C = np.average(rows_WK[own, :-1], axis=0, weights=scores_W[own])
        np.testing.assert_allclose(found_NC[text], expected_C, rtol=0, atol=1e-6)
    shifted_WK = rows_WK.astype(np.float64) + np.array([0, 0, 0, 500.0])
    np.testing.assert_allclose(merge_windows(shifted_WK, lengths_W, text_W, "attention"), found_NC, atol=1e-6)


def test_an_unknown_way_to_merge_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match="'mean', 'max', 'maxp', 'first', 'attention', got 'median'"):
        check_merge("median")


# --- attention, learnt ---


def long_rows(count=12):
    """Texts of four windows of eight tokens; the one window that begins with w60 says the label, others mislead."""
    made = []
    for number in range(count):
        label = number % 2
        parts = [f"w{5 + (number + place) % 2} " + "w20 " * 5 for place in range(4)]
        parts[number % 4] = "w60 " + f"w{7 + label} " * 5
        made.append({"text": " ".join(parts), "label": ("ant", "bee")[label]})
    return made


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    """A classifier with learnt attention, and the folder it was saved in."""
    folder = tmp_path_factory.mktemp("attention")
    write_checkpoint(folder / "base")
    classifier = opened(folder / "base", merge="attention", max_length=8, stride=0)
    data = long_rows()
    classifier.fit(data, validation=data, epochs=2, learning_rate=3e-3, batch_size=4)
    classifier.save(folder / "saved")
    return classifier, folder / "saved"


def test_attention_that_has_learnt_nothing_is_the_mean(base):
    classifier = opened(base, max_length=8)
    classifier.fit(rows(), **QUICK)
    model = classifier.fitted.model
    texts = [row["text"] for row in long_rows(4)]
    attention = WindowAttention(model.encoder.config.hidden)

    def logits(**changes):
        trained = replace(classifier.fitted, outputs=replace(classifier.outputs, **changes))
        return np.concatenate([each.logits_RC for each in trained.scores(texts)])

    np.testing.assert_allclose(logits(merge="attention", attention=attention), logits(merge="mean"), atol=1e-6)


def texts_with_one_telling_window(count, seed):
    """Of the four windows of a text, the one that the first number of its vector marks has the right logits."""
    generator = torch.Generator().manual_seed(seed)
    truth_N = torch.randint(0, 2, (count,), generator=generator)
    hidden_WH = torch.randn(4 * count, 6, generator=generator)
    telling_W = (torch.arange(4 * count) % 4) == torch.randint(0, 4, (count,), generator=generator).repeat_interleave(4)
    hidden_WH[:, 0] = telling_W.float()
    sign_W = (2 * truth_N - 1).repeat_interleave(4) * torch.where(telling_W, 1.0, -0.5)
    text_W = torch.arange(count).repeat_interleave(4)
    return LongTexts(hidden_WH, torch.stack([-sign_W, sign_W], dim=1), text_W, truth_N)


def test_attention_learns_which_windows_say_the_label():
    target = SingleLabel(("ant", "bee"))
    learnt, held = texts_with_one_telling_window(60, 0), texts_with_one_telling_window(40, 1)
    attention = learn_attention(learnt, held, target, seed=0)

    def accuracy(scores_W):
        rows_WK = torch.cat([held.logits_WC, scores_W], dim=1).numpy()
        logits_NC = merge_windows(rows_WK, np.ones(160, dtype=np.int64), held.text_W.numpy(), "attention")
        return (logits_NC.argmax(1) == held.truth.numpy()).mean()

    assert accuracy(torch.zeros(160, 1)) == 0
    with torch.no_grad():
        assert accuracy(attention(held.hidden_WH)) > 0.9


def test_the_loss_of_attention_is_that_of_the_logits_that_it_merges():
    target, held = SingleLabel(("ant", "bee")), texts_with_one_telling_window(10, 2)
    attention = WindowAttention(6)
    torch.nn.init.normal_(attention.score.weight)
    with torch.no_grad():
        rows_WK = torch.cat([held.logits_WC, attention(held.hidden_WH)], dim=1)
        logits_NC = merge_windows(rows_WK.numpy(), np.ones(40, dtype=np.int64), held.text_W.numpy(), "attention")
        expected = target.losses(torch.from_numpy(logits_NC), held.truth).mean().item()
        assert held.loss(attention, target).item() == pytest.approx(expected, abs=1e-6)


def test_attention_is_never_worse_than_the_mean_on_the_held_out_texts():
    target = SingleLabel(("ant", "bee"))
    learnt, held = texts_with_one_telling_window(20, 0), texts_with_one_telling_window(20, 1)
    # What is learnt here misleads there.
    learnt = replace(learnt, hidden_WH=-learnt.hidden_WH.roll(1, 0))
    attention = learn_attention(learnt, held, target, seed=0)
    with torch.no_grad():
        assert held.loss(attention, target) <= held.loss(WindowAttention(6), target) + 1e-7


def test_encoder_and_head_are_those_of_training_by_the_mean(base, tmp_path):
    data = long_rows()
    options = {"validation": data, "epochs": 1, "batch_size": 4, "learning_rate": 3e-3}
    learnt, plain = (opened(base, merge=merge, max_length=8) for merge in ("attention", "mean"))
    for classifier in (learnt, plain):
        classifier.fit(data, **options)
    assert same(tensors(learnt, tmp_path / "learnt"), tensors(plain, tmp_path / "plain"))
    assert (tmp_path / "learnt" / "window_attention.safetensors").is_file()
    assert not (tmp_path / "plain" / "window_attention.safetensors").exists()


def test_saved_attention_comes_back_and_predicts_the_same(attentive):
    classifier, folder = attentive
    again = opened(folder)
    assert again.outputs.merge == "attention"
    texts = [row["text"] for row in long_rows()] + ["w5 w6"]
    assert again.predict(texts) == classifier.predict(texts)
    assert again.predict(texts) != opened(folder, merge="first").predict(texts)
    stored = json.loads((folder / "bothways.json").read_text())
    assert stored["checksums"]["window_attention.safetensors"] == sha256_of(folder / "window_attention.safetensors")


def test_a_text_of_one_window_is_answered_as_without_attention(attentive):
    classifier, folder = attentive
    assert classifier.predict("w5 w6", calibrated=False) == opened(folder, merge="mean").predict(
        "w5 w6", calibrated=False
    )


def test_fitting_again_learns_attention_anew(attentive):
    _, folder = attentive
    classifier, data = opened(folder), long_rows()
    before = classifier.predict(data[0]["text"])
    classifier.fit(data, validation=data, epochs=1, learning_rate=1e-3)
    assert classifier.predict(data[0]["text"]).tokens_read == before.tokens_read


def test_attention_needs_texts_of_several_windows(base):
    short = [{"text": "w5 w6", "label": "ant"}, {"text": "w7", "label": "bee"}]
    for data, validation, named in ((short, long_rows(), "training"), (long_rows(), short, "validation")):
        classifier = opened(base, merge="attention", max_length=18)
        with pytest.raises(InvalidInput, match=f"every one of the {named} texts fits into a single window"):
            classifier.fit(data, **{**QUICK, "validation": validation, "target": "single"})
        with pytest.raises(NotFitted):
            classifier.predict("w5")


def test_attention_that_was_not_learnt_is_asked_for_in_vain(base, tmp_path):
    classifier = opened(base)
    classifier.fit(rows(), **QUICK, calibration=None)
    classifier.save(tmp_path / "saved")
    with pytest.raises(NotFitted, match="no attention over windows: call fit, or choose another merge"):
        opened(tmp_path / "saved", merge="attention").predict("w5")


def test_attention_of_another_model_is_refused(attentive, tmp_path):
    classifier, _ = attentive
    classifier.save(tmp_path / "saved")
    path = tmp_path / "saved" / "window_attention.safetensors"
    weights = load_file(path)
    weights["dense.weight"] = weights["dense.weight"][:, :-1].contiguous()
    save_file(weights, path)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        opened(tmp_path / "saved")
    described = tmp_path / "saved" / "bothways.json"
    content = json.loads(described.read_text())
    content["checksums"][path.name] = sha256_of(path)
    described.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpoint, match="attention over windows of 24 numbers"):
        opened(tmp_path / "saved")


@pytest.mark.parametrize("merge", FIXED)
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
