"""Attributions of scores to words, and the gradients that they are made from."""

import numpy as np
import pytest
import torch
from explained import QUICK, fitted

from bothways import Ensemble, PairClassifier, TextClassifier, TextTagger
from bothways.encoder.head_kinds import TextsOfPair
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain import Label, WordTag, attribute, explain, input_gradients
from bothways.explain.gradients import Entrance, _rows_in
from bothways.explain.scoring import explain_targets
from bothways.tasks.outputs import score_inputs
from classifier_cases import rows, without_dropout
from contract_cases import TARGETS, pair_rows, write_embedder
from contract_cases import rows as target_rows
from everyday import some_families
from tiny_models import edit_config, write_checkpoint


def log_odds(model, text, label):
    (scores,) = score_inputs(model.fitted, [text])
    logits = dict(zip(model.labels, scores.logits_RC[0], strict=True))
    others = [value for name, value in logits.items() if name != label]
    return logits[label] - np.logaddexp.reduce(others)


@some_families("bert", "deberta-v2", "xlnet", "modernbert")
def test_integrated_gradients_of_every_family_sum_to_the_difference_of_scores(tmp_path, model_type):
    write_checkpoint(tmp_path / "base", model_type)
    edit_config(tmp_path / "base", id2label={"0": "ant", "1": "bee", "2": "cow"})
    model = TextClassifier.from_pretrained(tmp_path / "base", device="cpu")
    model.fit(rows(6), validation=rows(6), **{**QUICK, "epochs": 1})
    # Where a head has a ReLU, the integrand has steps, and the error falls with their number only.
    (found,) = attribute(model, ["w5 w30 w31"], target=Label("bee"), steps=512)
    assert found.score == pytest.approx(log_odds(model, "w5 w30 w31", "bee"), abs=1e-4)
    assert found.baseline_score != pytest.approx(found.score, abs=1e-6)
    assert found.completeness_error == pytest.approx(0, abs=2e-3)


# Gradient times input promises nothing where the score is saturated.
@pytest.mark.parametrize("method", ["integrated-gradients", "leave-one-out"])
def test_the_word_that_says_the_label_speaks_for_it_and_against_others(classifier, method):
    texts = [row["text"] for row in rows(9) if " " in row["text"]]
    own = attribute(classifier, texts, method)
    others = attribute(classifier, texts, method, target=Label("cow"))
    for one, other in zip(own, others, strict=True):
        if "cow" not in one.score_name:
            assert one.weights_W[0] > other.weights_W[0], one


def test_leave_one_out_is_the_difference_to_the_text_without_the_word(classifier):
    (found,) = attribute(classifier, ["w5, w30  w31"], "leave-one-out", target=Label("ant"))
    assert [word.text for word in found.words] == ["w5", ",", "w30", "w31"]
    whole = log_odds(classifier, "w5, w30  w31", "ant")
    for text, weight in zip((", w30  w31", "w5 w30  w31", "w5,  w31", "w5, w30 "), found.weights_W, strict=True):
        assert weight == pytest.approx(whole - log_odds(classifier, text, "ant"), abs=1e-5)


def test_the_only_word_of_a_text_cannot_be_left_out(classifier):
    (found,) = attribute(classifier, ["w5"], "leave-one-out")
    assert np.isnan(found.weights_W).all()
    assert found.to_dict()["words"][0]["weight"] is None


def test_gradients_are_those_of_finite_differences(classifier):
    found = input_gradients(classifier, ["w5 w30", "w6 w31 w32"], Label("ant"))
    model = classifier.fitted.backend.head_model

    def score(hidden_TH):
        logits_BC = model.head(model.encoder(found.packed, hidden_TH=hidden_TH)[found.packed.first_tokens_B])
        return (logits_BC[:, 0] - torch.logsumexp(logits_BC[:, 1:], 1)).double()

    with torch.inference_mode():
        for token, dimension in ((1, 3), (4, 7), (6, 20)):
            step_TH = torch.zeros_like(found.hidden_TH)
            step_TH[token, dimension] = 1e-2
            slope_N = (score(found.hidden_TH + step_TH) - score(found.hidden_TH - step_TH)) / 2e-2
            assert slope_N.sum().item() == pytest.approx(found.gradient_TH[token, dimension].item(), abs=2e-3)
    assert found.input_B == (0, 1)


