"""How the peers are trained and compared: epoch, temperature, decoding, tables, and the file of kept results."""

import json

import numpy as np
import pytest
import scipy.special
from benchmarks import quality, runs
from benchmarks.harness import Options
from benchmarks.peers import SequencePeer, TaggingPeer, fitted_temperature
from benchmarks.runs import Kept, lead
from benchmarks.tasks import TaskData, correlation, label_metrics, mean_average_precision, span_f1
from benchmarks.trainer import EpochChoice, validation_score

ORIGIN = {"commit": "abc1234", "cpu": "a cpu", "cores": 2, "threads": 1}


# --- the epoch to keep ---


class Module:
    """A module of one number, which is its epoch."""

    def __init__(self):
        import torch

        self.value = torch.zeros(1)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, weights):
        self.value = weights["value"]


@pytest.mark.parametrize(
    ("scores", "error", "kept"),
    [
        ([0.80, 0.85, 0.84], 0.02, 3),
        ([0.80, 0.85, 0.82], 0.02, 2),
        ([0.9, 0.5, float("nan")], 0.02, 1),
    ],
)
def test_a_peer_keeps_the_latest_epoch_within_a_standard_error_of_the_best(scores, error, kept):
    module, left = Module(), iter(scores)
    choice = EpochChoice(module, lambda: (next(left), error))
    for epoch in range(1, len(scores) + 1):
        module.value = module.value + 1
        choice.judge(epoch)
    assert choice.restore() == kept
    assert module.value.item() == kept


def test_an_embedder_goes_back_to_no_training_where_every_epoch_is_worse():
    module, left = Module(), iter([0.74, 0.73])
    choice = EpochChoice(module, lambda: (next(left), 0.02))
    choice.judge(0)
    module.value = module.value + 1
    choice.judge(1)
    assert choice.restore() == 0
    assert module.value.item() == 0


def test_scores_of_validation_rows_are_those_that_ours_chooses_by():
    from bothways.evaluation.intervals import mean_error, share_error

    def score(kind, rows, answers, metric):
        return validation_score(TaskData(kind, [], rows, [], 3, metric), answers)

    labelled = [{"label": "a"}] * 3 + [{"label": "b"}]
    certain = [{"a": 0.9, "b": 0.1}] * 4
    assert score("texts", labelled, certain, label_metrics) == (0.75, share_error(0.75, 4))
    numbers = [{"score": each} for each in (1.0, 2.0, 4.0)]
    expected = (-2 / 3, mean_error([1, 0, 1]))
    assert score("scored_pairs", numbers, [2.0, 2.0, 3.0], correlation) == pytest.approx(expected)
    tagged = [{"tags": ["B-PER", "I-PER", "O"]}, {"tags": ["O", "B-LOC", "O"]}]
    answers = [["B-PER", "I-PER", "O"], ["O", "O", "O"]]
    ranked = [{"text_a": q, "text_b": str(n), "label": "yes" if n == 0 else "no"} for q in "pq" for n in range(3)]
    found = [{"yes": each} for each in (0.9, 0.1, 0.2, 0.3, 0.8, 0.1)]  # its answer comes first, and second
    assert score("ranking", ranked, found, mean_average_precision) == pytest.approx((0.75, 0.25))
    assert score("tagging", tagged, answers, span_f1) == pytest.approx((2 / 3, share_error(2 / 3, 1.5)))


def test_the_trainer_ends_with_the_weights_of_the_kept_epoch(minilm_folder, tiny, monkeypatch):
    rows = [{"text_a": f"word {n}", "text_b": "other", "label": "ab"[n % 2]} for n in range(8)]
    data = TaskData("pairs", rows, rows[:4], rows, 3, label_metrics)
    peer, seen, scores = SequencePeer(1, "cpu", tiny), [], iter([0.9, 0.5, 0.5])

    def validate(_):
        seen.append({name: value.clone() for name, value in peer.model.state_dict().items()})
        return next(scores), 0.1

    monkeypatch.setattr(peer, "validate", validate)
    peer.fit(data, 1)
    assert len(seen) == 3
    assert peer.notes == {"kept epoch": 1}
    name = "classifier.weight"
    assert peer.model.state_dict()[name].equal(seen[0][name])
    assert not peer.model.state_dict()[name].equal(seen[2][name])


def test_numbers_are_learnt_in_standard_units_and_given_in_their_own(minilm_folder, tiny, monkeypatch):
    rows = [{"text_a": f"word {n}", "text_b": "other", "score": 10.0 + n} for n in range(8)]
    peer, learnt = SequencePeer(1, "cpu", tiny), []
    monkeypatch.setattr(peer, "train", lambda _, given, *__: learnt.extend(each["labels"] for each in given))
    peer.fit(TaskData("scored_pairs", rows, [], rows, 1, correlation), 1)
    monkeypatch.setattr(peer, "outputs", lambda encoded: [np.array([1.0])] * len(encoded["input_ids"]))
    assert (np.mean(learnt), np.std(learnt)) == pytest.approx((0, 1))
    assert peer.answers(rows[:1]) == pytest.approx([13.5 + np.std(range(8))])


# --- readings of outputs ---


