"""Ensembles of saved models: what they say, what is kept of them, and what does not belong together."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from ensemble_cases import reading, reported, turned

from bothways import Ensemble
from bothways.compose.opening import open_trained
from bothways.data import read_rows
from bothways.errors import (
    CorruptCheckpoint,
    InvalidInput,
    NotCalibrated,
    NotFitted,
    RowsLeftOut,
    RowsShared,
    UnknownModel,
    UnsupportedConfig,
)
from bothways.evaluation.calibration import HeldOutRows
from bothways.evaluation.temperature import apply_temperature
from bothways.tasks import PairClassifier, SentenceEmbedder, TextClassifier
from bothways.tasks.heads.target_training import fitted_temperature
from classifier_cases import LABELS, noisy_rows, rows
from pair_cases import pairs, scored
from tiny_models import write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
HELD = noisy_rows(36)
ALIKE = [row for row in noisy_rows(200) if row["label"] == "cow"][:12]


def trained(folder, base, data, kind=TextClassifier, *, open_with=None, **options):
    classifier = kind.from_pretrained(base, device="cpu", **(open_with or {}))
    classifier.fit(data, validation=data, **{**QUICK, **options})
    classifier.save(folder)
    return classifier


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with bases of three families and models of several tasks."""
    folder = tmp_path_factory.mktemp("runs")
    for number, family in enumerate(("bert", "distilbert", "xlnet")):
        write_checkpoint(folder / family, family, seed=number)
        trained(folder / f"{family}-animals", folder / family, rows(), seed=number)
    bert = folder / "bert"
    trained(folder / "plants", bert, [{**row, "label": row["label"].replace("cow", "oak")} for row in rows()])
    several = [{**row, "label": [row["label"]]} for row in rows()]
    trained(folder / "several-a", bert, several, target="multi", seed=1)
    trained(folder / "several-b", bert, several, target="multi", seed=2)
    numbers = [{**row, "label": float(number)} for number, row in enumerate(rows())]
    trained(folder / "number-a", bert, numbers, target="regression", seed=1)
    trained(folder / "number-b", bert, numbers, target="regression", seed=2)
    trained(folder / "pairs-a", bert, pairs(), PairClassifier, seed=1)
    trained(folder / "pairs-b", folder / "distilbert", pairs(), PairClassifier, seed=2)
    trained(folder / "scores", bert, scored(), PairClassifier, label="score", target="regression")
    return folder


@pytest.fixture
def animals(runs):
    return [runs / f"{family}-animals" for family in ("bert", "distilbert", "xlnet")]


def test_a_text_is_outside_where_most_members_call_it_so(animals):
    members = [open_trained(folder, device="cpu") for folder in animals]
    ensemble = Ensemble.of(animals, device="cpu")
    texts = [*(row["text"] for row in rows(6, first=101)), "w60 w61 w70", "w79 w55 w66 w77"]
    found = list(ensemble.predict_stream(asked(texts)))
    votes = [[bool(member.predict(text).out_of_domain) for member in members] for text in texts]
    assert [each.together.out_of_domain for each in found] == [sum(vote) >= 2 for vote in votes]
    assert [each.together.out_of_domain_score for each in found] == pytest.approx([np.mean(vote) for vote in votes])
    assert {each.together.out_of_domain for each in found} == {True, False}
    assert next(without_detectors(ensemble).predict_stream(asked(texts))).together.out_of_domain is None


def without_detectors(ensemble):
    """The same ensemble of members that detect nothing."""

    def blind(member):
        outputs = member.fitted.outputs
        outputs = outputs.with_confidence(replace(outputs.confidence, out_of_domain=None))
        return replace(member, fitted=replace(member.fitted, outputs=outputs))

    outputs = replace(ensemble.fitted.outputs, members=tuple(map(blind, ensemble.fitted.outputs.members)))
    return ensemble._with(replace(ensemble.fitted, outputs=outputs))


