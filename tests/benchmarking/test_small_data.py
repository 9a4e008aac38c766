"""The small-data benchmark: which rows are drawn, which cells are run, and what its tables say."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import runs, small_data
from benchmarks.harness import Options
from benchmarks.peers import valid_tags
from benchmarks.runs import is_due, verdict
from benchmarks.small_data import planned, sets, tables
from benchmarks.small_data.sets import drawn, number_metrics, usual_seeds
from benchmarks.small_data.trained import held_out, setfit_updates
from benchmarks.tasks import TaskData, label_metrics
from benchmarks.workers import AbsentPeerError
from sklearn.metrics import r2_score


def labelled(counts, kind="texts"):
    """Rows in the order of their labels."""
    rows = [{"text": f"{label} {n}", "label": label} for label, count in counts.items() for n in range(count)]
    return TaskData(kind, rows, [], [{"text": f"test {n}", "label": "a"} for n in range(50)], 3, label_metrics)


def counted(rows):
    return {label: sum(row["label"] == label for row in rows) for label in sorted({row["label"] for row in rows})}


# --- the drawing of rows ---


def test_eight_of_each_class_are_drawn_or_all_of_a_rarer_one():
    assert counted(drawn(labelled({"a": 300, "b": 40, "c": 5}), "8", 1, 0).train) == {"a": 8, "b": 8, "c": 5}


def test_a_number_of_rows_is_drawn_from_all_alike_with_two_of_each_class():
    data = labelled({"a": 900, "b": 98, "c": 2})
    found = [counted(drawn(data, "100", seed, 0).train) for seed in range(40)]
    assert all(sum(each.values()) == 100 and each["b"] >= 2 and each["c"] == 2 for each in found)
    assert np.mean([each["b"] for each in found]) == pytest.approx(9.8, abs=1.5)


def test_the_rows_of_a_seed_are_the_same_again_and_those_of_another_are_others():
    data = labelled({"a": 300, "b": 300})
    one, again, other = (drawn(data, "100", seed, 0).train for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len({row["text"] for row in one}) == 100
    whole = drawn(data, "all", 1, 0).train
    assert sorted(row["text"] for row in whole) == sorted(row["text"] for row in data.train)


@pytest.mark.parametrize(("counts", "size"), [({"a": 30, "b": 30}, "60"), ({"a": 9, "b": 9, "c": 9}, "5")])
def test_a_size_is_left_out_that_is_the_whole_or_less_than_two_of_each_class(counts, size):
    assert drawn(labelled(counts), size, 1, 0) is None


def test_numbers_are_drawn_from_each_fifth_of_them():
    rows = [{"text": str(n), "score": float(n)} for n in range(1000)]
    data = TaskData("scored_pairs", rows, [], [], 3, number_metrics)
    scores = [row["score"] for row in drawn(data, "8", 1, 0).train]
    assert np.histogram(scores, bins=[-0.5, 199.5, 399.5, 599.5, 799.5, 999.5])[0].tolist() == [8] * 5


def test_the_test_rows_are_capped_alike_for_every_seed():
    data = labelled({"a": 30, "b": 30})
    capped = [drawn(data, "8", seed, 20).test for seed in (1, 2)]
    assert capped[0] == capped[1]
    assert len(capped[0]) == 20
    assert drawn(data, "8", 1, 0).test == data.test


def test_of_a_ranking_whole_questions_are_kept():
    test = [{"text_a": f"q{n // 5}", "text_b": str(n), "label": "yes"} for n in range(100)]
    data = replace(labelled({"no": 20, "yes": 20}, "ranking"), test=test)
    kept = drawn(data, "8", 1, 22).test
    assert len(kept) == 25
    assert all(sum(row["text_a"] == name for row in kept) == 5 for name in {row["text_a"] for row in kept})


def test_few_rows_have_five_seeds():
    assert usual_seeds(499) == (1, 2, 3, 4, 5)
    assert usual_seeds(500) == (1, 2, 3)


def test_r2_is_that_of_scikit_learn_and_constants_have_no_correlation():
    random = np.random.default_rng(0)
    truth, answers = random.normal(3, 1, 50), random.normal(3, 1, 50)
    rows = [{"score": each} for each in truth]
    assert number_metrics(rows, list(answers))["R2"] == pytest.approx(r2_score(truth, answers))
    assert number_metrics(rows, [2.0] * 50)["Spearman"] == 0.0


# --- contestants ---


def test_the_peers_rows_to_choose_by_are_those_that_ours_holds_out():
    from bothways.tasks.classification.learner import LabelLearner
    from bothways.tasks.classification.spec import CLASSIFICATION
    from bothways.tasks.heads.splits import TrainingData

    data = labelled({"a": 30, "b": 20})
    learnt, held = held_out(data, 3)
    assert len(held) == 5
    assert sorted(row["text"] for row in learnt + held) == sorted(row["text"] for row in data.train)
    # No embedder lies below: above one, so few rows would all be learnt from.
    opened = SimpleNamespace(options=None, model=SimpleNamespace(settings={}))
    options = CLASSIFICATION.fit_options()
    given = TrainingData(data.train, seed=3)
    _, stays, theirs = LabelLearner.from_data(opened, given, CLASSIFICATION.columns, options, None)
    assert [each.text for each in theirs] == [row["text"] for row in held]
    assert [each.text for each in stays] == [row["text"] for row in learnt]


def test_setfit_draws_every_pair():
    # 72 like pairs, each text with itself too, and 64 unlike ones: 2 x 72 in batches of 16.
    assert setfit_updates(["a"] * 8 + ["b"] * 8) == 9


def test_valid_tags_begin_no_span_inside():
    labels = ["B-PER", "I-PER", "O"]
    scores = np.log([[0.1, 0.5, 0.4], [0.1, 0.7, 0.2], [0.1, 0.1, 0.8]])
    assert valid_tags(labels, scores, [2, 1]) == [["O", "O"], ["O"]]  # .08, where B I has .07
    assert valid_tags(labels, np.log([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]), [2]) == [["B-PER", "I-PER"]]


# --- cells ---


@pytest.fixture
def small(monkeypatch):
    """One set with labels and one with numbers, and fits that take no time; the calls are noted."""
    made = {
        "sst2": labelled({"a": 300, "b": 300}),
        "stsb": TaskData("scored_pairs", [{"score": float(n)} for n in range(90)], [], [{}], 3, number_metrics),
    }
    calls = []

    def in_a_process(_, cell, options):
        calls.append(cell)
        if cell.contestant == "setfit":
            raise AbsentPeerError("no module named setfit")
        rows = drawn(made[cell.set], cell.size, cell.seed, options.test_rows)
        figure = 0.9 if cell.contestant == "ours" else 0.8 + 0.01 * cell.seed
        counts = {"train": len(rows.train), "test": len(rows.test)}
        return {"figures": {"accuracy": figure}, "fit_seconds": 1.0, "test_seconds": 0.1, "rows": counts, "notes": {}}

    monkeypatch.setattr(small_data, "load", made.__getitem__)
    monkeypatch.setattr(runs, "in_a_process", in_a_process)
    return calls


def options(folder, **more):
    return Options(**{"output": folder, "sets": ("sst2",), "sizes": ("8",), **more})


def test_the_plan_goes_cell_by_cell_and_names_what_it_leaves_out(small):
    left_out = {}
    plan = list(planned(Options(sets=("sst2", "stsb"), sizes=("8", "500")), left_out))
    of_first = [cell.contestant for cell in plan if (cell.set, cell.size, cell.seed) == ("sst2", "8", 1)]
    assert of_first == ["tfidf", "ours", "probe", "setfit", "trainer_tuned"]
    assert {cell.seed for cell in plan} == {1, 2, 3, 4, 5}
    assert not any(cell.contestant == "setfit" for cell in plan if (cell.set, cell.size) != ("sst2", "8"))
    assert set(left_out) == {"setfit on sst2, 500 rows", "stsb, 500 rows", "setfit on stsb"}


def test_contestants_are_chosen_by_words_or_commas_and_unknown_ones_refused(small):
    for names in (("ours,probe",), ("ours", "probe")):
        plan = list(planned(options(None, contestants=names, seeds=(4,)), {}))
        assert [(cell.contestant, cell.seed) for cell in plan] == [("ours", 4), ("probe", 4)]
    with pytest.raises(SystemExit, match="got prob"):
        list(planned(options(None, contestants=("prob",)), {}))


def test_cells_that_are_there_are_not_run_again(small, tmp_path):
    small_data.run(options(tmp_path, seeds=(1,), contestants=("ours,probe",)))
    small_data.run(options(tmp_path, seeds=(1, 2), contestants=("ours,probe,setfit",)))
    first, second = ([(seed, name) for name in ("ours", "probe", "setfit")] for seed in (1, 2))
    assert [(cell.seed, cell.contestant) for cell in small] == [*first, *second]
    kept = json.loads((tmp_path / "small_data-partial.json").read_text())
    assert len(kept) == 4
    entry = kept["sst2/8/1/ours/1000 test rows/cpu"]
    assert {"commit", "cpu", "threads", "fit_seconds", "versions", "date"} <= set(entry)
    text = next(tmp_path.glob("*-small_data.md")).read_text()
    assert "Left out: setfit (no module named setfit)." in text


def test_another_cap_of_test_rows_makes_other_cells(small, tmp_path):
    for cap in (20, 40):
        small_data.run(options(tmp_path, test_rows=cap, seeds=(1,), contestants=("ours",)))
    assert len(small) == 2
    assert "at most 40 of each set" in next(tmp_path.glob("*-small_data.md")).read_text()


def test_tables_are_written_of_kept_cells_without_fits(small, tmp_path):
    with pytest.raises(SystemExit, match="no cell"):
        small_data.run(options(tmp_path, kept=True))
    small_data.run(options(tmp_path, seeds=(1,), contestants=("ours",)))
    small_data.run(options(tmp_path, kept=True))
    assert len(small) == 1


def test_only_ours_of_another_commit_is_renewed():
    assert is_due(None, ours=True, renew=False, now="b")
    assert is_due({"commit": "a"}, ours=True, renew=True, now="b")
    assert not is_due({"commit": "b"}, ours=True, renew=True, now="b")
    assert not is_due({"commit": "a"}, ours=True, renew=False, now="b")
    assert not is_due({"commit": "a"}, ours=False, renew=True, now="b")


# --- tables ---


def entry(contestant, seed, figure, *, name="sst2", size="100", rows=100, metric="accuracy"):
    return {
        "set": name, "size": size, "seed": seed, "contestant": contestant, "figures": {metric: figure},
        "fit_seconds": 2.0, "rows": {"train": rows, "test": 50}, "test_cap": 1000, "commit": "abc", "cpu": "a cpu",
        "cores": 2, "threads": 1, "device": "cpu",
    }  # fmt: skip


def test_means_and_spreads_stand_in_the_table():
    runs = [entry("ours", 1, 0.8), entry("ours", 2, 0.9), entry("tfidf", 1, 0.5)]
    rows = tables.figures_table(runs).splitlines()
    assert rows[0] == "| data | training rows | TF-IDF, linear | ours | seconds per fit |"
    assert rows[2] == "| sst2, accuracy | 100 | 0.5000 | 0.8500 ± 0.0707 | 2 / 2 |"


def test_the_best_peer_is_the_hardest_to_beat_on_the_seeds_of_both():
    runs = [entry("ours", seed, 0.8 + 0.1 * (seed == 2)) for seed in (1, 2)]
    # The linear model has the higher figure, on the seed that is easy for ours, too.
    runs += [entry("probe", 2, 0.86), entry("tfidf", 1, 0.79), entry("tfidf", 2, 0.89)]
    (found,) = tables.leads(runs)
    assert found["peer"] == "tfidf"
    assert found["differences"] == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize(
    ("differences", "expected"),
    [([0.02, 0.03], "ahead"), ([-0.02, -0.03], "behind"), ([0.03, -0.01], "tie"), ([0.3], "one seed"), ([0, 0], "tie")],
)
def test_a_difference_within_its_spread_is_a_tie(differences, expected):
    assert verdict(differences) == expected


def test_the_summary_is_of_accuracy_on_few_rows():
    runs = [
        *(entry(name, seed, figure) for seed in (1, 2) for name, figure in (("ours", 0.9), ("probe", 0.88))),
        *(entry(name, 1, figure, rows=5000, size="all") for name, figure in (("ours", 0.2), ("probe", 0.9))),
        *(entry(name, 1, figure, name="stsb", metric="R2") for name, figure in (("ours", 0.1), ("probe", 0.9))),
    ]
    text = tables.page(runs)
    assert "Of 3 sets and sizes: ahead 1, tie 0, behind 0, one seed 2." in text
    assert "+2.00 points on the best peer, the mean of 1" in text
    assert "Behind the linear model on embeddings: 0 of 3." in text
    assert text.index("100") < text.index("5,000 (all)")


def test_every_set_is_there_with_rows_of_its_kind():
    if not sets.DATA.exists():
        pytest.skip("the data sets are not on this machine")
    for name in sets.SETS:
        data = drawn(sets.load(name), "8", 1, 30)
        columns = set(data.train[0])
        assert columns == set(data.test[0])
        assert {"label", "score"} & columns
        assert 16 <= len(data.train) <= 8 * 150
        assert not data.validation
