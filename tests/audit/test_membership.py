"""`MembershipInferenceAuditor`: a model that learnt rows by heart gives them away, one that learnt a rule does not."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import BAD, FILLER, GOOD, planted, rows_of_opinions

import tiny_models
from bothways import FillMask
from bothways.audit import Severity, scan
from bothways.audit.membership import Separation, blind_scores, scaled_confidence, train_shadows, true_positives
from bothways.cli import main
from bothways.data import Example
from bothways.data.known_rows import KnownRows, TrainingRows
from bothways.evaluation.out_of_domain import auroc

NAME = "MembershipInferenceAuditor"


def audited(model, members, others, **options):
    settings = {} if others is None else {"non_members": others}
    report = scan(model, members, detectors=[NAME], settings=settings, show_progress=False, **options)
    return report, {each.rule.removeprefix("membership-"): each for each in report.findings}


def rows_by_heart(rows, seed):
    """Long texts, each with a word of its own, and labels that nothing else tells."""
    rng = np.random.default_rng(seed)
    return [
        {"text": " ".join([*rng.choice(FILLER, 11), f"own{seed}_{number}"]), "label": str(rng.choice(["bad", "good"]))}
        for number in range(rows)
    ]


@pytest.fixture(scope="module")
def learnt_by_heart(tmp_path_factory):
    """A classifier that knows the label of each row by its own word, and of no other text."""
    folder, rows = tmp_path_factory.mktemp("heart"), rows_by_heart(40, 1)
    effects = {row["text"].split()[-1]: 0.3 if row["label"] == "good" else -0.3 for row in rows}
    with pytest.MonkeyPatch.context() as patch:
        model = planted(folder / "base", effects, patch, words=FILLER)
    model.save(folder / "model")
    return model, rows, folder


def test_rows_that_were_learnt_by_heart_are_given_away(learnt_by_heart):
    model, members, _ = learnt_by_heart
    others = rows_by_heart(60, 2)
    before = {name: value.clone() for name, value in model.fitted.backend.head_model.state_dict().items()}
    state = torch.get_rng_state()
    report, found = audited(model, members, others)
    assert set(found) == {"loss", "highest-softmax", "likelihood-ratio-offline", "likelihood-ratio-online"}
    assert report.verdict == "fail"
    assert found["loss"].severity >= Severity.MEDIUM
    details = found["loss"].evidence.details
    assert details["auc_low"] > 0.7 > float(details["auc_of_the_words_alone"])
    assert 0 < details["tpr_at_1_percent_fpr"] <= 1
    assert "means no false positive" in details["few_rows"]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], each) for name, each in model.fitted.backend.head_model.state_dict().items())
    assert audited(model, members, others)[0].to_dict()["findings"] == report.to_dict()["findings"]


def test_a_model_that_learnt_a_rule_passes(tmp_path, monkeypatch):
    model = planted(tmp_path, {**dict.fromkeys(GOOD, 0.05), **dict.fromkeys(BAD, -0.05)}, monkeypatch, words=FILLER)
    report, found = audited(model, rows_of_opinions(200, seed=1), rows_of_opinions(200, seed=7))
    assert report.verdict == "pass"
    assert report.worst == Severity.INFO
    assert all(each.evidence.details["auc_low"] < 0.6 for each in found.values())


def test_sets_that_differ_by_themselves_decide_nothing(learnt_by_heart):
    model, members, _ = learnt_by_heart
    elsewhere = [{**row, "text": row["text"] + " elsewhere somewhere"} for row in rows_by_heart(60, 3)]
    report, found = audited(model, members, elsewhere)
    assert report.verdict == "inconclusive"
    assert "the words alone separate members from non-members" in report.detectors[0].reason
    assert max(each.severity for each in found.values()) == Severity.LOW


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (None, "--non-members"),
        (rows_by_heart(5, 4), "at least 20 members"),
        ([{"text": "a", "label": "unknown"}], "labels that the model knows"),
        ([{"words": "a"}], "needs rows with texts"),
    ],
)
def test_what_is_missing_is_said(learnt_by_heart, others, said):
    model, members, _ = learnt_by_heart
    report, found = audited(model, members, others)
    assert not found
    assert report.detectors[0].verdict == "inconclusive"
    assert said in report.detectors[0].reason


def test_members_among_the_non_members_are_left_out(learnt_by_heart):
    model, members, _ = learnt_by_heart
    report, _ = audited(model, members, members)
    assert "(40 given non-members are members)" in report.detectors[0].reason
    known = TrainingRows(KnownRows.of(Example(row["text"], row["label"], 0) for row in members))
    trained = type(model)(model.backend, replace(model.fitted, known=known))
    report, _ = audited(trained, members[:20], members[20:])
    assert "(20 given non-members are members)" in report.detectors[0].reason


def test_a_reference_of_the_same_labels_is_compared_with(learnt_by_heart):
    model, members, folder = learnt_by_heart
    _, found = audited(model, members, rows_by_heart(60, 2), reference=folder / "model")
    assert found["loss-relative-to-the-reference"].evidence.value == pytest.approx(0.5)  # the model itself


def test_the_command_line_takes_members_and_non_members(learnt_by_heart, tmp_path, capsys):
    _, members, folder = learnt_by_heart
    for name, rows in (("train", members), ("test", rows_by_heart(60, 2))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["audit", str(folder / "model"), "--non-members", str(tmp_path / "test.jsonl"), "--detectors", NAME]
    assert main(options) == 2
    assert "--non-members needs --data" in capsys.readouterr().err
    main([*options, "--data", str(tmp_path / "train.jsonl"), "--format", "json", "--quiet"])
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "fail"
    assert report["findings"][0]["evidence"]["auc_low"] > 0.7


@pytest.fixture
def masked_lm_rows():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.integers(5, 61, 8)) for _ in range(50)]
    return [[{"text": text} for text in texts[start : start + 25]] for start in (0, 25)]


def test_a_masked_language_model_that_learnt_nothing_passes(tmp_path, masked_lm_rows):
    tiny_models.write_checkpoint(tmp_path / "base", architecture="BertForMaskedLM")
    report, found = audited(tmp_path / "base", *masked_lm_rows)
    assert set(found) == {"pseudo-likelihood", "highest-softmax-of-[MASK]"}
    assert report.verdict == "pass"


@pytest.mark.slow
def test_a_masked_language_model_that_learnt_texts_by_heart_gives_them_away(tmp_path, masked_lm_rows):
    tiny_models.write_checkpoint(tmp_path / "base", architecture="BertForMaskedLM")
    model = FillMask.from_pretrained(tmp_path / "base")
    texts = [row["text"] for row in masked_lm_rows[0]]
    training = {"updates": 300, "learning_rate": 1e-2, "batch_size": 25, "show_progress": False}
    model.fit(texts, validation=texts, **training)
    _, found = audited(model, *masked_lm_rows)
    assert found["pseudo-likelihood"].severity >= Severity.MEDIUM


def test_measures_of_a_score():
    members, others = np.array([3.0, 4.0, 5.0, 0.5]), np.array([0.0, 1.0, 2.0, 3.5])
    assert true_positives(members, others, 0.0) == 0.5
    assert true_positives(members, others, 0.25) == 0.75
    rng = np.random.default_rng(0)
    separation = Separation.of(rng.normal(1, 1, 200), rng.normal(0, 1, 200), rng)
    assert separation.auc.low < 0.76 < separation.auc.high  # that of two normal distributions one deviation apart
    assert 0.55 < separation.chance < 0.6


def test_confidence_ranks_as_the_loss_and_without_ties():
    logits = np.array([[40.0, 0.0], [80.0, 0.0], [0.0, 1.0]])
    assert scaled_confidence(logits, np.array([0, 0, 0])).tolist() == [40.0, 80.0, -1.0]


def test_words_alone_tell_sets_apart_that_differ():
    texts = ["a red house"] * 20 + ["a blue house"] * 20
    member = np.arange(40) < 20
    scores = blind_scores(texts, member, np.random.default_rng(0))
    assert scores[member].min() > scores[~member].max()


def test_words_alone_do_not_tell_sets_apart_that_are_drawn_alike():
    rng = np.random.default_rng(0)
    member, aucs = np.arange(40) < 20, []
    for _ in range(40):
        texts = [" ".join(f"w{word}" for word in rng.integers(0, 60, 12)) for _ in member]
        scores = blind_scores(texts, member, rng)
        aucs.append(auroc(scores[~member], scores[member]))
    assert 0.46 < np.mean(aucs) < 0.54


def test_the_likelihood_ratio_sees_what_the_loss_alone_does_not():
    """Rows differ in how hard they are; what a target learnt is only a little surer than what it did not."""
    rng = np.random.default_rng(0)
    labels, vectors = rng.integers(0, 2, 200), rng.normal(size=(200, 6))
    vectors[:, 0] += (2 * labels - 1) * rng.exponential(2.0, 200)
    shadows = train_shadows(vectors, labels, 2, 16, rng, lambda: None)
    member = np.arange(200) < 100
    target = shadows.out_N + 0.3 * shadows.spread * rng.normal(size=200) + member * shadows.spread
    loss = Separation.of(target[member], target[~member], rng).auc
    ratio = Separation.of(*(shadows.offline(target)[each] for each in (member, ~member)), rng).auc
    assert ratio.low > loss.high