def test_how_texts_are_read_is_saved_with_what_was_learnt_of_them(animals, tmp_path):
    reading = {"max_length": 6, "on_overflow": "truncate"}
    ensemble = Ensemble.of(animals, calibrate=HELD, device="cpu", **reading)
    ensemble.save(tmp_path / "ensemble")
    long = "w5 w20 w30 w40 w50 w60 w7"
    expected = ensemble.predict(long)
    assert expected.together.tokens_read.dropped_tokens > 0
    again = open_trained(tmp_path / "ensemble", device="cpu")
    assert again.predict(long) == expected
    again.save(tmp_path / "again")
    assert Ensemble.from_pretrained(tmp_path / "again", device="cpu").predict(long) == expected
    other = Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu", on_overflow="window")
    assert other.predict(long).together.tokens_read.windows > 1
    assert {member.backend.reading.max_length for member in other.members} == {6}
    path = tmp_path / "ensemble" / "bothways.json"
    for damage in ({"on_overflow": "fold"}, {"stride": -1}):
        path.write_text(json.dumps({**json.loads(path.read_text()), "reading": damage}))
        with pytest.raises(CorruptCheckpoint):
            Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu")


def asked(texts):
    return list(read_rows([{"text": text} for text in texts]))


def probabilities(predictions, labels=LABELS):
    return np.array([[each.together.probabilities[label] for label in labels] for each in predictions])


def test_models_of_different_families_answer_by_the_mean_of_their_calibrated_probabilities(animals):
    ensemble = Ensemble.of(animals, device="cpu")
    texts = [row["text"] for row in rows(8)]
    alone_MNC = np.array(
        [
            [
                [each.probabilities[label] for label in LABELS]
                for each in open_trained(folder, device="cpu").predict(texts)
            ]
            for folder in animals
        ]
    )
    found = list(ensemble.predict_stream(asked(texts)))
    np.testing.assert_allclose(probabilities(found), alone_MNC.mean(0), rtol=0, atol=1e-6)
    for each, mean_C, own_MC in zip(found, alone_MNC.mean(0), alone_MNC.transpose(1, 0, 2), strict=True):
        assert each.together.label == LABELS[mean_C.argmax()]
        assert each.disagreement.differing == pytest.approx((own_MC.argmax(1) != mean_C.argmax()).mean())


@pytest.mark.parametrize("method", ["mean", "vote", "stacked"])
def test_an_ensemble_is_calibrated_on_the_held_out_rows_and_comes_back_the_same(animals, runs, tmp_path, method):
    ensemble = Ensemble.of(animals, method=method, calibrate=HELD, device="cpu")
    assert ensemble.temperature is not None
    assert ensemble.card["calibration_rows"] == len(HELD)
    ensemble.save(tmp_path / "ens")
    assert {path.name for path in (tmp_path / "ens").iterdir()} == {"bothways.json", "README.md", "golden.json"}
    again = open_trained(tmp_path / "ens", device="cpu")
    assert isinstance(again, Ensemble)
    assert again.combination == ensemble.combination
    data = asked([row["text"] for row in rows(8)] + ["w5 " * 40])
    found = list(again.predict_stream(data))
    assert found == list(ensemble.predict_stream(data))
    assert found[-1].together.tokens_read.windows == 3
    plain = Ensemble.of(animals, method="mean", device="cpu")
    assert plain.temperature is None


def test_rows_without_a_label_are_left_out_of_calibration_and_evaluation(animals):
    rest = [{**HELD[0], "label": None}, *HELD[:12], {**HELD[0], "label": ""}]
    with pytest.raises(InvalidInput, match=r"row 1 .* is missing, as in 2 of 14 rows"):
        Ensemble.of(animals[:2], calibrate=rest, device="cpu")
    ensemble = Ensemble.of(animals[:2], calibrate=rest, unlabelled="drop", device="cpu")
    assert ensemble.card["calibration_rows"] == 12
    assert ensemble.temperature == Ensemble.of(animals[:2], calibrate=HELD[:12], device="cpu").temperature
    few = {"resamples": 5}
    assert ensemble.evaluate(rest, unlabelled="drop", **few) == ensemble.evaluate(HELD[:12], **few)


