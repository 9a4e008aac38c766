"""``train pairs`` and long texts, from files to predictions."""

import pytest
from command_line import call, evaluated, fails, ok, write_jsonl

from serving.hub_cases import write_reranker


def pair_rows(count, **more):
    """The second text repeats the first word of the first one, or does not."""
    made = []
    for number in range(count):
        same = number % 2
        first = f"w{5 + number % 5}"
        made.append(
            {
                "text_a": f"{first} w{20 + number % 30}",
                "text_b": first if same else f"w{12 + number % 5}",
                "label": ("other", "same")[same],
                "score": float(4 * same),
                **more,
            }
        )
    return made


@pytest.fixture(scope="module")
def pair_files(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for name, count in (("train", 64), ("validation", 16), ("test", 20)):
        write_jsonl(folder / f"{name}.jsonl.gz", pair_rows(count))
    return folder


def words(files, pair_files, output, *more):
    return [
        *("train", "pairs", "--model", files / "tiny", "--train", pair_files / "train.jsonl.gz"),
        *("--validation", pair_files / "validation.jsonl.gz", "--text-a", "text_a", "--text-b", "text_b"),
        *("--output", output, "--epochs", 2, "--learning-rate", 0.003, "--device", "cpu", *more),
    ]


@pytest.fixture(scope="module")
def labelled(files, pair_files, tmp_path_factory):
    """The folder of a model of labelled pairs."""
    folder = tmp_path_factory.mktemp("labelled") / "run"
    ok(*words(files, pair_files, folder, "--label", "label"))
    return folder


@pytest.mark.parametrize("option", ["--label", "--score"])
def test_pairs_go_the_whole_way(files, pair_files, labelled, tmp_path, option):
    run, metrics = labelled, {"accuracy", "macro_f1"}
    if option == "--score":
        run, metrics = tmp_path / "run", {"pearson", "spearman"}
        ok(*words(files, pair_files, run, "--score", "score"))
    report = call("evaluate", run, "--data", pair_files / "test.jsonl.gz", "--json").json()
    assert metrics <= report.keys()
    assert report == evaluated(run, pair_files / "test.jsonl.gz")
    assert report["tokens_read"] == {"texts": 20, "in_windows": 0, "cut": 0, "dropped_tokens": 0}
    typed = ok("predict", run, "w5 w20", "w5")
    from_file = call("predict", run, "--data", pair_files / "test.jsonl.gz").lines()
    assert len(from_file) == 20
    assert from_file[0].keys() == typed.lines()[0].keys()


def test_a_ranking_counts_pairs_that_are_cut(labelled, tmp_path):
    rows = [{"text_a": "w5", "text_b": f"w{6 + each} " * 9, "label": ("other", "same")[each % 2]} for each in range(4)]
    data = write_jsonl(tmp_path / "candidates.jsonl", rows)
    asked = ("evaluate", labelled, "--data", data, "--task", "ranking", "--relevant", "same", "--quiet")
    cut = call(*asked, "--max-length", 8, "--on-overflow", "truncate")
    assert (cut.code, cut.err) == (0, "")
    assert cut.out.splitlines()[-1] == "4 of 4 texts were truncated: 20 tokens were not read"
    given = call(*asked, "--max-length", 8, "--on-overflow", "truncate", "--json").json()
    assert given["tokens_read"] == {"texts": 4, "in_windows": 0, "cut": 4, "dropped_tokens": 20}


@pytest.mark.parametrize("texts", [["w5"], ["w5", "w6", "w7"]])
def test_a_model_of_pairs_is_asked_with_two_texts(pair_files, labelled, texts):
    said = f"expected two texts, the first text and the second text, got {len(texts)}"
    fails(2, said, "predict", labelled, *texts)
    assert call("evaluate", labelled, "--data", pair_files / "test.jsonl.gz", "--text", "text_a").code == 2


@pytest.mark.parametrize("more", [["--score", "score", "--label", "label"], ["--score", "score", "--target", "multi"]])
def test_a_score_goes_with_no_label(files, pair_files, tmp_path, more):
    fails(2, "--score predicts a number", *words(files, pair_files, tmp_path / "run", *more))


def test_a_pair_with_one_side_missing_is_refused_with_its_line(files, tmp_path):
    data = write_jsonl(tmp_path / "data.jsonl", [*pair_rows(4), {"text_a": "w5", "label": "same"}])
    words = ("train", "pairs", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run")
    fails(1, ("line 5", "no column 'text_b'"), *words)


# --- long texts ---


def long_rows(count):
    return [
        {"text": f"w{5 + number % 2} " * (3 if number % 3 else 40), "label": ("odd", "even")[number % 2]}
        for number in range(count)
    ]


@pytest.mark.parametrize("merge", ["mean", "first"])
def test_a_way_to_merge_windows_is_kept_with_the_run(files, tmp_path, merge):
    data = write_jsonl(tmp_path / "data.jsonl", long_rows(18))
    ok(
        *("train", "classification", "--model", files / "tiny", "--train", data, "--validation", data),
        *("--output", tmp_path / "run", "--epochs", 1, "--merge", merge, "--stride", 2, "--device", "cpu"),
    )
    report = call("evaluate", tmp_path / "run", "--data", data, "--json").json()
    assert report["tokens_read"] == {"texts": 18, "in_windows": 6, "cut": 0, "dropped_tokens": 0}
    said = call("evaluate", tmp_path / "run", "--data", data).out
    assert "6 of 18 texts were read in several windows" in said
    (long,) = call("predict", tmp_path / "run", "w5 " * 40).lines()
    # Windows of 16 tokens that share 2.
    assert long["windows"] == 3
    cut = call("evaluate", tmp_path / "run", "--data", data, "--on-overflow", "truncate")
    assert "6 of 18 texts were truncated: 144 tokens were not read" in cut.out


def test_pairs_without_a_label_are_refused_or_dropped_in_all_data(files, labelled, tmp_path):
    rows = pair_rows(16)
    for name, label in (("train", "-"), ("validation", ""), ("test", None)):
        write_jsonl(tmp_path / f"{name}.jsonl", [*rows, *pair_rows(3, label=label)])
    data = {name: tmp_path / f"{name}.jsonl" for name in ("train", "validation", "test")}
    good = write_jsonl(tmp_path / "good.jsonl", rows)
    base = ["train", "pairs", "--model", files / "tiny", "--output", tmp_path / "run", "--epochs", 1, "--device", "cpu"]
    said = ("line 17 of", "missing, as in 3 of 19 rows, got '-'", "--unlabelled drop")
    fails(1, said, *base, "--train", data["train"])
    fails(1, ("line 17 of", "got ''"), *base, "--train", good, "--validation", data["validation"])
    fails(1, ("line 17 of", "got null"), "evaluate", labelled, "--data", data["test"])
    drop = ("--unlabelled", "drop")
    made = ok(*base, "--train", data["train"], "--validation", data["validation"], *drop, "--json").json()
    assert made
    assert ok("evaluate", labelled, "--data", data["test"], *drop, "--json").json()["n"] == 16
    fails(2, "unlabelled", "evaluate", labelled, "--data", data["test"], "--unlabelled", "skip")


def test_a_reranker_of_another_program_reads_pairs_unless_it_is_told_otherwise(tmp_path):
    folder = write_reranker(tmp_path / "theirs")
    pair, text = call("predict", folder, "w5", "w6").json(), call("predict", folder, "w5", "--task", "classification")
    assert pair["value"] != text.json()["value"]
    fails(2, "expected name=task", "serve", folder, "--task", "pairs")