def test_one_tag_of_one_word_can_be_explained_and_its_word_stays(bert):
    model = TextTagger.from_pretrained(bert, device="cpu")
    tags = {"w5": "B-PER", "w6": "B-LOC"}
    data = [
        {"tokens": row["text"].split(), "tags": [tags.get(word, "O") for word in row["text"].split()]}
        for row in rows(18)
    ]
    model.fit(data, validation=data[:9], **QUICK)
    asked = [["w30", "w5", "w31"]]
    (found,) = attribute(model, asked, "leave-one-out", target=WordTag(1, "B-PER"))
    assert found.score_name == "log odds of 'B-PER' for 'w5'"
    assert np.isnan(found.weights_W).tolist() == [False, True, False]
    (scores,) = score_inputs(model.fitted, [model.columns.check(0, ["w5", "w31"])])
    row = scores.logits_RC[0]
    number = model.labels.index("B-PER")
    expected = row[number] - np.logaddexp.reduce(np.delete(row, number))
    assert found.score - found.weights_W[0] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InvalidInput, match="index of a word, from 0 to 2, got 3"):
        attribute(model, asked, target=WordTag(3))
    with pytest.raises(InvalidInput, match=r"a tag among .*got 'B-XYZ'"):
        attribute(model, asked, target=WordTag(1, "B-XYZ"))
    with pytest.raises(InvalidInput, match="to be WordTag or None"):
        attribute(model, asked, target=Label("B-PER"))


def test_texts_of_several_windows_are_for_leave_one_out(classifier):
    text = "w5 " + "w30 " * 40
    with pytest.raises(TextTooLong, match="use leave-one-out"):
        attribute(classifier, [text])
    (found,) = attribute(classifier, [text], "leave-one-out", target=Label("ant"))
    assert found.score == pytest.approx(log_odds(classifier, text, "ant"), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": "w5 w6"}, "expected a list of inputs, got one string"),
        ({"method": "saliency"}, "expected one of the methods .*got 'saliency'"),
        ({"steps": 0}, "expected steps of at least 1, got 0"),
        ({"target": Label("dog")}, "expected a label among 'ant', 'bee', 'cow', got 'dog'"),
        ({"inputs": ["  "]}, "empty"),
    ],
)
def test_what_makes_no_sense_is_refused(classifier, change, message):
    given = {"inputs": ["w5 w6"], **change}
    with pytest.raises(InvalidInput, match=message):
        attribute(classifier, given.pop("inputs"), **given)


@pytest.mark.parametrize("target", TARGETS)
def test_each_kind_of_target_is_explained_by_its_own_score(bert, target):
    model = TextClassifier.from_pretrained(bert, device="cpu", target=target)
    data = target_rows(target, 24)
    model.fit(data, validation=data[:12], **QUICK)
    (scores,) = score_inputs(model.fitted, [data[1]["text"]])
    logits = scores.logits_RC[0]
    (found,) = attribute(model, [data[1]["text"]], steps=64)
    expected = logits[0] if target == "regression" else logits.max()
    if target == "single":
        expected -= np.logaddexp.reduce(np.delete(logits, logits.argmax()))
    assert found.score == pytest.approx(expected, abs=1e-4)
    assert found.completeness_error == pytest.approx(0, abs=2e-3)
    if target == "regression":
        with pytest.raises(InvalidInput, match="to be None, got"):
            attribute(model, [data[1]["text"]], target=Label("ant"))


def test_the_texts_of_pairs_that_are_read_apart_count_in_both_readings(tmp_path):
    write_embedder(tmp_path / "base")
    model = PairClassifier.from_pretrained(without_dropout(tmp_path / "base"), device="cpu")
    model.fit(pair_rows("single", 24), validation=pair_rows("single", 12), **QUICK)
    assert isinstance(model.fitted.backend.head_model.head.kind.read, TextsOfPair)
    pairs = [("w5 w30 w31", "w6 w32"), ("w6", "w5 w33 w34 w35")]
    for found in attribute(model, pairs, steps=128):
        assert [word.part for word in found.words] == sorted(word.part for word in found.words)
        assert found.completeness_error == pytest.approx(0, abs=2e-3)
        assert found.rest == pytest.approx(0, abs=1e-6)
    run = Entrance.of(model).run(Entrance.of(model).read(explain_targets(model, pairs)))
    batch, apart = (each.batch for each in run.readings)
    same = batch.ids_T[_rows_in(batch, apart)] == apart.ids_T
    # Of a second text, the token that it begins with stands in the place of a separator.
    assert (~same).sum() == 2
    assert apart.ids_T[~same].tolist() == [model.model.tokenizer.cls_id] * 2


def test_an_ensemble_is_for_leave_one_out(tmp_path):
    members = []
    for seed in (1, 2):
        write_checkpoint(tmp_path / f"base{seed}")
        fitted(tmp_path / f"base{seed}", seed=seed).save(tmp_path / f"run{seed}")
        members.append(tmp_path / f"run{seed}")
    together = Ensemble.of(members, device="cpu")
    (found,) = attribute(together, ["w5 w30 w31"], "leave-one-out", target=Label("ant"))
    assert found.score == pytest.approx(log_odds(together, ("w5 w30 w31",) * 2, "ant"), abs=1e-5)
    assert np.isfinite(found.weights_W).all()
    with pytest.raises(InvalidInput, match="use leave-one-out"):
        attribute(together, ["w5 w30 w31"])
    assert explain(together, "w5 w30 w31", "leave-one-out").attention is None