def test_the_training_rows_of_the_members_are_known(animals):
    new = rows(12, first=200)
    data = [*new, *rows(3)]
    with pytest.warns(RowsShared, match="3 of 15 calibration rows are training rows"):
        noted = Ensemble.of(animals[:2], calibrate=data, device="cpu")
    assert noted.card["notes"][0].startswith("3 of 15 calibration rows are training rows")
    with pytest.warns(RowsLeftOut, match="Left out 3 of 15 calibration rows"):
        ensemble = Ensemble.of(animals[:2], calibrate=data, shared="drop", device="cpu")
    assert ensemble.temperature == Ensemble.of(animals[:2], calibrate=new, device="cpu").temperature
    assert ensemble.evaluate(data, resamples=5).shared.shared == 3
    left = ensemble.evaluate(data, shared="drop", resamples=5)
    assert left.estimates == ensemble.evaluate(new, resamples=5).estimates
    member = open_trained(animals[0], device="cpu")
    with pytest.warns(RowsShared, match="3 of 3 out-of-domain rows are training rows: they are not out of domain"):
        member.fit_threshold(rows(3))


def test_a_calibrated_ensemble_promises_sets_of_labels(animals, tmp_path):
    ensemble = Ensemble.of(animals, calibrate=HELD, device="cpu")
    scored = ensemble.score(HELD)
    combined_NC, truth_N = scored.logits, scored.truth
    held_out_NC = np.empty_like(combined_NC)
    for numbers_B, stated_BC in HeldOutRows.from_arrays(combined_NC, truth_N).held_out("temperature", 0):
        held_out_NC[numbers_B] = stated_BC
    scores_N = np.sort(1 - held_out_NC[np.arange(len(HELD)), truth_N])
    threshold = scores_N[math.ceil(0.8 * (len(HELD) + 1)) - 1]
    texts = [row["text"] for row in rows(12, first=50)]
    found = ensemble.predict(texts, coverage=0.8)
    for each in found:
        expected = {name for name, value in each.together.probabilities.items() if 1 - value <= threshold}
        assert set(each.together.label_set) == expected | {each.together.label}
        assert each.to_dict()["label_set"] == list(each.together.label_set)
    assert any(len(each.together.label_set) > 1 for each in found)
    assert ensemble.predict(texts[0]).together.label_set is None
    assert ensemble.card["coverage_from_rows"] == len(HELD)
    ensemble.save(tmp_path / "ens")
    again = open_trained(tmp_path / "ens", device="cpu")
    assert list(again.predict_stream(asked(texts), coverage=0.8)) == found
    assert "conformal" not in again.fitted.facts()
    with pytest.raises(InvalidInput, match="held-out rows"):
        ensemble.predict(texts, coverage=0.999)


def test_a_calibrated_ensemble_of_numbers_promises_an_interval(runs, tmp_path):
    numbers = [{**row, "label": float(place)} for place, row in enumerate(rows(30))]
    ensemble = Ensemble.of([runs / "number-a", runs / "number-b"], calibrate=numbers, device="cpu")
    values = [each.together.value for each in ensemble.predict([row["text"] for row in numbers])]
    errors = np.sort(np.abs(np.array(values) - np.arange(30)))
    found = ensemble.predict("w5 w20", coverage=0.9).together
    half = errors[math.ceil(0.9 * 31) - 1]
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=1e-4)
    ensemble.save(tmp_path / "ens")
    assert open_trained(tmp_path / "ens", device="cpu").predict("w5 w20", coverage=0.9).together == found