@pytest.mark.parametrize(
    ("labels", "expected"), [(["B-PER", "I-PER", "O"], ["O", "O", "O"]), (["ADJ", "NOUN", "O"], ["NOUN", "O", "O"])]
)
def test_a_tagger_answers_valid_sequences_where_tags_make_up_spans(minilm_folder, monkeypatch, labels, expected):
    peer = TaggingPeer(1, "cpu")
    peer.labels = labels
    words_scores = [([0, 1], np.log([[0.1, 0.5, 0.4], [0.1, 0.1, 0.8]]))]
    monkeypatch.setattr(peer, "word_outputs", lambda _: words_scores)
    assert peer.answers([{"tokens": ["a", "b", "c"]}]) == [expected]


def test_the_temperature_is_that_of_the_logits():
    rng = np.random.default_rng(0)
    logits_NC = rng.normal(0, 2, (4_000, 3))
    stated_NC = scipy.special.softmax(logits_NC / 1.7, axis=1)
    truth_N = (rng.random((4_000, 1)) > stated_NC.cumsum(1)).sum(1).clip(max=2)
    assert fitted_temperature(logits_NC, truth_N) == pytest.approx(1.7, rel=0.08)


def test_a_trained_peer_answers_calibrated_probabilities(minilm_folder, tiny, monkeypatch):
    rows = [{"text": f"word {n}", "label": "ab"[n % 2]} for n in range(8)]
    peer = SequencePeer(1, "cpu", tiny)
    monkeypatch.setattr(peer, "train", lambda *_: None)
    # Right in six of eight rows, with log odds of 4: 3 to 1 is what they are worth.
    outputs = [np.array([4.0, 0.0]) if (n % 2 == 0) == (n < 6) else np.array([0.0, 4.0]) for n in range(8)]
    monkeypatch.setattr(peer, "outputs", lambda encoded: outputs[: len(encoded["input_ids"])])
    peer.fit(TaskData("texts", rows, rows, rows, 1, label_metrics), 1)
    assert peer.answers(rows[:1])[0]["a"] == pytest.approx(0.75, abs=0.001)


# --- results and tables ---


def test_results_without_a_commit_are_not_used(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"old": {"figure": 1}, "new": {"figure": 2, "commit": "abc"}}))
    kept = Kept(path)
    assert list(kept.entries) == ["new"]
    kept.add("newer", {"figure": 3, "commit": "abc"})
    assert list(json.loads(path.read_text())) == ["new", "newer"]


def test_a_lead_is_named_by_its_spread():
    assert lead({1: 0.8, 2: 0.9}, {1: 0.7, 2: 0.81, 3: 0.1}) == "+0.0950 ± 0.0071, ahead"
    assert lead({1: 0.8, 2: 0.7}, {1: 0.7, 2: 0.8}) == "+0.0000 ± 0.1414, tie"
    assert lead({1: 0.8}, {2: 0.8}) == ""


def task_run(side, seed, figure, name="wnut17", **more):
    rows = {"train": 100, "validation": 10, "test": 10}
    return {
        "dataset": name, "side": side, "seed": seed, "figures": {"span F1": figure, "token accuracy": 0.9},
        "rows": rows, "epochs": 3, **ORIGIN, **more,
    }  # fmt: skip


def test_the_table_of_quality_has_each_side_its_spread_and_its_verdict():
    runs = [task_run("bothways", seed, 0.5 + 0.01 * seed) for seed in (1, 2)]
    runs += [task_run("peer", seed, 0.4) for seed in (1, 2)]
    text = quality.quality_table(runs, Options())
    named = "wnut17 (100 rows, 3 epochs)"
    also = "token accuracy 0.9000 ± 0.0000"
    assert f"| {named} | bothways | span F1 0.5150 ± 0.0071 | 2 |  | {also} |" in text
    assert f"| {named} | peer | span F1 0.4000 ± 0.0000 | 2 | +0.1150 ± 0.0071, ahead | {also} |" in text
    assert "Ours at abc1234, peers run at abc1234" in text
    assert "*: SICK" not in text
    assert "*: SICK" in quality.quality_table([task_run("bothways", 1, 0.8, "sick")], Options())


def test_runs_are_kept_with_their_origin_and_ours_is_renewed(tmp_path, monkeypatch):
    calls = []

    def in_a_process(_, dataset, seed, side, __):
        calls.append(side)
        run = task_run(side, seed, 0.5, dataset)
        return {name: run[name] for name in ("figures", "rows", "epochs")}

    monkeypatch.setattr(runs, "in_a_process", in_a_process)
    monkeypatch.setattr(quality, "sides_of", lambda _: {"bothways": None, "peer": None})
    options = {"output": tmp_path, "datasets": ("wnut17",), "seeds": (1,)}
    quality.run(Options(**options))
    entries = json.loads((tmp_path / "quality-partial.json").read_text())
    assert all({"commit", "cpu", "threads", "versions", "date"} <= set(entry) for entry in entries.values())
    monkeypatch.setattr(runs, "commit", lambda: "another")
    quality.run(Options(**options))
    assert calls == ["bothways", "peer"]
    quality.run(Options(**options, renew=True))
    assert calls == ["bothways", "peer", "bothways"]
