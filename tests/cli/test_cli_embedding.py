"""``train embedding`` and ``evaluate --task similarity`` from file to folder to numbers, and what else embedders do."""

import numpy as np
import pytest
from command_line import call, evaluated, fails, ok, rows, write_jsonl

from bothways.tasks import SentenceEmbedder
from contract_cases import write_embedder


def words_of(number):
    return f"w{5 + number % 40} w{10 + number % 30}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file for each kind of rows."""
    folder = tmp_path_factory.mktemp("embedding")
    scored = [
        {"text_a": words_of(each), "text_b": words_of(each + each % 3), "score": 5 - each % 3} for each in range(24)
    ]
    triplets = [
        {"anchor": words_of(each), "positive": f"w{5 + each}", "negative": f"w{6 + each}", "other": "w9"}
        for each in range(24)
    ]
    for name, made in {"scored": scored, "triplets": triplets, "labelled": rows(24, 0)}.items():
        write_jsonl(folder / f"{name}.jsonl.gz", made)
    return folder


def train(files, data, kind, output, *more):
    return call(
        *("train", "embedding", "--model", files / "tiny", "--train", data / f"{kind}.jsonl.gz", "--output", output),
        *("--epochs", 1, "--device", "cpu", *more),
    )


@pytest.fixture(scope="module")
def embedder(files, data, tmp_path_factory):
    """The folder of an embedder, trained on scored pairs as they are read by default."""
    folder = tmp_path_factory.mktemp("embedder") / "run"
    outcome = train(files, data, "scored", folder, "--json")
    assert "spearman" in outcome.json()["validation"], outcome.err
    return folder