def test_a_coverage_that_nothing_was_learnt_of_is_refused(runs, animals):
    several = [{**row, "label": [row["label"]]} for row in rows()]
    for ensemble in (
        Ensemble.of(animals, device="cpu"),
        Ensemble.of([runs / "several-a", runs / "several-b"], calibrate=several, device="cpu"),
    ):
        with pytest.raises(NotCalibrated, match="cannot guarantee coverage"):
            ensemble.predict("w5", coverage=0.9)


def test_the_temperature_is_that_of_the_combined_logits(animals):
    ensemble = Ensemble.of(animals, calibrate=HELD, device="cpu")
    scored = ensemble.score(HELD)
    combined_NC, truth_N = scored.logits, scored.truth
    expected = fitted_temperature(ensemble.fitted.outputs.own.target, combined_NC, truth_N)
    assert ensemble.temperature == expected
    found = probabilities(ensemble.predict_stream(asked([row["text"] for row in HELD])))
    np.testing.assert_allclose(found, apply_temperature(combined_NC, expected), rtol=0, atol=1e-6)


def test_a_report_has_the_ensemble_its_members_and_their_disagreement(animals):
    data = [*rows(9), {"text": "w5 " * 40, "label": "ant"}]
    content, found = reported(Ensemble.of(animals, calibrate=HELD, device="cpu"), animals, data, ["accuracy"])
    right = np.mean([each.together.label == row["label"] for each, row in zip(found, data, strict=True)])
    assert content["accuracy"] == pytest.approx(right)
    assert content["tokens_read"] == {"texts": 10, "in_windows": 1, "cut": 0, "dropped_tokens": 0}


def test_labels_in_another_order_are_put_in_that_of_the_first_member(runs, animals, tmp_path):
    turned(animals[0], tmp_path / "turned", [2, 0, 1])
    data = asked([row["text"] for row in rows(8)])
    both = Ensemble.of([animals[0], tmp_path / "turned"], device="cpu")
    other_first = Ensemble.of([tmp_path / "turned", animals[0]], device="cpu")
    alone = Ensemble.of([animals[0], animals[0]], device="cpu")
    expected = probabilities(alone.predict_stream(data))
    np.testing.assert_allclose(probabilities(both.predict_stream(data)), expected, atol=1e-6)
    np.testing.assert_allclose(probabilities(other_first.predict_stream(data)), expected, atol=1e-6)
    assert all(each.disagreement.differing == 0 for each in both.predict_stream(data))


def test_several_labels_numbers_and_pairs_are_combined_too(runs):
    several = Ensemble.of(
        [runs / "several-a", runs / "several-b"],
        method="stacked",
        device="cpu",
        calibrate=[{**row, "label": [row["label"]]} for row in noisy_rows(24)],
    )
    (found,) = several.predict_stream(asked(["w5 w20"]))
    assert set(found.together.probabilities) == set(LABELS)
    members = [open_trained(runs / name, device="cpu").predict("w5 w20") for name in ("several-a", "several-b")]
    stated_ML = np.array([[each.probabilities[label] for label in LABELS] for each in members])
    entropies = scipy.stats.entropy(np.stack([stated_ML, 1 - stated_ML]))  # of each member and label
    between = scipy.stats.entropy(np.stack([stated_ML.mean(0), 1 - stated_ML.mean(0)])) - entropies.mean(0)
    assert found.to_dict()["mutual_information"] == pytest.approx(between.mean(), abs=1e-6)
    number = Ensemble.of([runs / "number-a", runs / "number-b"], device="cpu")
    (found,) = number.predict_stream(asked(["w5 w20"]))
    alone = [open_trained(runs / name, device="cpu").predict("w5 w20").value for name in ("number-a", "number-b")]
    assert found.together.value == pytest.approx(np.mean(alone), abs=1e-5)
    assert found.to_dict()["deviation"] == pytest.approx(np.std(alone), abs=1e-5)
    both = Ensemble.of([runs / "pairs-a", runs / "pairs-b"], method="vote", calibrate=pairs(), device="cpu")
    assert both.evaluate(pairs(), resamples=5).n == 24
    (found,) = both.predict_stream(list(read_rows(both.fitted.columns.rows_of(("w5 w20", "w5")))))
    assert found.together.label in {"other", "same"}


