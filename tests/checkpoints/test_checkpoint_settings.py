"""Folders whose settings or tensors are those of another model are refused wherever a model is opened."""

import json

import pytest
import torch
from opening import rewrite

import bothways
from bothways.audit import scan
from bothways.checkpoints import open_checkpoint
from bothways.checkpoints.hub import open_tokenizer
from bothways.cli import main
from bothways.errors import IncompatibleWeights, UnknownModel, UnsupportedConfig
from bothways.tasks.registry import SPECS, task_class
from tiny_models import edit_config, write_checkpoint

JINA = {
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "feed_forward_type": "geglu",
}
SAID = r"^this is JinaBERT \(BERT with ALiBi positions and gated feed-forward layers\): not built yet\."


@pytest.fixture
def jina(folder):
    """A folder that says "bert" and means another model, whose weights would fit."""
    edit_config(folder, **JINA)
    return folder


def test_a_folder_that_names_its_own_code_is_refused_by_every_way_to_open_it(jina):
    for opened in (open_checkpoint, bothways.load, open_tokenizer):
        with pytest.raises(UnsupportedConfig, match=SAID):
            opened(str(jina))


@pytest.mark.parametrize("name", SPECS)
def test_no_task_opens_a_folder_that_names_its_own_code(jina, name):
    with pytest.raises(UnsupportedConfig, match=SAID):
        task_class(SPECS[name]).from_pretrained(str(jina))


def test_the_command_line_says_what_the_model_is_and_why_it_is_refused(jina, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("w5 w6\n")
    words = ("embed", "--model", jina, "--data", tmp_path / "texts.txt", "--output", tmp_path / "vectors.npy")
    assert main([str(word) for word in words]) == 1
    said = capsys.readouterr().err
    assert "this is JinaBERT" in said
    assert "names code for the model in auto_map" in said
    assert not (tmp_path / "vectors.npy").exists()


def test_an_audit_reports_the_code_and_names_the_model(jina):
    report = scan(str(jina))
    assert report.verdict == "fail"
    assert any(finding.rule == "remote-code" for finding in report.findings)
    opened = [result.reason for result in report.detectors if result.verdict == "error"]
    assert all("this is JinaBERT" in reason for reason in opened)


def test_settings_that_change_nothing_are_kept_when_a_model_is_saved(folder, tmp_path):
    notes = {"language": "english", "finetuning_task": "sst-2", "gradient_checkpointing": False, "output_past": True}
    edit_config(folder, **notes, auto_map={"AutoConfig": "configuration_x.XConfig"})
    expected = bothways.load(folder)
    expected.save(tmp_path / "saved")
    stored = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {name: stored[name] for name in notes} == notes
    again = bothways.load(tmp_path / "saved")
    text = ["w5 w6 w7"]
    assert torch.equal(again(text).last_hidden_state, expected(text).last_hidden_state)


@pytest.mark.parametrize("headed", [False, True])
def test_tensors_of_another_structure_are_refused_and_named(tmp_path, headed):
    write_checkpoint(tmp_path, architecture="BertForMaskedLM" if headed else None)
    name = f"{'bert.' if headed else ''}encoder.layer.0.mlp.gated_layers.weight"
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(74, 24)}))
    said = rf"{SAID} .*1 encoder tensors that a BERT model .* does not have: bert\.encoder\.layer\.0\.mlp\.gated_layers"
    with pytest.raises(IncompatibleWeights, match=said):
        open_checkpoint(tmp_path).build_encoder()


def test_tensors_of_an_unknown_structure_are_refused_without_a_guess(folder):
    rewrite(folder, lambda tensors: tensors.update({"encoder.layer.0.gate.weight": torch.ones(2, 2)}))
    with pytest.raises(IncompatibleWeights, match=r"^'.*has 1 encoder tensors.*encoder\.layer\.0\.gate\.weight"):
        open_checkpoint(folder).build_encoder()


def test_a_folder_without_a_model_type_is_recognised_by_its_code(folder):
    edit_config(folder, model_type=None, **JINA)
    with pytest.raises(UnknownModel, match=rf"{SAID}.*names None"):
        open_checkpoint(folder)


def test_a_head_is_refused_where_the_encoder_ignores_its_settings(tmp_path):
    write_checkpoint(tmp_path, "xlnet", architecture="XLNetForSequenceClassification")
    edit_config(tmp_path, summary_type="mean")
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.build_encoder()
    with pytest.raises(UnsupportedConfig, match=r"sets summary_type to 'mean', .*for this head; only 'last' is"):
        checkpoint.build_head("sequence")


@pytest.mark.parametrize("problem", ["multi_task", "", 3, ["regression"]])
def test_a_classifier_of_an_unknown_kind_is_refused_by_name(tmp_path, problem):
    write_checkpoint(tmp_path, architecture="BertForSequenceClassification")
    edit_config(tmp_path, problem_type=problem)
    with pytest.raises(UnsupportedConfig, match=r"sets problem_type to .*, which is not supported; only single_label"):
        bothways.TextClassifier.from_pretrained(str(tmp_path))
