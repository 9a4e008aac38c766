"""``bothways judge``, from triples to a ranking."""

import random
import shutil

import pytest
from command_line import call, fails, ok, read_jsonl, saved_of, write_jsonl

LABEL = "context_relevance"


def triples(count, seed, rate=0.5):
    generator, made = random.Random(seed), []
    for number in range(count):
        good = int(generator.random() < rate)
        word, other = f"w{5 + number % 5}", f"w{12 + number % 5}"
        first = word if good else other
        made.append(
            {"id": f"s{seed}-{number}", "query": f"{word} q{number}", "passage": f"{first} p{number}", LABEL: good}
        )
    return made


@pytest.fixture(scope="module")
def judged(files, tmp_path_factory):
    """A folder with a judge, answers of two systems and labels."""
    folder = tmp_path_factory.mktemp("judging")
    write_jsonl(folder / "triples.jsonl", triples(60, 0))
    gold = []
    for seed, name in enumerate("AB", start=1):
        rows = triples(60, seed, 0.5 + 0.2 * (name == "A"))
        gold += rows[:40]
        write_jsonl(folder / f"{name}.jsonl", [{key: row[key] for key in row if key != LABEL} for row in rows])
        write_jsonl(folder / f"gold_{name}.jsonl", rows[:40])
        write_jsonl(folder / f"ids_{name}.jsonl", [{key: row[key] for key in ("id", LABEL)} for row in rows[:40]])
    write_jsonl(folder / "gold.jsonl", gold)
    trained = ok(
        *("judge", "train", "--model", files / "tiny", "--train", folder / "triples.jsonl", "--dimension", LABEL),
        *("--output", folder / "judge", "--epochs", 1, "--learning-rate", 3e-3, "--device", "cpu", "--json"),
    )
    assert trained.json()["dimension"] == LABEL
    return folder


def test_a_score_has_every_interval(judged, tmp_path):
    words = ("judge", "score", judged / "judge", "--data", judged / "A.jsonl", "--labels", judged / "gold_A.jsonl")
    found = ok(*words, "--json", "--report", tmp_path / "page.html")
    score = found.json()
    assert score["estimates"].keys() == {"ppi++", "ppi", "classical"}
    assert (score["system"], score["rows"], score["labels"]) == ("A", 60, 40)
    assert "What was assumed" in (tmp_path / "page.html").read_text()
    shown = ok(*words, "--quiet")
    assert "classical" in shown.out
    assert "60 rows of A; labels: 40 of 60 rows" in shown.out


def test_labelled_rows_of_their_own_are_judged_and_said_to_be(judged, tmp_path):
    words = ("judge", "score", judged / "judge", "--data", judged / "A.jsonl", "--labels", judged / "gold_B.jsonl")
    score = ok(*words, "--json", "--report", tmp_path / "page.html").json()
    assert (score["rows"], score["labels"], score["labels_not_among_rows"]) == (60, 40, 40)
    assert "40, 40 of them not among the 60 rows" in (tmp_path / "page.html").read_text()
    shown = ok(*words)
    assert "60 rows of A; labels: 40, 40 of them not among the 60 rows" in shown.out
    assert "40 of 40 labelled rows are not among the data: the judge read their own texts" in shown.err


def test_files_of_any_name_are_read_in_a_given_format(judged, tmp_path):
    for name in ("A", "gold_A"):
        (tmp_path / name).write_bytes((judged / f"{name}.jsonl").read_bytes())
    words = ("--judge", judged / "judge", "--labels", tmp_path / "gold_A", "--format", "jsonl", "--json")
    (ranked,) = ok("judge", "rank", tmp_path / "A", *words).json()["systems"]
    score = ok("judge", "score", judged / "judge", "--data", tmp_path / "A", *words[2:]).json()
    assert ranked["estimates"] == score["estimates"]


