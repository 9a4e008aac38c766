"""How the peers are trained and compared: epoch, temperature, decoding, tables, and the file of kept results."""

import json

import numpy as np
import pytest
import scipy.special
from benchmarks import contrasts, quality, task_quality
from benchmarks.classifier_quality import classifiers_table
from benchmarks.classifiers import least_temperature
from benchmarks.epochs import EpochChoice, validation_score
from benchmarks.harness import Options
from benchmarks.kept import Kept
from benchmarks.spread import lead
from benchmarks.task_data import TaskData, correlation, label_accuracy, mean_average_precision, span_f1
from benchmarks.task_peers import best_threshold
from benchmarks.trainer_peers import VALID, SequencePeer, StandardisingPeer, TaggingPeer, ValidTaggingPeer

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
    from bothways.evaluation import mean_error, share_error

    def score(kind, rows, answers, metric):
        return validation_score(TaskData(kind, [], rows, [], 3, metric), answers)

    labelled = [{"label": "a"}] * 3 + [{"label": "b"}]
    certain = [{"a": 0.9, "b": 0.1}] * 4
    assert score("texts", labelled, certain, label_accuracy) == (0.75, share_error(0.75, 4))
    numbers = [{"score": each} for each in (1.0, 2.0, 4.0)]
    expected = (-2 / 3, mean_error([1, 0, 1]))
    assert score("scored_pairs", numbers, [2.0, 2.0, 3.0], correlation) == pytest.approx(expected)
    tagged = [{"tags": ["B-PER", "I-PER", "O"]}, {"tags": ["O", "B-LOC", "O"]}]
    answers = [["B-PER", "I-PER", "O"], ["O", "O", "O"]]
    ranked = [{"text_a": q, "text_b": str(n), "label": "yes" if n == 0 else "no"} for q in "pq" for n in range(3)]
    found = [{"yes": each} for each in (0.9, 0.1, 0.2, 0.3, 0.8, 0.1)]  # its answer comes first, and second
    assert score("ranking", ranked, found, mean_average_precision) == pytest.approx((0.75, 0.25))
    assert score("tagging", tagged, answers, span_f1) == pytest.approx((2 / 3, share_error(2 / 3, 1.5)))


@pytest.fixture
def tiny(tmp_path_factory):
    """Write a random BERT with MiniLM's tokenizer."""
    import shutil

    import torch
    import transformers
    from benchmarks.harness import minilm_folder

    pytest.importorskip("accelerate", reason="transformers' Trainer asks for it")
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    shutil.copytree(minilm_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=30_522, **shape)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_the_trainer_ends_with_the_weights_of_the_kept_epoch(minilm_folder, tiny, monkeypatch):
    rows = [{"text_a": f"word {n}", "text_b": "other", "label": "ab"[n % 2]} for n in range(8)]
    data = TaskData("pairs", rows, rows[:4], rows, 3, label_accuracy)
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
    data = TaskData("scored_pairs", rows, [], rows, 1, correlation)
    learnt = {}
    for kind in (SequencePeer, StandardisingPeer):
        peer = kind(1, "cpu", tiny)

        def train(_, given, *__, kind=kind):
            learnt[kind] = [each["labels"] for each in given]

        monkeypatch.setattr(peer, "train", train)
        peer.fit(data, 1)
        monkeypatch.setattr(peer, "outputs", lambda encoded: [np.array([1.0])] * len(encoded["input_ids"]))
        assert peer.answers(rows[:1]) == pytest.approx([1.0 if kind is SequencePeer else 13.5 + np.std(range(8))])
    assert learnt[SequencePeer] == [10.0 + n for n in range(8)]
    assert (np.mean(learnt[StandardisingPeer]), np.std(learnt[StandardisingPeer])) == pytest.approx((0, 1))


# --- readings of outputs ---


def test_both_readings_of_a_tagger_are_of_the_same_outputs(minilm_folder, monkeypatch):
    words_scores = [([0, 1], np.log([[0.1, 0.5, 0.4], [0.1, 0.1, 0.8]]))]
    rows = [{"tokens": ["a", "b", "c"], "tags": ["O", "O", "O"]}]
    found = {}
    for kind in (TaggingPeer, ValidTaggingPeer):
        peer = kind(1, "cpu")
        peer.labels = ["B-PER", "I-PER", "O"]
        monkeypatch.setattr(peer, "word_outputs", lambda _: words_scores)
        found[kind] = peer.answers(rows)
        assert peer.all_answers(rows) == {"": [["I-PER", "O", "O"]], VALID: [["O", "O", "O"]]}
    assert found == {TaggingPeer: [["I-PER", "O", "O"]], ValidTaggingPeer: [["O", "O", "O"]]}
    peer.labels = ["ADJ", "NOUN", "VERB"]
    assert list(peer.all_answers(rows)) == [""]


def test_the_temperature_is_that_of_the_logits():
    rng = np.random.default_rng(0)
    logits_NC = rng.normal(0, 2, (4_000, 3))
    stated_NC = scipy.special.softmax(logits_NC / 1.7, axis=1)
    truth_N = (rng.random((4_000, 1)) > stated_NC.cumsum(1)).sum(1).clip(max=2)
    assert least_temperature(logits_NC, truth_N) == pytest.approx(1.7, rel=0.08)


