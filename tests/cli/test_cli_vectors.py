"""How embedders read texts and cut vectors: as they were saved, or as the options of a command say."""

import json

import numpy as np
import pytest
from command_line import call, ok, saved_of, write_jsonl

from bothways.tasks import SentenceEmbedder

LONG = [{"text": " ".join(f"w{5 + (start + each) % 40}" for each in range(30))} for start in range(3)]
SHORT_SIGHTED = {"max_length": 6, "on_overflow": "truncate", "stride": 1}
CUT = ["--dimensions", 2]


def words_of(number):
    return f"w{5 + number % 40} w{10 + number % 30}"


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Scored pairs."""
    made = [
        {"text_a": words_of(each), "text_b": words_of(each + each % 3), "score": 5 - each % 3} for each in range(24)
    ]
    return write_jsonl(tmp_path_factory.mktemp("vectors") / "scored.jsonl", made)


def train(files, scored, output, *more):
    return call(
        *("train", "embedding", "--model", files / "tiny", "--train", scored, "--output", output),
        *("--epochs", 1, "--device", "cpu", *more),
    )


@pytest.fixture(scope="module")
def embedder(files, scored, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(files, scored, folder).code == 0
    return folder


def figures(*words):
    outcome = ok("evaluate", *words, "--json", "--resamples", 20, "--device", "cpu")
    return outcome.json()


@pytest.fixture(scope="module")
def short_sighted(files, tmp_path_factory):
    """An embedder that was saved with a reading of its own, and texts that are too long for it."""
    folder = tmp_path_factory.mktemp("reading")
    SentenceEmbedder.from_pretrained(files / "tiny", device="cpu", **SHORT_SIGHTED).save(folder / "run")
    return folder / "run", write_jsonl(folder / "long.jsonl", LONG)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--on-overflow", "window"], {"on_overflow": "window"}),
        (["--on-overflow", "window", "--stride", 0], {"on_overflow": "window", "stride": 0}),
    ],
)
def test_an_embedder_reads_as_it_was_saved_unless_something_else_is_said(short_sighted, tmp_path, words, options):
    run, data = short_sighted
    opened = SentenceEmbedder.from_pretrained(run, device="cpu", **options)
    ok("embed", run, "--data", data, "--output", tmp_path / "v.npy", "--device", "cpu", "--quiet", *words)
    texts = [row["text"] for row in LONG]
    expected, saved = (each.encode(texts) for each in (opened, SentenceEmbedder.from_pretrained(run, device="cpu")))
    assert np.allclose(expected, saved, atol=1e-4) is (not options)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    ok("search", "build", "--model", run, "--data", data, "--output", tmp_path / "index", *words)
    reading = json.loads((tmp_path / "index" / "index.json").read_text())["encoder"]["reading"]
    assert reading == {**SHORT_SIGHTED, **options}


def test_an_embedder_that_says_nothing_reads_in_windows_and_is_trained_as_it_reads(files, scored, embedder, tmp_path):
    assert train(files, scored, tmp_path / "run", "--on-overflow", "error", "--stride", 2).code == 0
    read = [saved_of(each) for each in (embedder, tmp_path / "run")]
    assert [(each["on_overflow"], each["stride"]) for each in read] == [("window", None), ("error", 2)]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--dimensions", 4], {"dimensions": 4}),
        (["--pooling", "cls"], {"pooling": "cls"}),
        (["--pooling", "max", "--dimensions", 8], {"pooling": "max", "dimensions": 8}),
    ],
)
def test_vectors_are_evaluated_as_they_would_be_used(files, scored, embedder, words, options):
    for model, task in ((embedder, []), (files / "tiny", ["--task", "similarity"])):
        said = figures(model, "--data", scored, *task, *words)
        opened = SentenceEmbedder.from_pretrained(model, device="cpu", **options)
        assert said == opened.evaluate(scored, resamples=20, show_progress=False).to_dict()
        assert said["spearman"] != figures(model, "--data", scored, *task)["spearman"]


def test_vectors_that_rank_or_are_compared_are_cut_as_well(files, scored, tmp_path):
    candidates = [
        {"text_a": f"w{5 + number // 4}", "text_b": words_of(3 * number), "label": int(number % 4 == 0)}
        for number in range(40)
    ]
    source = write_jsonl(tmp_path / "candidates.jsonl", candidates)
    whole, cut = (figures(files / "tiny", "--data", source, "--task", "ranking", *more) for more in ([], CUT))
    assert (whole["ranked_by"], whole["ndcg@10"] == cut["ndcg@10"]) == ("cosine", False)
    words = ("compare", files / "tiny", files / "tiny", "--task", "similarity", "--data", scored)
    compared = call(*words, *CUT, "--json", "--resamples", 20, "--device", "cpu").json()
    alone = figures(files / "tiny", "--data", scored, "--task", "similarity", *CUT)
    assert compared["spearman_a"] == pytest.approx(alone["spearman"])
