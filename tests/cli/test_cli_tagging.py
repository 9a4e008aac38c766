"""``train tagging``, ``evaluate`` and ``predict``, from files of tagged words to spans."""

import csv
import gzip

import pytest
from command_line import call, evaluated, fails, ok, saved_of, write_jsonl

import tiny_models
from bothways.data import read_rows
from bothways.evaluation.tag_schemes import converted


def rows(count, first=0):
    """w5 begins a person and w6 goes on with it; all else is outside."""
    made = []
    for number in range(first, first + count):
        words = [
            f"w{20 + number % 9}",
            "w5",
            *["w6"] * (number % 3),
            *(f"w{30 + number % 7}" for _ in range(number % 4)),
        ]
        words = words[number % 2 :]
        tags = [{"w5": "B-PER", "w6": "I-PER"}.get(word, "O") for word in words]
        made.append({"id": f"r{number}", "tokens": words, "tags": tags})
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagged")
    tiny_models.write_checkpoint(folder / "tiny")
    tiny_models.edit_config(folder / "tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_jsonl(folder / "t.jsonl.gz", rows(80))
    write_jsonl(folder / "v.jsonl.gz", rows(12, 240))
    return folder


@pytest.fixture(scope="module")
def trained(data):
    """How the training ended, with the words that the manual gives."""
    return call(
        *("train", "tagging", "--model", data / "tiny", "--train", data / "t.jsonl.gz"),
        *("--validation", data / "v.jsonl.gz", "--tokens", "tokens", "--tags", "tags", "--output", data / "ner"),
        *("--seed", 1, "--epochs", 10, "--learning-rate", 0.003, "--batch-size", 8, "--device", "cpu", "--json"),
    )


@pytest.fixture(scope="module")
def run(data, trained):
    assert trained.code == 0, trained.err
    return data / "ner"


def test_training_says_what_it_learnt(trained, run):
    summary = trained.json()
    assert summary["labels"] == ["O", "B-PER", "I-PER"]
    assert summary["scheme"] == "BIO"
    assert summary["validation"]["span_f1"] > 0.9
    assert {"accuracy", "span_f1"} == set(summary["validation"]) == set(summary["baseline"])


def test_evaluation_gives_span_f1_with_its_interval(run, data):
    report = call("evaluate", run, "--data", data / "v.jsonl.gz", "--json").json()
    assert report["span_f1"] > 0.9
    assert report == evaluated(run, data / "v.jsonl.gz")
    assert report["per_class"]["PER"]["support"] == 12
    assert "span_f1" in call("evaluate", run, "--data", data / "v.jsonl.gz").out


def test_a_raw_text_of_the_command_line_is_tagged(run):
    [answer] = call("predict", run, "w20 w5 w6, w30").lines()
    assert answer["text"] == "w20 w5 w6, w30"
    [span] = answer["spans"]
    assert (span["text"], span["start"], span["end"], span["label"]) == ("w5 w6", 4, 9, "PER")
    assert [word["text"] for word in answer["words"]] == ["w20", "w5", "w6", ",", "w30"]


def test_rows_of_words_or_of_texts_are_tagged(run, data, tmp_path):
    mixed = [{"id": "a", "tokens": ["w20", "w5"]}, {"id": "b", "text": "w5 w20"}]
    answers = call("predict", run, "--data", write_jsonl(tmp_path / "x.jsonl", mixed)).lines()
    assert [(answer["id"], answer["spans"][0]["words"][0]) for answer in answers] == [("a", 1), ("b", 0)]
    ok("predict", run, "--data", data / "v.jsonl.gz", "--output", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 12


def test_conll_files_and_other_columns_are_read(files, run, data, tmp_path):
    lines = [
        f"{word} {tag}" for row in rows(8) for word, tag in [*zip(row["tokens"], row["tags"], strict=True), ("", "")]
    ]
    path = tmp_path / "t.conll.gz"
    path.write_bytes(gzip.compress("\n".join(line.strip() for line in lines).encode()))
    report = call("evaluate", run, "--data", path, "--json").json()
    assert report["n"] == 8
    renamed = [{"words": row["tokens"], "ner": row["tags"]} for row in rows(8)]
    other = write_jsonl(tmp_path / "t.jsonl", renamed)
    again = call("evaluate", run, "--data", other, "--tokens", "words", "--tags", "ner", "--json").json()
    assert again == report
    words = ("train", "tagging", "--model", files / "tiny", "--train", other, "--tokens", "words", "--tags", "ner")
    ok(*words, "--epochs", 1, "--output", tmp_path / "run")
    saved = saved_of(tmp_path / "run")
    assert saved["card"]["columns"] == {"tokens": "words", "tags": "ner", "text": ["text"]}


@pytest.mark.parametrize("scheme", [None, "BIOES", "BILOU", "IOB1"])
def test_words_and_tags_are_written_as_conll_in_any_scheme(run, data, tmp_path, scheme):
    path = tmp_path / "out.conll"
    chosen = [] if scheme is None else ["--scheme", scheme]
    ok("predict", run, "--data", data / "v.jsonl.gz", "--output", path, *chosen)
    again = [row.values for row in read_rows(path)]
    lines = call("predict", run, "--data", data / "v.jsonl.gz", *chosen).lines()
    assert [row["tokens"] for row in again] == [[word["text"] for word in line["words"]] for line in lines]
    assert [row["tags"] for row in again] == [[word["tag"] for word in line["words"]] for line in lines]
    plain = [row["tags"] for row in rows(12, 240)]
    assert [row["tags"] for row in again] == [converted(tags, "BIO", scheme or "BIO") for tags in plain]
    # A word and its tag a line, an empty line between texts.
    assert path.read_text().split("\n\n")[1].splitlines()[-1].count("\t") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "x.conll", "--on-empty", "null"], "a .conll file cannot hold null"),
        (["--output", "x.conll", "--keep"], "drop --keep"),
        (["--scheme", "plain"], 'Choose from: "BIO"'),
    ],
)
def test_a_form_that_tags_do_not_have_is_refused_before_anything_is_read(run, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    fails(2, said, "predict", run, "--data", "nothing.jsonl", *words)
    assert not list(tmp_path.iterdir())


def test_a_word_that_does_not_fit_on_a_line_is_refused(run, tmp_path):
    given = write_jsonl(tmp_path / "x.jsonl", [{"tokens": ["w5", "w6\tw7"]}])
    fails(1, "row 1 cannot be written", "predict", run, "--data", given, "--output", tmp_path / "x.conll")
    assert not (tmp_path / "x.conll").exists()


def test_columns_of_other_tasks_are_refused(run, data):
    fails(2, "--tokens, --tags, --text", "evaluate", run, "--data", data / "v.jsonl.gz", "--label", "x")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([{"tokens": ["w5"], "tags": ["O", "O"]}], "line 1 of"),
        ([{"tokens": ["w5", "w6"], "tags": ["B-X", "O"]}], "held out of 1 row: give at least two rows, or"),
        (
            [{"tokens": ["w5"], "tags": ["X"]}, {"tokens": ["w5"], "tags": ["Y"]}],
            "at least two rows with the same tag, or",
        ),
        ([{"tokens": ["w5"], "tags": ["B-X"]}, {"tokens": ["w5"], "tags": ["Z-X"]}], "fit none of the schemes"),
        ([{"tokens": ["w5", "w6"], "tags": ["O", "I-X"]}, {"tokens": ["w5"], "tags": ["B-X"]}], "does not allow there"),
    ],
)
def test_unusable_data_are_named_and_leave_nothing_behind(files, tmp_path, made, said):
    path = write_jsonl(tmp_path / "x.jsonl", made)
    fails(1, said, "train", "tagging", "--model", files / "tiny", "--train", path, "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tags_that_are_almost_those_of_spans_are_learnt_as_plain_ones_on_request_alone(data, tmp_path):
    odd = [{**row, "tags": [tag.lower() for tag in row["tags"]]} for row in rows(20)]
    train = ("train", "tagging", "--model", data / "tiny", "--train", write_jsonl(tmp_path / "t.jsonl", odd))
    train += ("--output", tmp_path / "out", "--epochs", 1, "--device", "cpu", "--json")
    fails(1, ("has the tag 'b-per'", "--scheme plain"), *train)
    assert call(*train, "--scheme", "plain").json()["scheme"] == "plain"


def test_help_shows_a_row_of_the_data():
    out = call("train", "tagging", "--help").out
    assert '"tags": ["B-PER", "I-PER", "O"]' in out


def test_taggers_are_combined_evaluated_and_asked(data, run, tmp_path):
    second = tmp_path / "second"
    words = ("train", "tagging", "--model", data / "tiny", "--train", data / "v.jsonl.gz", "--output", second)
    ok(*words, "--epochs", 2, "--seed", 2, "--device", "cpu")
    made = call("ensemble", run, second, "--calibrate", data / "v.jsonl.gz", "--output", tmp_path / "ens", "--json")
    assert made.json()["labels"] == ["O", "B-PER", "I-PER"]
    assert made.json()["scheme"] == "BIO"
    report = call("evaluate", tmp_path / "ens", "--data", data / "v.jsonl.gz", "--json").json()
    assert report == evaluated(tmp_path / "ens", data / "v.jsonl.gz")
    assert [each["member"] for each in report["members"]] == [str(run), str(second)]
    assert report["members"][0]["span_f1"] > 0.9
    [answer] = call("predict", tmp_path / "ens", "w20 w5 w6, w30").lines()
    assert answer.keys() >= {"spans", "words", "disagreement", "mutual_information", "windows"}
    output = tmp_path / "out.jsonl"
    ok("predict", tmp_path / "ens", "--data", data / "v.jsonl.gz", "--output", output)
    assert len(output.read_text().splitlines()) == 12
    tagged = tmp_path / "ens.conll"
    words = ("predict", tmp_path / "ens", "--data", data / "v.jsonl.gz", "--output", tagged, "--scheme", "BIOES")
    ok(*words)
    assert "\tS-PER\n" in tagged.read_text()
    assert "1 span of 1 prediction in" in call("predict", tmp_path / "ens", "w5", "--output", tmp_path / "x.csv").err


def test_a_table_has_a_row_for_each_span_with_the_number_and_the_id_of_its_text(run, tmp_path):
    made = [{"id": "a", "text": "w20 w5 w6 w30 w5"}, {"id": "b", "text": "w20"}, {"id": "c", "text": " "}]
    made = [*made, {"id": "d", "text": "w5"}]
    texts, output = write_jsonl(tmp_path / "d.jsonl", made), tmp_path / "x.csv"
    outcome = ok("predict", run, "--data", texts, "--output", output, "--on-empty", "skip")
    assert "1 row without a text: left out." in outcome.err
    spans = [
        {"id": line["id"], "row": str(number), **{name: str(value) for name, value in span.items()}}
        for number, line in zip(
            (1, 2, 4), call("predict", run, "--data", texts, "--on-empty", "skip").lines(), strict=True
        )
        for span in line["spans"]
    ]
    with output.open(newline="") as stream:
        assert list(csv.DictReader(stream)) == spans
    assert {span["id"] for span in spans} >= {"a", "d"}
