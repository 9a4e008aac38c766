"""``bothways distill``: from a teacher and a text file to a student."""

import gzip
import random

import pytest
from command_line import call, fails, ok, write_jsonl

import tiny_models
from bothways.tasks import SentenceEmbedder, TextClassifier


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Texts, a sentence embedder and a bare encoder."""
    folder, draw = tmp_path_factory.mktemp("distilling"), random.Random(0)
    texts = (" ".join(f"w{draw.randrange(5, 60)}" for _ in range(draw.randint(4, 30))) for _ in range(80))
    (folder / "texts.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    (folder / "empty.txt").write_text("\n\n")
    tiny_models.write_checkpoint(folder / "plain")
    tiny_models.write_tokenizer(folder / "plain", "bert")
    SentenceEmbedder.from_pretrained(folder / "plain", device="cpu", pooling="max").save(folder / "embedder")
    return folder


def words_of(made, output, *more, teacher="embedder", data="texts.txt.gz"):
    return [
        *("distill", "--teacher", made / teacher, "--data", made / data, "--output", output, "--device", "cpu"),
        *("--updates", 10, "--batch-size", 8, "--seed", 1, *more),
    ]


def test_an_embedder_becomes_a_smaller_one(made, tmp_path):
    outcome = ok(*words_of(made, tmp_path / "run", "--layers", 2))
    assert "trained      10 updates" in outcome.out
    assert "layers       2 of 3" in outcome.out
    assert f"next         bothways search build --model {tmp_path / 'run'}" in outcome.out
    assert "spearman_with_teacher" in outcome.out
    data = ("--data", made / "texts.txt.gz", "--on-empty", "skip", "--output", tmp_path / "vectors.npy")
    ok("embed", tmp_path / "run", *data)
    assert SentenceEmbedder.from_pretrained(tmp_path / "run", device="cpu").fitted.settings.pooling == "max"
    assert not (tmp_path / "run.checkpoints").exists()


def test_another_encoder_is_trained_for_a_task_next(made, tmp_path):
    outcome = call(*words_of(made, tmp_path / "run", "--quiet", teacher="plain"))
    assert (outcome.code, outcome.err) == (0, "")
    assert "layers       2 of 3" in outcome.out  # half of them, rounded up
    assert f"next         bothways train classification --model {tmp_path / 'run'}" in outcome.out


def test_the_summary_is_one_object_and_a_finished_run_is_kept(made, tmp_path):
    summary = call(*words_of(made, tmp_path / "run", "--json", "--quiet")).json()
    assert (summary["layers"], summary["updates"]) == ("2 of 3", 10)
    assert summary["validation"]["loss"] <= summary["baseline"]["loss"]
    fails(1, "--overwrite", *words_of(made, tmp_path / "run"))
    ok(*words_of(made, tmp_path / "run", "--overwrite", "--quiet"))


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--layers", 9), 1, "`layers` must be from 1 to 3, the number of the teacher's layers, got 9"),
        (("--length", 300), 1, "`length` must be from 1 to 18 tokens"),
        (("--dtype", "bfloat16"), 2, "a student is trained in float32"),
        (("--layers", 0), 2, "layers"),
    ],
)
def test_impossible_options_are_refused(made, tmp_path, more, code, said):
    fails(code, said, *words_of(made, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_an_unknown_teacher_and_an_empty_corpus_are_refused(made, tmp_path):
    outcome = fails(1, "nothing", *words_of(made, tmp_path / "run", teacher="nothing"))
    outcome = call(*words_of(made, tmp_path / "run", data="empty.txt"))
    assert outcome.code == 1
    assert "no text" in outcome.err or "is empty" in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def classifier(made):
    """A classifier, labelled rows, and the same without labels."""
    labelled = [{"text": f"w{5 + number % 2} w{20 + number}", "label": "ab"[number % 2]} for number in range(40)]
    write_jsonl(made / "labelled.jsonl", labelled)
    write_jsonl(made / "texts.jsonl", [{"body": row["text"]} for row in labelled] + [{"body": " "}])
    model = TextClassifier.from_pretrained(made / "plain", device="cpu")
    model.fit(labelled, validation=labelled, epochs=3, show_progress=False)
    model.save(made / "classifier")
    return made


def test_a_classifier_becomes_a_smaller_one(classifier, tmp_path):
    labelled = classifier / "labelled.jsonl"
    data = {"teacher": "classifier", "data": "texts.txt.gz"}
    outcome = ok(*words_of(classifier, tmp_path / "run", "--layers", 2, "--validation", labelled, **data))
    assert "layers       2 of 3" in outcome.out
    assert "copied layers" in outcome.out
    assert "calibration  " in outcome.out
    assert (
        f"next         bothways evaluate {tmp_path / 'run'} --data test.jsonl  # your labelled test rows" in outcome.out
    )
    said = call("predict", tmp_path / "run", "w5 w20", "--coverage", 0.8)
    assert said.json()["label"] in "ab"
    assert call("evaluate", tmp_path / "run", "--data", labelled, "--json").json()["n"] == 40


def test_a_classifier_without_labelled_rows_says_what_is_not_calibrated(classifier, tmp_path):
    data = {"teacher": "classifier", "data": "texts.jsonl"}
    outcome = ok(*words_of(classifier, tmp_path / "run", "--text", "body", **data))
    assert "nothing was calibrated" in outcome.out
    said = call("predict", tmp_path / "run", "w5 w20")
    assert "not calibrated on held-out rows" in said.err
    fails(1, "'text'", *words_of(classifier, tmp_path / "other", **data))


@pytest.mark.parametrize("more", [("--validation", "labelled.jsonl"), ("--text-a", "first")])
def test_options_of_tasks_are_refused_for_encoders(classifier, tmp_path, more):
    fails(2, more[0], *words_of(classifier, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()