@pytest.mark.parametrize(
    ("names", "row"),
    [
        (["bert-animals", "xlnet-animals"], lambda text: {"text": text}),
        (["pairs-a", "pairs-b"], lambda pair: {"text_a": pair[0], "text_b": pair[1]}),
    ],
)
def test_an_ensemble_is_asked_as_its_members_are(runs, names, row):
    ensemble = Ensemble.of([runs / name for name in names], device="cpu")
    given = ["w5 w6", "w7 w8 w9"] if "animals" in names[0] else [("w5 w6", "w5"), ("w7", "w8 w9")]
    expected = list(ensemble.predict_stream(read_rows([row(each) for each in given])))
    assert ensemble.predict(given) == expected
    assert ensemble.predict(given[0]) == ensemble.predict(given[:1])[0]
    assert ensemble.predict([]) == []


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["bert-animals", "xlnet-animals"], ["w5", " "], "text 2 is empty"),
        (["pairs-a", "pairs-b"], "w5", "a tuple of two texts, or a list of such tuples, got str"),
    ],
)
def test_what_members_do_not_read_an_ensemble_refuses(runs, names, given, said):
    with pytest.raises(InvalidInput, match=said):
        Ensemble.of([runs / name for name in names], device="cpu").predict(given)


def two_columns():
    """Rows with two texts, and the label of the first."""
    texts = zip(rows(12, first=40), rows(12, first=61), strict=True)
    return [{"title": one["text"], "body": other["text"], "label": one["label"]} for one, other in texts]


def test_each_member_reads_the_columns_of_its_own_training(runs, tmp_path):
    folders = [
        reading(runs / f"{base}-animals", tmp_path / name, text=[name], label=f"{name}_label")
        for name, base in (("title", "bert"), ("body", "distilbert"))
    ]
    given = [{**row, "title_label": row["label"]} for row in two_columns()]
    ensemble = Ensemble.of(folders, calibrate=given, device="cpu")
    members = [open_trained(folder, device="cpu") for folder in folders]
    alone = [list(member.predict_stream(read_rows(given))) for member in members]
    plain = Ensemble.of(folders, device="cpu")
    for number, each in enumerate(plain.predict_stream(read_rows(given))):
        mean = np.mean([said[number].probabilities["ant"] for said in alone])
        assert each.together.probabilities["ant"] == pytest.approx(mean, abs=1e-6)
    report = plain.evaluate(given, resamples=2).to_dict()
    right = [[said.label == row["title_label"] for said, row in zip(of, given, strict=True)] for of in alone]
    assert [each["accuracy"] for each in report["members"]] == pytest.approx(np.mean(right, axis=1))
    assert ensemble.card["calibration_rows"] == len(given)
    text = rows(1)[0]["text"]
    assert plain.fitted.columns.rows_of([text]) == [{"title": text, "body": text}]
    with pytest.raises(InvalidInput, match=r"no column 'body'.* The member .*body' was trained on that column"):
        list(plain.predict_stream(read_rows([{"title": text}])))
    plain = plain.with_columns(text=("title",))
    assert list(plain.predict_stream(read_rows([{"title": text}]))) == [plain.predict(text)]
    alike = Ensemble.of(folders, columns={"text": ("title",)}, device="cpu")
    assert list(alike.predict_stream(read_rows(given))) == list(plain.predict_stream(read_rows(given)))
    with pytest.raises(InvalidInput, match=r"have no column argument 'tokens'\. They have: text, label"):
        plain.with_columns(tokens="words")


