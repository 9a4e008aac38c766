"""``ensemble``, from trained runs to an answer of all of them."""

import gzip
import json

import pytest
from command_line import call, evaluated, fails, ok, saved_of


@pytest.fixture(scope="module")
def second(files, train_words, run):
    """The folder of another run on the same data."""
    folder = files / "runs-more" / "y"
    words = list(train_words)
    words[words.index("--seed") + 1] = 2
    words[words.index("--epochs") + 1] = 2
    ok(*words, "--output", folder)
    return folder


@pytest.mark.parametrize("method", ["mean", "vote", "stacked"])
def test_runs_are_combined_evaluated_and_asked(files, run, second, tmp_path, method):
    output, held, test = tmp_path / "ens", files / "validation.jsonl.gz", files / "test.jsonl.gz"
    outcome = ok("ensemble", run, second, "--method", method, "--calibrate", held, "--output", output)
    assert f"next         bothways evaluate {output}" in outcome.out
    report = call("evaluate", output, "--data", test, "--json").json()
    assert report == evaluated(output, test)
    assert [each["member"] for each in report["members"]] == [str(run), str(second)]
    assert "disagreement, mean" in call("evaluate", output, "--data", test).out
    (found,) = call("predict", output, "w6 w8 w10").lines()
    assert found.keys() >= {"label", "probability", "disagreement", "mutual_information", "windows", "dropped_tokens"}
    (covered,) = call("predict", output, "w6 w8 w10", "--coverage", 0.6).lines()
    assert covered["label"] in covered["label_set"]
    ok("predict", output, "--data", test, "--output", tmp_path / "out.csv")


def test_the_summary_as_json_names_members_method_and_calibration(files, run, second, tmp_path):
    words = ["--calibrate", files / "validation.jsonl.gz", "--output", tmp_path / "ens", "--json"]
    summary = call("ensemble", run, second, *words).json()
    stored = saved_of(tmp_path / "ens")
    assert summary["method"] == stored["method"] == "mean"
    assert summary["temperature"] == stored["temperature"]
    assert summary["labels"] == ["even", "odd"]
    assert summary["members"] == [str(run), str(second)]


def test_columns_are_named_for_all_members_alike(files, run, second, tmp_path):
    with gzip.open(files / "validation.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text("".join(json.dumps({"body": row["text"], "kind": row["label"]}) + "\n" for row in rows))
    names, output = ["--text", "body", "--label", "kind"], tmp_path / "ens"
    ok("ensemble", run, second, "--calibrate", renamed, *names, "--output", output)
    found = call("evaluate", output, "--data", renamed, "--json").json()
    names = ["--text", "text", "--label", "label"]
    expected = call("evaluate", output, "--data", files / "validation.jsonl.gz", *names, "--json").json()
    assert found["accuracy"] == expected["accuracy"]
    assert [each["accuracy"] for each in found["members"]] == [each["accuracy"] for each in expected["members"]]
    said = "the members have no column argument 'tokens'. They have: text, label"
    fails(2, said, "ensemble", run, second, "--tokens", "w", "--output", tmp_path / "other")
    fails(1, "no column 'label'", "ensemble", run, second, "--calibrate", renamed, "--output", tmp_path / "other")


def test_an_ensemble_says_that_it_is_not_calibrated(files, run, second, tmp_path):
    plain, calibrated = tmp_path / "plain", tmp_path / "calibrated"
    ok("ensemble", run, second, "--output", plain)
    words = ["--calibrate", files / "validation.jsonl.gz", "--output", calibrated]
    ok("ensemble", run, second, *words)
    said = "the probabilities of this model are not calibrated on held-out rows.\n"
    assert call("predict", plain, "w6 w8").err == said
    assert call("predict", plain, "w6 w8", "--quiet").err == ""
    assert call("predict", calibrated, "w6 w8").err == ""


def test_an_ensemble_is_refused_as_a_reranker_with_what_can_be_one(run, second, index, tmp_path):
    ok("ensemble", run, second, "--output", tmp_path / "ens")
    for folder, said in (
        (tmp_path / "ens", "is of the kind 'ensemble'. Name another, such as one member"),
        (run, "is of the kind 'classification'. Name another"),
    ):
        single = "--reranker must be a single pair model, which reads query and passage together"
        fails(2, (single, f"but '{folder}' {said}"), "search", "query", index, "w6 w8", "--reranker", folder)


def test_an_output_that_is_there_is_replaced_on_request_only_where_it_is_an_ensemble(run, second, tmp_path):
    words = ["ensemble", run, second, "--output", tmp_path / "ens"]
    ok(*words)
    assert "--overwrite" in call(*words).err
    ok(*words, "--overwrite")
    fails(1, "is not an ensemble", "ensemble", run, second, "--output", second, "--overwrite")
    assert (second / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "at least 2 models, got 1"),
        (["--method", "stacked"], "--calibrate"),
        (["--method", "median"], 'Choose from: "mean"'),
    ],
)
def test_words_that_make_no_sense_are_bad_usage(run, second, tmp_path, words, said):
    fails(2, said, "ensemble", *([run] if not words else [run, second]), *words, "--output", tmp_path / "ens")


def test_a_member_that_is_no_trained_model_is_refused(files, run, tmp_path):
    fails(1, "no trained classification head", "ensemble", run, files / "tiny", "--output", tmp_path / "ens")
    assert not (tmp_path / "ens").exists()