FORMS = {
    "scored pairs": ("scored", ["--text-a", "text_a", "--text-b", "text_b", "--score", "score"], "spearman"),
    "pairs": ("triplets", ["--positive", "positive", "--symmetric", "--scale", 10], "mrr"),
    "pairs of other columns": ("scored", ["--anchor", "text_a", "--positive", "text_b"], "mrr"),
    "triplets": ("triplets", ["--negative", "negative", "--negative", "other"], "mrr"),
    "triplets by margin": ("triplets", ["--negative", "negative", "--loss", "triplet", "--margin", 0.5], "mrr"),
    "triplets by default": ("triplets", [], "mrr"),
    "labelled texts": ("labelled", ["--label", "label", "--pairs-per-text", 2], "mrr"),
    "cut vectors": ("scored", ["--matryoshka", 24, 8], "spearman"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_kind_of_rows_goes_the_whole_way(files, data, tmp_path, form):
    kind, words, metric = FORMS[form]
    trained = train(files, data, kind, tmp_path / "run", *words, "--json")
    assert trained.code == 0, trained.err
    assert metric in trained.json()["validation"]
    report = call("evaluate", tmp_path / "run", "--data", data / f"{kind}.jsonl.gz", "--json").json()
    assert metric in report
    assert report == evaluated(tmp_path / "run", data / f"{kind}.jsonl.gz")


def test_a_teacher_is_learnt_from_and_the_run_is_embedded_and_searched(files, data, tmp_path):
    run, source = tmp_path / "run", data / "labelled.jsonl.gz"
    trained = train(files, data, "labelled", run, "--teacher", files / "tiny", "--text", "text", "--matryoshka", 24, 8)
    assert trained.code == 0, trained.err
    assert "spearman_with_teacher" in trained.out
    ok("embed", run, "--data", source, "--output", tmp_path / "v.npy", "--dimensions", 8, "--quiet")
    expected = SentenceEmbedder.from_pretrained(run, device="cpu", dimensions=8).encode(
        [r["text"] for r in rows(24, 0)]
    )
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    words = ("--model", run, "--data", source, "--text", "text", "--id", "id", "--output", tmp_path / "index")
    ok("search", "build", *words)
    first = rows(24, 0)[0]
    hits = call("search", "query", tmp_path / "index", first["text"], "--top", 1, "--json").json()
    assert hits[0]["text"] == first["text"]


def test_a_batch_of_thousands_is_one_update(files, data, tmp_path):
    trained = train(files, data, "triplets", tmp_path / "run", "--positive", "positive", "--batch-size", 4096, "--json")
    assert trained.json()["updates"] == 1


def test_an_embedder_is_evaluated_without_training(files, data):
    report = call(
        *("evaluate", files / "tiny", "--data", data / "scored.jsonl.gz", "--task", "similarity", "--json"),
        *("--resamples", 50),
    ).json()
    figures_of = {f"{name}{end}" for name in ("pearson", "spearman") for end in ("", "_low", "_high")}
    assert set(report) == {"n", *figures_of, "tokens_read"}
    fails(
        1,
        "no column 'missing'",
        *("evaluate", files / "tiny", "--data", data / "triplets.jsonl.gz", "--task", "similarity"),
        *("--text-a", "anchor", "--text-b", "positive", "--score", "missing"),
    )


def test_two_typed_texts_are_compared(embedder):
    answers = call("predict", embedder, "w5 w6", "w5 w6")
    assert answers.lines() == [{"similarity": pytest.approx(1.0), "windows": 1, "dropped_tokens": 0}]
    assert answers.err == ""
    fails(2, "expected two texts to compare, got 1", "predict", embedder, "w5 w6")


def test_similarities_of_texts_that_are_cut_say_so(embedder, data):
    cutting = ("--max-length", 3, "--on-overflow", "truncate", "--quiet")
    answer = call("predict", embedder, "w5 w6", "w5 w6 w7", *cutting)
    assert answer.lines() == [{"similarity": pytest.approx(1.0), "windows": 1, "dropped_tokens": 3}]
    report = call("evaluate", embedder, "--data", data / "scored.jsonl.gz", *cutting, "--resamples", 5)
    assert "48 of 48 texts were truncated: 48 tokens were not read" in report.out.splitlines()


@pytest.mark.slow
def test_a_few_texts_make_a_classifier_above_an_embedder(tmp_path):
    run, base = tmp_path / "run", write_embedder(tmp_path / "base")
    few = write_jsonl(tmp_path / "few.jsonl", rows(48, 0))
    words = ("--model", base, "--train", few, "--output", run, "--device", "cpu")
    trained = ok("train", "classification", *words, "--learning-rate", 0.003, "--batch-size", 8)
    assert "in cross-validation" in trained.out
    test = write_jsonl(tmp_path / "test.jsonl", rows(30, 1))
    assert call("evaluate", run, "--data", test, "--json").json()["accuracy"] > 0.8
    answers = call("predict", run, "w6 w8", "w5 w7")
    assert {each["label"] for each in answers.lines()} <= {"even", "odd"}
    assert answers.err == ""  # they are calibrated


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("scored", ["--score", "score", "--label", "label"], "expected columns of one kind of rows"),
        ("scored", ["--loss", "ranking"], "the ranking loss needs pairs or triplets or labelled texts"),
        ("scored", ["--margin", 1], "the cosent loss has no setting --margin; it has --scale"),
        ("scored", ["--symmetric"], "loss has no setting --symmetric"),
        ("scored", ["--matryoshka", 24, 25], "between 1 and 24, got 25"),
        ("labelled", ["--teacher", "x", "--loss", "ranking"], "drop --loss"),
        ("labelled", ["--teacher", "x", "--score", "score"], "expected columns of one kind of rows"),
    ],
)
def test_options_that_make_no_sense_are_bad_usage(files, data, tmp_path, kind, words, said):
    outcome = train(files, data, kind, tmp_path / "run", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-size", 1], "batch_size must be at least 2"),
        (["--score", "likeness"], "no column 'likeness'"),
        (["--text-a", "text_b"], "must be in different columns"),
    ],
)
def test_what_only_the_data_show_fails_and_leaves_nothing_behind(files, data, tmp_path, words, said):
    outcome = train(files, data, "scored", tmp_path / "run", *words)
    assert outcome.code == 1
    assert said in outcome.err
    assert list(tmp_path.iterdir()) == []