def test_a_saved_ensemble_reads_what_it_was_calibrated_on(runs, tmp_path):
    folders = [reading(runs / "bert-animals", tmp_path / name, text=[name]) for name in ("title", "body")]
    given = two_columns()
    apart = Ensemble.of(folders, calibrate=given, device="cpu")
    alike = Ensemble.of(folders, calibrate=given, columns={"text": ("body",)}, device="cpu")
    first = Ensemble.of(folders, calibrate=given, columns={"text": ("title",)}, device="cpu")
    for name, ensemble in (("apart", apart), ("alike", alike), ("first", first)):
        ensemble.save(tmp_path / name)
        again = open_trained(tmp_path / name, device="cpu")
        assert again.fitted.columns == ensemble.fitted.columns
        assert list(again.predict_stream(read_rows(given))) == list(ensemble.predict_stream(read_rows(given)))
    path = tmp_path / "first" / "bothways.json"
    stored = json.loads(path.read_text())
    for damaged in (None, ["text"], [{"text": ["title"], "label": "label"}], [{"text": 3}, {}]):
        path.write_text(json.dumps({**stored, "columns": damaged}))
        with pytest.raises(CorruptCheckpoint, match="columns"):
            open_trained(tmp_path / "first", device="cpu")


def test_a_typed_text_is_what_every_member_reads_or_is_refused(runs, tmp_path):
    one = runs / "bert-animals"
    both = reading(one, tmp_path / "both", text=["title", "text"])
    for folders in ([one, both], [both, one]):
        ensemble = Ensemble.of(folders, device="cpu")
        with pytest.raises(InvalidInput, match=r"columns that overlap: name one column for all"):
            ensemble.fitted.columns.rows_of(["w5 w6"])
        ensemble = ensemble.with_columns(text=("text",))
        assert list(ensemble.predict_stream(read_rows(ensemble.fitted.columns.rows_of(["w5 w6"])))) == [
            ensemble.predict("w5 w6")
        ]


def test_each_member_reads_texts_in_its_own_way(runs, animals, tmp_path):
    trained(tmp_path / "short", runs / "bert", rows(), open_with={"max_length": 6, "on_overflow": "truncate"})
    ensemble = Ensemble.of([animals[0], tmp_path / "short"], device="cpu")
    (found,) = ensemble.predict_stream(asked(["w5 " * 30]))
    assert found.together.tokens_read.windows > 1
    assert found.together.tokens_read.dropped_tokens == 26


# --- on disk ---


@pytest.fixture
def saved(animals, tmp_path):
    """A saved ensemble beside copies of its members."""
    for folder in animals[:2]:
        shutil.copytree(folder, tmp_path / "all" / folder.name)
    members = [tmp_path / "all" / folder.name for folder in animals[:2]]
    Ensemble.of(members, calibrate=HELD, device="cpu").save(tmp_path / "all" / "ens")
    return tmp_path / "all" / "ens"


def test_members_are_found_when_the_folder_of_all_is_moved(saved, tmp_path):
    (tmp_path / "all").rename(tmp_path / "moved")
    assert Ensemble.from_pretrained(tmp_path / "moved" / "ens", device="cpu").members


def test_members_below_the_folder_of_the_user_are_shown_by_their_paths_from_there(animals, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    for name, folder in zip("ab", animals, strict=False):
        shutil.copytree(folder, runs / name)
    Ensemble.of([runs / "a", runs / "b"], device="cpu").save(runs / "ens")
    monkeypatch.chdir(tmp_path)
    assert Ensemble.from_pretrained("runs/ens", device="cpu").fitted.facts()["members"] == ["runs/a", "runs/b"]
    assert Ensemble.of(["runs/a", runs / "b"], device="cpu").fitted.facts()["members"] == ["runs/a", "runs/b"]
    monkeypatch.chdir(runs / "a")
    there = Ensemble.from_pretrained(runs / "ens", device="cpu")
    assert there.fitted.facts()["members"] == [".", str(runs / "b")]
    assert [name for name, _ in there.evaluate(rows(6), resamples=2).members] == [".", str(runs / "b")]


def test_a_member_that_is_gone_is_named(saved):
    (saved.parent / "distilbert-animals").rename(saved.parent / "elsewhere")
    with pytest.raises(UnknownModel, match=r"member '\.\./distilbert-animals', but its folder .* does not exist"):
        Ensemble.from_pretrained(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "bothways.json", "tokenizer.json"])