def test_a_ranking_has_every_system_and_writes_rows_to_label(judged, tmp_path):
    words = (
        *("judge", "rank", judged / "A.jsonl", judged / "B.jsonl", "--judge", judged / "judge"),
        *("--labels", judged / "gold.jsonl"),
    )
    write_jsonl(tmp_path / "truth.jsonl", [{"system": "A", "value": 0.7}, {"system": "B", "value": 0.5}])
    found = ok(
        *(*words, "--json", "--next", tmp_path / "next.jsonl", "--next-rows", 6, "--truth", tmp_path / "truth.jsonl"),
        *("--report", tmp_path / "page.html"),
    )
    ranking = found.json()
    assert {each["system"] for each in ranking["systems"]} == {"A", "B"}
    assert ranking["kendall_tau"] in (-1, 1)
    assert ranking["separation"]["labels"] == ranking["labels_to_separate_first_two"]
    rows = read_jsonl(tmp_path / "next.jsonl")
    assert len(rows) == 6
    assert rows[0].keys() >= {"id", "system", "query", "passage"}
    assert "Certainty of the order" in (tmp_path / "page.html").read_text()
    shown = ok(*words, "--quiet")
    assert "better than" in shown.out


def test_a_judge_is_compared_with_labels(judged):
    found = ok("judge", "evaluate", judged / "judge", "--data", judged / "gold.jsonl", "--json")
    assert {"accuracy", "auroc", "ece", "disagreements"} <= found.json().keys()
    words = ("judge", "evaluate", judged / "judge", "--data", judged / "gold.jsonl")
    assert "look at" in ok(*words).err
    assert ok(*words, "--quiet").err == ""
    as_pairs = call("evaluate", judged / "judge", "--data", judged / "gold.jsonl", "--json")
    assert as_pairs.json()["accuracy"] == found.json()["accuracy"]


def test_its_own_training_rows_are_counted_or_left_out_of_an_evaluation(judged):
    words = (judged / "judge", "--data", judged / "triples.jsonl", "--json")
    found = ok("judge", "evaluate", *words).json()
    assert found["training_rows"]["shared"] > 50
    assert found["training_rows"] == ok("evaluate", *words).json()["training_rows"]
    dropped = ok("judge", "evaluate", *words, "--shared", "drop").json()
    assert dropped["n"] == 60 - found["training_rows"]["shared"]


def test_a_resumed_training_of_several_judges_repeats_no_finished_one(files, judged, tmp_path):
    shutil.copytree(judged / "judge", tmp_path / "all" / LABEL)
    before = (tmp_path / "all" / LABEL / "bothways.json").read_bytes()
    rows = [{**row, "answer": row["passage"], "answer_relevance": row[LABEL]} for row in triples(60, 0)]
    words = (
        *("judge", "train", "--model", files / "tiny", "--train", write_jsonl(tmp_path / "t.jsonl", rows)),
        *("--dimension", LABEL, "--dimension", "answer_relevance", "--output", tmp_path / "all", "--epochs", 1),
    )
    fails(1, "already exists", *words)
    assert f"The judge of {LABEL} had already been trained" in ok(*words, "--resume").err
    assert (tmp_path / "all" / LABEL / "bothways.json").read_bytes() == before
    assert saved_of(tmp_path / "all" / "answer_relevance")["card"]["judge"]["dimension"] == "answer_relevance"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--labels", "ids_B.jsonl"), 1, "40 of 40 do neither: id 's2-0'"),
        ((), 1, "expected human labels, got no file of labels"),
        (("--labels", "gold_A.jsonl", "--dimension", "answer_relevance"), 1, "which judges context_relevance"),
        (("--labels", "gold_A.jsonl", "--level", 2), 2, "--level"),
        (("--labels", "gold_A.jsonl", "--context-relevance", "nothing"), 1, "in the column 'nothing'"),
    ],
)
def test_what_cannot_be_scored_is_said(judged, words, code, said):
    words = [judged / word if str(word).endswith(".jsonl") else word for word in words]
    fails(code, said, "judge", "score", judged / "judge", "--data", judged / "A.jsonl", *words)


def test_a_ranking_needs_files_that_differ(judged):
    for words, said in (((), "nothing to rank"), ((judged / "A.jsonl", judged / "A.jsonl"), "got one twice")):
        fails(2, said, "judge", "rank", *words, "--judge", judged / "judge", "--labels", judged / "gold.jsonl")
