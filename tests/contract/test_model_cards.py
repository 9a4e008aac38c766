"""The README.md of a saved model: the hub understands it, its code runs, and nothing depends on it."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import bothways
from bothways import Ensemble, MultiTask, TaskData, TextClassifier, open_trained
from bothways.progress import figure
from bothways.tasks import readme
from bothways.tasks.registry import SPECS, task_class
from contract_cases import as_embedder, rows
from tiny_models import write_checkpoint

FROZEN = Path(__file__).parents[1] / "frozen" / "models"
KINDS = {
    "classifier": ("transformers", "text-classification"),
    "multi_label": ("transformers", "text-classification"),
    "regression": ("transformers", "text-classification"),
    "pairs": ("transformers", "text-classification"),
    "tagger": ("transformers", "token-classification"),
    "answerer": ("transformers", "question-answering"),
    "masked_lm": ("transformers", "fill-mask"),
    "embedder": ("sentence-transformers", "sentence-similarity"),
    "multitask": ("transformers", "text-classification"),
    "ensemble_vote": ("bothways", "text-classification"),
    "ensemble_tags": ("bothways", "token-classification"),
    "ensemble_answers": ("bothways", "question-answering"),
}
QUICK = {"epochs": 1, "batch_size": 6, "show_progress": False}


def code_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(("name", "hub"), KINDS.items(), ids=list(KINDS))
def test_a_saved_model_has_a_card_whose_code_runs(name, hub, tmp_path, monkeypatch, capsys):
    open_trained(FROZEN / name, device="cpu").save(tmp_path / "a model")
    card = ModelCard.load(tmp_path / "a model" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == hub
    assert "bothways" in card.data.tags
    assert card.data.base_model is None  # it was a folder
    stored = json.loads((tmp_path / "a model" / "bothways.json").read_text())
    cards = [head["card"] for head in stored["heads"]] if "heads" in stored else [stored["card"]]
    for part in cards:
        for metric, value in (part["metrics"] or {}).items():
            if f"{metric}_low" in part["metrics"]:
                low, high = part["metrics"][f"{metric}_low"], part["metrics"][f"{metric}_high"]
                assert (
                    f"| {metric.replace('_', ' ')} | {figure(value)} | {figure(low)} to {figure(high)} |" in card.text
                )
        assert all(limit in card.text for limit in part["limits"])
        sums = [value for rows in part["data"].values() for value in rows.values() if isinstance(value, str)]
        assert sums
        assert all(checksum in card.text for checksum in sums)
    blocks = code_of(card.text)
    assert len(blocks) == (1 if name.startswith("ensemble") else 2)
    assert all(len(block.splitlines()) <= 6 for block in blocks)
    assert all(readme.PLACE in block for block in blocks)
    for block in blocks:
        exec(block.replace(readme.PLACE, str(tmp_path / "a model")), {})
    assert capsys.readouterr().out


def test_every_task_has_its_names_on_the_hub():
    for spec in SPECS.values():
        assert spec.hub is not None
        assert task_class(spec).__name__ in dir(bothways)


@pytest.fixture(scope="module")
def fitted(tiny_bert):
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    classifier.fit(rows("single", 18), **QUICK)
    return classifier


@pytest.mark.parametrize("kind", [TextClassifier, MultiTask])
def test_a_classifier_of_the_mean_has_a_card_whose_code_runs_in_sentence_transformers(kind, tmp_path, capsys):
    pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    write_checkpoint(tmp_path / "base")
    as_embedder(tmp_path / "base", normalize=False)
    model = TextClassifier.from_pretrained(tmp_path / "base", device="cpu")
    model.fit(rows("single", 18), validation=rows("single", 18), **QUICK)
    model.save(tmp_path / "a model")
    if kind is MultiTask:
        model = MultiTask.from_pretrained(tmp_path / "a model", device="cpu")
        model.fit({name: TaskData(rows("single", 18)) for name in ("one", "two")}, **QUICK)
        model.save(tmp_path / "a model", overwrite=True)
    card = ModelCard.load(tmp_path / "a model" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("sentence-transformers", "text-classification")
    assert "It also opens in sentence-transformers, which returns logits" in card.text
    assert "- baseline, linear model of frozen hidden states: accuracy " in card.text or kind is MultiTask
    blocks = code_of(card.text)
    assert len(blocks) == 2
    for block in blocks:
        exec(block.replace(readme.PLACE, str(tmp_path / "a model")), {})
    assert len(capsys.readouterr().out.splitlines()[-1].strip("[] ").split()) == 3


def test_a_card_may_be_edited_or_removed(fitted, tmp_path):
    for name in ("a", "b"):
        fitted.save(tmp_path / name)
    ensemble = Ensemble.of([tmp_path / "a", tmp_path / "b"], device="cpu")
    ensemble.save(tmp_path / "both")
    expected = ensemble.predict("w5").together
    (tmp_path / "a" / "README.md").write_text("mine")
    (tmp_path / "b" / "README.md").unlink()
    (tmp_path / "both" / "README.md").unlink()
    assert Ensemble.from_pretrained(tmp_path / "both", device="cpu").predict("w5").together == expected


def test_a_base_model_is_named_where_it_is_one_of_the_hub(fitted, tmp_path, monkeypatch):
    stored = {"task": "classification", "card": {"base_model": "someone/some-encoder", "revision": "0" * 40}}

    def front():
        for name, content in {"bothways.json": stored, "config.json": {}}.items():
            (tmp_path / name).write_text(json.dumps(content))
        readme.write_readme(tmp_path, "TextClassifier", TextClassifier.spec)
        return ModelCard.load(tmp_path / "README.md")

    assert front().data.base_model == "someone/some-encoder"
    assert f"`someone/some-encoder` at `{'0' * 40}`" in front().text
    (tmp_path / "someone" / "some-encoder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert front().data.base_model is None


@pytest.mark.parametrize(
    "card", [{}, {"metrics": 3, "data": [], "limits": "x", "training": {"settings": 1}}, {"data": {"a": 1}}]
)
def test_a_card_that_lacks_parts_is_written_without_them(tmp_path, card):
    for name, content in {"bothways.json": {"task": "classification", "card": card}, "config.json": {}}.items():
        (tmp_path / name).write_text(json.dumps(content))
    readme.write_readme(tmp_path, "TextClassifier", TextClassifier.spec)
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "transformers"


def test_names_cannot_change_the_card(fitted, tmp_path):
    labels = ["`code`", "<script>", "a\n# heading", "---", "| cell |"]
    data = [{"text": f"w{5 + at}", "label": labels[at % 5]} for at in range(30)]
    classifier = TextClassifier.from_pretrained(fitted.model.folder, device="cpu")
    classifier.fit(data, validation=data, **QUICK)
    classifier.save(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    assert "`` `code` ``" in text
    assert "`a # heading`" in text
    assert [line for line in text.splitlines() if line.startswith("# ")] == ["# TextClassifier"]
    assert ModelCard(text).data.pipeline_tag == "text-classification"


def test_many_labels_are_named_in_part(fitted, tmp_path):
    data = [{"text": f"w{5 + at % 50}", "label": f"label {at % 60}"} for at in range(120)]
    classifier = TextClassifier.from_pretrained(fitted.model.folder, device="cpu")
    classifier.fit(data, validation=data, **QUICK)
    classifier.save(tmp_path / "many")
    assert "`label 0`, " in (text := (tmp_path / "many" / "README.md").read_text())
    assert " and 20 more." in text


def test_parts_of_several_tasks_have_sections_of_their_own(tmp_path):
    model = MultiTask.from_pretrained(FROZEN / "multitask", device="cpu")
    model.save(tmp_path / "all")
    model.part("names").save(tmp_path / "names")
    text = (tmp_path / "all" / "README.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")][1:] == [
        "## animal: classification",
        "## names: tagging",
        "## amount: classification",
        "## Golden answers",
    ]
    assert "`golden.json` has the answers to 16 neutral texts." in text
    assert "TextTagger" in (tmp_path / "names" / "README.md").read_text()