def test_a_member_that_has_changed_is_refused(saved, name):
    path = saved.parent / "distilbert-animals" / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(CorruptCheckpoint, match=r"'\.\./distilbert-animals' .* is no longer the model"):
        Ensemble.from_pretrained(saved)


@pytest.mark.parametrize("name", ["training.jsonl", "metrics.json", "notes.txt"])
def test_what_else_lies_in_a_members_folder_is_no_part_of_it(saved, name):
    (saved.parent / "distilbert-animals" / name).write_text("{}\n")
    assert Ensemble.from_pretrained(saved, device="cpu").members


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"method": "median"}, CorruptCheckpoint),
        ({"method": "stacked"}, CorruptCheckpoint),
        ({"method": "stacked", "weights": [1.0], "biases": [0.0] * 3}, CorruptCheckpoint),
        ({"members": []}, CorruptCheckpoint),
        ({"temperature": {"value": -1, "slope": 0}}, CorruptCheckpoint),
        ({"conformal": []}, CorruptCheckpoint),
        ({"format_version": 2}, UnsupportedConfig),
    ],
)
def test_a_damaged_description_is_refused(saved, change, error):
    path = saved / "bothways.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error, match=r"bothways\.json"):
        Ensemble.from_pretrained(saved, device="cpu")


# --- what does not belong together ---


@pytest.mark.parametrize(
    ("names", "options", "error", "said"),
    [
        (["bert-animals"], {}, InvalidInput, "expected 2 to 100 members, got 1"),
        (["bert-animals", "plants"], {}, InvalidInput, "lacks 'cow' and also has 'oak'"),
        (["bert-animals", "several-a"], {}, InvalidInput, r"classification \(single\) and .* classification \(multi\)"),
        (["bert-animals", "pairs-a"], {}, InvalidInput, r"classification \(single\) and .* pairs \(single\)"),
        (["pairs-a", "scores"], {}, InvalidInput, r"pairs \(single\) and .* pairs \(regression\)"),
        (["bert-animals", "nothing"], {}, InvalidInput, "'.*nothing' is not a folder"),
        (["bert-animals", "bert"], {}, NotFitted, "no trained classification head"),
        (["number-a", "number-b"], {"method": "vote"}, InvalidInput, "combined by 'mean', not by 'vote'"),
        (["bert-animals", "xlnet-animals"], {"method": "median"}, InvalidInput, "'mean', 'vote' or 'stacked'"),
        (["bert-animals", "xlnet-animals"], {"method": "stacked"}, InvalidInput, "give a calibration file"),
        (["bert-animals", "xlnet-animals"], {"method": "stacked", "calibrate": HELD[:5]}, InvalidInput, "at least 10"),
        (["bert-animals", "xlnet-animals"], {"method": "stacked", "calibrate": ALIKE}, InvalidInput, "have 'cow'"),
        (["bert-animals", "xlnet-animals"], {"calibrate": [{"text": "w5"}]}, InvalidInput, "no column 'label'"),
        (
            ["bert-animals", "xlnet-animals"],
            {"calibrate": [{"text": "w5", "label": "x"}]},
            InvalidInput,
            "labelled 'x'",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(runs, names, options, error, said):
    with pytest.raises(error, match=said):
        Ensemble.of([runs / name for name in names], device="cpu", **options)


def test_an_embedder_is_no_member(runs):
    SentenceEmbedder.from_pretrained(runs / "bert").save(runs / "embedder")
    with pytest.raises(InvalidInput, match="is a model for embedding"):
        Ensemble.of([runs / "bert-animals", runs / "embedder"], device="cpu")
