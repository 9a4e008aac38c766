"""``adapt``: from raw texts to a model that knows their language, and on to a task."""

import gzip
import random

import pytest
from command_line import call, fails, ok, saved_of

import tiny_models
from bothways.tasks import FillMask


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A file of paragraphs with empty lines between them, in which every third word repeats."""
    generator = random.Random(0)
    paragraphs = []
    for _ in range(60):
        start = generator.randrange(5, 40)
        paragraphs.append(" ".join(f"w{start + place % 3}" for place in range(generator.randrange(4, 30))))
    path = tmp_path_factory.mktemp("texts") / "texts.txt.gz"
    path.write_bytes(gzip.compress("\n\n".join(paragraphs).encode()))
    return path


def words_of(files, texts, output, *more, epochs=4):
    return [
        *("adapt", "--model", files / "tiny", "--data", texts, "--output", output, "--device", "cpu"),
        *("--epochs", epochs, "--learning-rate", 0.01, "--batch-size", 8, "--seed", 1, *more),
    ]


@pytest.fixture(scope="session")
def adapted(files, texts, tmp_path_factory):
    """How the session's adaptation ended, and its folder."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    return call(*words_of(files, texts, folder, "--json")), folder


def test_the_summary_has_before_and_after(adapted):
    outcome, folder = adapted
    assert outcome.code == 0, outcome.err
    assert "has no masked LM head: a new one is initialised" in outcome.err
    summary = outcome.json()
    assert summary["output"] == str(folder)
    assert summary["new_head"] is True
    assert summary["after"]["loss"] < summary["before"]["loss"] - 0.5
    assert summary["after"] == pytest.approx(summary["validation"])
    card = saved_of(folder)["card"]
    for when, stored in (("before", card["before"]), ("after", card["metrics"])):
        assert summary[when] == {name: stored[name] for name in ("loss", "perplexity", "accuracy")}
        assert stored["loss_low"] < stored["loss"] < stored["loss_high"]
    assert (card["training_rows"], card["validation_rows"]) == (54, 6)
    assert card["validation"] == "a tenth of the training data"


def test_in_words_the_next_step_is_to_fine_tune(files, texts, tmp_path):
    outcome = ok(*words_of(files, texts, tmp_path / "run", epochs=1))
    assert f"next         bothways train classification --model {tmp_path / 'run'} --train" in outcome.out
    assert "new_head" not in outcome.out


def test_a_finished_run_is_one_folder_with_its_log(adapted):
    _, folder = adapted
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    assert {"config.json", "model.safetensors", "bothways.json", "tokenizer.json", "training.jsonl"} <= {
        path.name for path in folder.iterdir()
    }


def test_the_adapted_model_fills_masks_and_is_evaluated(adapted, texts):
    _, folder = adapted
    ok("fill-mask", folder, "w20 w21 [MASK] w20 w21 w22")
    report = call("evaluate", folder, "--data", texts, "--json").json()
    assert report["loss_low"] < report["loss"] < report["loss_high"]
    assert report["n"] == 60
    # The seed also draws the words that are hidden.
    page = folder.parent.parent / "page.html"
    words = ["evaluate", folder, "--data", texts, "--seed", 7, "--resamples", 5, "--json"]
    for more in ([], ["--report", page]):
        expected = FillMask.from_pretrained(folder, device="cpu").evaluate(texts, seed=7, resamples=5).to_dict()
        assert call(*words, *more).json()["loss"] == pytest.approx(expected["loss"])
    assert call("predict", folder, "w20 w21 [MASK] w20 w21 w22").lines()[0]["fillings"]


def test_the_adapted_model_is_fine_tuned_for_a_task(adapted, files, tmp_path):
    _, folder = adapted
    words = ["--train", files / "train.jsonl.gz", "--epochs", 1, "--device", "cpu", "--output", tmp_path / "run"]
    outcome = ok("train", "classification", "--model", folder, *words, "--json")
    assert outcome.json()["labels"] == ["even", "odd"]
    ok("predict", tmp_path / "run", "w5 w7")


def test_a_model_with_a_head_goes_on_with_it(adapted, files, texts, tmp_path):
    _, folder = adapted
    words = ["adapt", "--model", folder, "--data", texts, "--output", tmp_path / "more", "--epochs", 1]
    outcome = ok(*words, "--device", "cpu", "--seed", 1)
    assert "has no masked language modelling head" not in outcome.err
    assert "before" in outcome.out
    assert "after" in outcome.out
    before = saved_of(tmp_path / "more")["card"]["before"]
    after = saved_of(folder)["card"]["metrics"]
    assert before["loss"] == pytest.approx(after["loss"], abs=1e-5)


def test_an_existing_output_is_refused_before_any_work(adapted, files, texts):
    _, folder = adapted
    fails(1, "--overwrite", *words_of(files, texts, folder))


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is empty"), ("\n\n \n", "no text in the given data"), ("w5 w6\n", "give at least two rows, or")],
)
def test_data_without_text_are_refused(files, tmp_path, content, said):
    (tmp_path / "t.txt").write_text(content)
    fails(1, said, *words_of(files, tmp_path / "t.txt", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_family_without_such_a_head_is_refused(texts, tmp_path):
    tiny_models.write_checkpoint(tmp_path / "xlnet", "xlnet")
    words = ("adapt", "--model", tmp_path / "xlnet", "--data", texts, "--output", tmp_path / "run")
    fails(2, "do not predict masked tokens", *words)
