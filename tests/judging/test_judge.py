"""A judge that is trained, saved and opened, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
from judging_cases import LABEL, triples, without

from bothways import PairClassifier, open_trained
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.judging import Judge, Triple, judges_in, read_triples
from tiny_models import write_checkpoint

QUICK = {"epochs": 1, "learning_rate": 3e-3, "show_progress": False}
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tiny/ and a judge of context relevance, judge/."""
    path = tmp_path_factory.mktemp("judge")
    write_checkpoint(path / "tiny")
    Judge.train(path / "tiny", triples(60), LABEL, opening=CPU, **QUICK).save(path / "judge")
    return path


def copied(folder, path, dimension):
    """Copy the judge, as one that names another dimension."""
    shutil.copytree(folder / "judge", path)
    stored = json.loads((path / "bothways.json").read_text())
    stored["card"]["judge"]["dimension"] = dimension
    (path / "bothways.json").write_text(json.dumps(stored))


def test_a_saved_judge_gives_the_same_probabilities_and_opens_as_a_model_of_pairs(folder):
    judge = Judge.open(folder / "judge", **CPU)
    rows = read_triples(triples(10, seed=5), judge.dimension).triples
    stated = judge.probabilities([*rows, rows[0]])
    pairs = PairClassifier.from_pretrained(folder / "judge", device="cpu")
    np.testing.assert_allclose(
        stated[:10], pairs.predict_proba([(row.query, row.passage) for row in rows])[:, 1], atol=1e-6
    )
    assert stated[10] == stated[0]
    assert type(open_trained(folder / "judge", device="cpu")) is PairClassifier
    stored = json.loads((folder / "judge" / "bothways.json").read_text())
    assert stored["card"]["judge"]["dimension"] == LABEL
    assert stored["merge"] == "maxp"


def test_its_evaluation_has_every_figure(folder):
    rows = [{**row, "system": "ab"[number % 2]} for number, row in enumerate(triples(40, seed=3))]
    found = Judge.open(folder / "judge", **CPU).evaluate(rows, resamples=50, show_progress=False).to_dict()
    assert {"accuracy", "auroc", "auroc_low", "ece", "kendall_tau"} <= found.keys()
    assert found["systems"].keys() == {"a", "b"}
    with pytest.raises(InvalidInput, match="expected labels in the column"):
        Judge.open(folder / "judge", **CPU).evaluate(without(rows, LABEL))


def test_its_evaluation_knows_the_rows_of_its_training(folder):
    judge, few = Judge.open(folder / "judge", **CPU), {"resamples": 5, "show_progress": False}
    new, old = [{**row, "query": f"{row['query']} new"} for row in triples(30, seed=3)], triples(60)
    turned = [{**row, LABEL: 1 - row[LABEL]} for row in old[:30]]
    report = judge.evaluate([*new, *turned, *old[30:]], **few)
    counts = report.to_dict()["training_rows"]
    # A tenth was held out.
    assert 50 <= counts["shared"] <= 60
    assert 20 <= counts["other_label"] <= 40
    assert report.summary().startswith(f"{counts['shared']} of 90 rows are training rows")
    dropped = judge.evaluate([*new, *old], shared="drop", **few)
    assert dropped.report.n == 90 - counts["shared"]
    assert dropped.report.shared.left_out
    assert judge.evaluate(new, **few).report.shared.shared == 0


def test_a_long_passage_is_as_relevant_as_its_best_window(folder):
    judge = Judge.open(folder / "judge", **CPU)
    parts = ["w5 w6 w7 w8 w9 w10", "w20 w21 w22 w23 w24 w25", "w30 w31 w32 w33 w34 w35"]
    long = Triple("w5 w20", " ".join(parts * 2))
    assert judge.classifier.predict((long.query, long.passage)).tokens_read.windows > 1
    means = PairClassifier.from_pretrained(folder / "judge", device="cpu", merge="mean")
    alike = means.predict_proba([(long.query, long.passage)])[0, 1]
    assert judge.probabilities([long])[0] >= alike


def test_a_judge_of_another_dimension_is_refused(folder):
    with pytest.raises(InvalidInput, match=r"expected a judge of answer_relevance, got .*judges context_relevance"):
        Judge.open(folder / "judge", "answer_relevance")


def test_a_folder_of_several_judges_opens_by_dimension(folder, tmp_path):
    for name in ("context_relevance", "answer_relevance"):
        copied(folder, tmp_path / name, name)
    assert judges_in(tmp_path) == ["context_relevance", "answer_relevance"]
    assert Judge.open(tmp_path, "answer_relevance", **CPU).dimension.name == "answer_relevance"
    with pytest.raises(InvalidInput, match=r"has a judge for .context_relevance, answer_relevance., got no dimension"):
        Judge.open(tmp_path)
    with pytest.raises(InvalidInput, match="got answer_faithfulness"):
        Judge.open(tmp_path, "answer_faithfulness")


def test_what_is_no_judge_is_refused(folder, tmp_path):
    with pytest.raises(InvalidInput, match="a model that was not trained to judge"):
        Judge.open(folder / "tiny")
    copied(folder, tmp_path / "spoilt", "taste")
    with pytest.raises(CorruptCheckpoint, match="got 'taste'"):
        Judge.open(tmp_path / "spoilt")


def test_a_model_of_other_labels_needs_the_one_that_stands_for_good(folder):
    pairs = PairClassifier.from_pretrained(folder / "tiny", device="cpu")
    rows = [{"text_a": f"w{n}", "text_b": f"w{n + 1}", "label": ("neutral", "entailment")[n % 2]} for n in range(5, 45)]
    pairs.fit(rows, **QUICK)
    with pytest.raises(InvalidInput, match="with the label '1', got one with entailment, neutral"):
        Judge(pairs, "answer_faithfulness")
    judge = Judge(pairs, "answer_faithfulness", good="entailment")
    assert 0 <= judge.probabilities([Triple("w5", "w6", "w7")])[0] <= 1


def test_an_unknown_dimension_is_refused(folder):
    with pytest.raises(InvalidInput, match="dimension must be one of 'context_relevance'"):
        Judge.train(folder / "tiny", triples(20), "taste")