def test_the_threshold_of_no_answer_is_the_best_of_the_validation_rows():
    from benchmarks.task_data import _answers

    validation = [{"answers": [{"text": "Paris"}]}] * 3 + [{"answers": []}] * 3
    data = TaskData("answering", [], validation, [], 2, _answers)
    spans = [(5.0, "Paris"), (4.0, "Paris"), (3.0, "Paris"), (1.0, "Rome"), (0.5, "Rome"), (-1.0, "Rome")]
    assert 1 < best_threshold(data, spans) <= 3
    assert best_threshold(data, [(each, "Paris") for each in (3.0, 2.0, 1.0, -1.0, -2.0, -3.0)]) == 0


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
    assert lead({1: 0.02, 2: 0.03}, {1: 0.04, 2: 0.06}, lower_is_better=True) == "-0.0250 ± 0.0071, ahead"
    assert lead({1: 0.8, 2: 0.7}, {1: 0.7, 2: 0.8}) == "+0.0000 ± 0.1414, tie"
    assert lead({1: 0.8}, {2: 0.8}) == ""


def task_run(side, seed, figure, name="wnut17", **more):
    rows = {"train": 100, "validation": 10, "test": 10}
    return {
        "dataset": name, "side": side, "seed": seed, "figures": {"span F1": figure, "token accuracy": 0.9},
        "rows": rows, "epochs": 3, **ORIGIN, **more,
    }  # fmt: skip


def test_the_table_of_tasks_has_each_reading_its_spread_and_its_verdict():
    readings = {VALID: {"span F1": 0.55, "token accuracy": 0.9}}
    runs = [task_run("bothways", seed, 0.5 + 0.01 * seed) for seed in (1, 2)]
    runs += [task_run("peer", seed, 0.4, readings=readings) for seed in (1, 2)]
    text = task_quality.tasks_table(runs, Options())
    named = "wnut17 (100 rows, 3 epochs)"
    also = "token accuracy 0.9000 ± 0.0000"
    assert f"| {named} | bothways | span F1 0.5150 ± 0.0071 | 2 |  | {also} |" in text
    assert f"| {named} | peer | span F1 0.4000 ± 0.0000 | 2 | +0.1150 ± 0.0071, ahead | {also} |" in text
    assert f"| peer, {VALID} | span F1 0.5500 ± 0.0000 | 2 | -0.0350 ± 0.0071, behind |" in text
    assert "Ours at abc1234, peers run at abc1234" in text
    assert "*: that the latest epoch" not in text
    assert "*: that the latest epoch" in task_quality.tasks_table([task_run("bothways", 1, 0.8, "sick")], Options())


def test_the_table_of_classifiers_says_which_differences_are_ties():
    def run(side, seed, accuracy):
        figures = {"accuracy": accuracy, "ece": 0.05, "ece_calibrated": 0.02, "ece_of_chance": 0.01}
        return {"dataset": "sst2", "side": side, "seed": seed, **figures, "rows": {"train": 100}, **ORIGIN}

    runs = [run("bothways", 1, 0.9), run("bothways", 2, 0.8)]
    runs += [run("Trainer, default", 1, 0.8), run("Trainer, default", 2, 0.9)]
    text = classifiers_table(runs, Options())
    assert "| 0.8500 ± 0.0707 | +0.0000 ± 0.1414, tie | 0.0500 ± 0.0000 | 0.0200 ± 0.0000 * |" in text


def test_the_table_of_contrasts_compares_with_its_first_line():
    runs = [
        {"dataset": "trecqa_bi", "seed": seed, "figures": {"no training": 0.74, "fit": 0.72}, **ORIGIN}
        for seed in (1, 2)
    ]
    text = contrasts.contrasts_table(runs, Options())
    assert "| trecqa_bi | fit | 0.7200 ± 0.0000 | 2 | +0.0200 ± 0.0000, ahead |" in text


def test_runs_are_kept_with_their_origin_and_ours_is_renewed(tmp_path, monkeypatch):
    calls = []

    def single(dataset, seed, side, options):
        calls.append(side)
        run = task_run(side, seed, 0.5, dataset)
        return {name: run[name] for name in ("figures", "rows", "epochs")}

    monkeypatch.setattr(quality, "_single", single)
    monkeypatch.setattr(quality, "_sides", lambda _: ("bothways", "peer"))
    options = {"output": tmp_path, "datasets": ("wnut17",), "seeds": (1,)}
    quality.run(Options(**options))
    entries = json.loads((tmp_path / "quality-partial.json").read_text())
    assert all({"commit", "cpu", "threads", "versions", "date"} <= set(entry) for entry in entries.values())
    monkeypatch.setattr(quality, "commit", lambda: "another")
    quality.run(Options(**options))
    assert calls == ["bothways", "peer"]
    quality.run(Options(**options, renew=True))
    assert calls == ["bothways", "peer", "bothways"]
