"""Heads are found, named, called with texts or ids, and refused by name where there is nothing to call."""

import json
import math

import pytest
import torch
from opening import WEIGHTS, rewrite, same_weights
from safetensors.torch import load_file

from bothways import TextClassifier
from bothways.checkpoints import load, open_checkpoint
from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    InvalidInput,
    MissingOutput,
    NotFitted,
    TextTooLong,
    UnsupportedConfig,
)
from bothways.families import FAMILIES
from tiny_models import edit_config, every_family, padded, write_checkpoint

TEXTS = ["w5 w6", ("w7", "w8 w9"), "w10"]
LONG = " ".join(["w5"] * 30)
ARCHITECTURES = [(model_type, name) for model_type, family in FAMILIES.items() for name in family.architectures]
every_architecture = pytest.mark.parametrize(("model_type", "architecture"), ARCHITECTURES)


@pytest.fixture
def with_heads(tmp_path):
    """A factory: a BERT folder of an architecture."""

    def make(architecture, model_type="bert"):
        write_checkpoint(tmp_path / architecture, model_type, architecture=architecture)
        return tmp_path / architecture

    return make


# Answers


@every_architecture
def test_texts_and_their_ids_get_the_same_answer_and_heads_are_saved_as_they_were(
    with_heads, model_type, architecture, tmp_path
):
    heads, folder = FAMILIES[model_type].architectures[architecture], with_heads(architecture, model_type)
    model = load(folder, heads=heads, device="cpu")
    texts = TEXTS if model.config.embedding.types != 1 else ["w5 w6", "w10"]
    windows = [text.windows[0] for text in model.tokenizer.encode(texts, max_length=18)]
    ids_BS, mask_BS = padded([window.ids for window in windows], "right", 0)
    types_BS, _ = padded([window.types for window in windows], "right", 0)
    inputs = {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": types_BS}
    for name in heads:
        grouped = name == "multiple_choice"
        from_texts = model.apply_head(name, [texts] if grouped else texts)
        from_ids = model.apply_head(
            name, **({key: value[None] for key, value in inputs.items()} if grouped else inputs)
        )
        assert torch.equal(from_texts.logits, from_ids.logits), name
        assert torch.equal(from_texts.attention_mask, mask_BS)
    model.save(tmp_path / "saved")
    same_weights(load_file(tmp_path / "saved" / WEIGHTS), load_file(folder / WEIGHTS))


@pytest.mark.parametrize(
    ("architecture", "head", "shape"),
    [
        ("BertForMaskedLM", "masked_lm", (3, 6, 61)),
        ("BertForNextSentencePrediction", "next_sentence", (3, 2)),
        ("BertForSequenceClassification", "sequence", (3, 3)),
        ("BertForTokenClassification", "token", (3, 6, 3)),
        ("BertForQuestionAnswering", "span", (3, 6, 2)),
    ],
)
def test_an_answer_has_the_shape_of_its_head(with_heads, architecture, head, shape):
    output = load(with_heads(architecture), heads=head, device="cpu").apply_head(head, TEXTS)
    assert output.head == head
    assert output.logits.shape == shape
    assert output.attention_mask.sum(1).tolist() == [4, 6, 3]
    assert output.text_of_row == (0, 1, 2)
    assert output.dropped_tokens == (0, 0, 0)


def test_a_replaced_token_head_gives_one_number_for_each_token_and_a_text_is_a_batch_of_one(with_heads):
    model = load(with_heads("ElectraForPreTraining", "electra"), heads="replaced_token", device="cpu")
    logits_BS = model.apply_head("replaced_token", TEXTS).logits
    assert logits_BS.shape == (3, 6)
    assert (logits_BS[2, 3:] == 0).all()
    tagger = load(with_heads("BertForTokenClassification"), heads="token", device="cpu")
    alone = tagger.apply_head("token", "w5 w6")
    assert alone.logits.shape == (1, 4, 3)
    with pytest.raises(MissingOutput, match="only a span head"):
        _ = alone.start_logits


def test_an_answer_cannot_start_or_end_in_the_padding(with_heads):
    model = load(with_heads("BertForQuestionAnswering"), heads=["span"], device="cpu", dtype="float64")
    output = model.apply_head("span", TEXTS)
    assert output.logits.dtype == torch.float64
    padding_BS = output.attention_mask == 0
    for ends_BS in (output.start_logits, output.end_logits):
        assert (ends_BS[padding_BS] == -math.inf).all()
        assert ends_BS[~padding_BS].isfinite().all()
    assert torch.equal(torch.stack([output.start_logits, output.end_logits], -1), output.logits)


def test_choices_are_scored_in_their_groups(with_heads):
    model = load(with_heads("BertForMultipleChoice"), heads="multiple_choice", device="cpu")
    groups = [["w5", "w6 w7", ("w8", "w9")], ["w10", "w11", "w12 w13"]]
    together = model.apply_head("multiple_choice", groups)
    assert together.logits.shape == (2, 3)
    for row, group in enumerate(groups):
        alone = model.apply_head("multiple_choice", [group]).logits[0]
        torch.testing.assert_close(alone, together.logits[row], rtol=0, atol=1e-5)


def test_each_window_of_a_long_text_is_a_row(with_heads):
    model = load(with_heads("BertForTokenClassification"), heads="token", device="cpu")
    output = model.apply_head("token", ["w6", LONG], on_overflow="window")
    assert output.text_of_row[0] == 0
    assert len(output.text_of_row) == len(output.logits) > 2
    cut = model.apply_head("token", ["w6", LONG], on_overflow="truncate")
    assert cut.dropped_tokens == (0, 14)
    with pytest.raises(TextTooLong):
        model.apply_head("token", LONG)


# Which heads there are


@pytest.mark.parametrize("call", [lambda folder: load(folder, heads="replaced_token", device="cpu"), None])
def test_a_head_that_the_family_lacks_is_refused_and_those_it_has_are_named(with_heads, call):
    folder = with_heads("BertForMaskedLM")
    with pytest.raises(InvalidInput, match="got 'replaced_token'") as refusal:
        call(folder) if call else load(folder, device="cpu").apply_head("replaced_token", "w5")
    assert all(name in str(refusal.value) for name in FAMILIES["bert"].heads)


def test_a_head_that_the_checkpoint_lacks_is_refused_and_those_it_holds_are_named(with_heads):
    with pytest.raises(IncompatibleWeights, match=r"holds no token head.*holds: masked_lm, next_sentence"):
        load(with_heads("BertForPreTraining"), heads="token", device="cpu")


def test_a_head_that_was_not_loaded_says_how_to_load_it(with_heads):
    model = load(with_heads("BertForPreTraining"), heads=["masked_lm"], device="cpu")
    with pytest.raises(InvalidInput, match=r"next_sentence head was not loaded.*masked_lm.*heads=\['next_sentence'\]"):
        model.apply_head("next_sentence", "w5")


def test_half_a_head_is_refused_by_its_missing_tensors(with_heads):
    folder = with_heads("BertForMaskedLM")
    rewrite(folder, lambda tensors: tensors.pop("cls.predictions.transform.LayerNorm.bias"))
    with pytest.raises(IncompatibleWeights, match=r"lacks 1 of the 5 .*: transform\.norm\.bias"):
        load(folder, heads="masked_lm", device="cpu")


@pytest.mark.parametrize(
    "architecture", ["BertForTokenClassification", "BertForMultipleChoice", "BertForQuestionAnswering"]
)
def test_another_head_under_the_same_names_is_not_taken_for_a_classifier(with_heads, architecture):
    folder = with_heads(architecture)
    assert open_checkpoint(folder).score_count("sequence") is None
    with pytest.raises(NotFitted, match="no trained classification head"):
        _ = TextClassifier.from_pretrained(folder, device="cpu").fitted.outputs
    with pytest.raises(IncompatibleWeights, match="holds no sequence head"):
        load(folder, heads="sequence", device="cpu")


def test_a_new_head_begins_with_the_pooler_of_pre_training_and_not_with_another_head(with_heads):
    checkpoint = open_checkpoint(with_heads("BertForPreTraining"))
    pooler = checkpoint.tensors["bert.pooler.dense.weight"]
    for name in ("sequence", "multiple_choice"):
        assert torch.equal(checkpoint.new_score_head(name, labels=3).transform.dense.weight, pooler)
    checkpoint = open_checkpoint(with_heads("BertForTokenClassification"))
    head = checkpoint.new_score_head("sequence", labels=3)
    assert not torch.equal(head.output.weight, checkpoint.tensors["classifier.weight"])


def test_a_checkpoint_that_does_not_say_what_it_is_may_hold_either_head(with_heads):
    folder = with_heads("BertForMultipleChoice")
    edit_config(folder, architectures=None)
    assert set(open_checkpoint(folder).heads()) == {"sequence", "token", "multiple_choice"}


@pytest.mark.parametrize(
    ("name", "value"), [("summary_type", "last"), ("summary_use_proj", False), ("summary_activation", "tanh")]
)
def test_a_setting_that_a_head_takes_for_granted_is_refused_by_name(with_heads, name, value):
    folder = with_heads("ElectraForMultipleChoice", "electra")
    edit_config(folder, **{name: value})
    assert "multiple_choice" not in open_checkpoint(folder).heads()
    with pytest.raises(UnsupportedConfig, match=f"{name} to {value!r}"):
        load(folder, heads="multiple_choice", device="cpu")
    load(folder, device="cpu")


def test_a_dropout_rate_that_is_no_number_is_refused(with_heads):
    folder = with_heads("DistilBertForQuestionAnswering", "distilbert")
    edit_config(folder, qa_dropout="much")
    with pytest.raises(CorruptCheckpoint, match="qa_dropout as a number, but it gives 'much'"):
        load(folder, heads="span", device="cpu")


# What they are called with


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (["w5", "w6"], "a single text"),
        ("w5", "a single text"),
        ([["w5"], ["w6", "w7"]], r"groups of \[1, 2\] texts"),
        ([[], []], r"groups of \[0\] texts"),
        ([], "no group"),
    ],
)
def test_choices_that_are_not_in_groups_are_refused(with_heads, groups, problem):
    model = load(with_heads("BertForMultipleChoice"), heads="multiple_choice", device="cpu")
    with pytest.raises(InvalidInput, match=f"groups of choices.*{problem}"):
        model.apply_head("multiple_choice", groups)
    with pytest.raises(InvalidInput, match="windows"):
        model.apply_head("multiple_choice", [["w5", LONG]], on_overflow="window")
    with pytest.raises(InvalidInput, match="between 0 and 60, but one of them is 61"):
        model.apply_head("multiple_choice", input_ids=torch.full((1, 2, 3), 61))


@pytest.mark.parametrize(("shape", "mask"), [((2, 5), None), ((2, 2, 5), (2, 2, 4)), ((2, 2, 5), (4, 5)), ((5,), None)])
def test_ids_of_choices_in_another_shape_are_refused(with_heads, shape, mask):
    model = load(with_heads("BertForMultipleChoice"), heads="multiple_choice", device="cpu")
    with pytest.raises(InvalidInput, match=r"\(groups, choices, sequence\)"):
        model.apply_head(
            "multiple_choice",
            input_ids=torch.full(shape, 5),
            attention_mask=None if mask is None else torch.ones(mask, dtype=torch.int64),
        )


@pytest.mark.parametrize("inputs", [{}, {"texts": "w5", "input_ids": torch.tensor([[5]])}, {"texts": []}])
def test_a_head_called_with_nothing_or_two_things_is_refused(with_heads, inputs):
    model = load(with_heads("BertForTokenClassification"), heads="token", device="cpu")
    with pytest.raises(InvalidInput):
        model.apply_head("token", **inputs)


# Labels


def test_labels_keep_the_names_and_the_order_of_the_checkpoint(with_heads, tmp_path):
    folder = with_heads("BertForTokenClassification")
    edit_config(folder, id2label={"2": "cow", "0": "ant", "1": "bee"})
    model = load(folder, heads="token", device="cpu")
    assert model.apply_head("token", "w5").labels == ("ant", "bee", "cow")
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved", heads="token", device="cpu")
    assert again.labels_of("token") == ("ant", "bee", "cow")


def test_labels_without_names_are_numbered_and_the_numbers_are_saved(with_heads, tmp_path):
    model = load(with_heads("BertForTokenClassification"), heads="token", device="cpu")
    assert model.labels_of("token") == ("LABEL_0", "LABEL_1", "LABEL_2")
    model.save(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert settings["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert settings["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}


@pytest.mark.parametrize(
    ("stored", "error", "words"),
    [
        ({"0": "ant", "1": "bee"}, IncompatibleWeights, "names 2 labels in id2label, but the head has 3 scores"),
        *((each, CorruptCheckpoint, "id2label") for each in ({"one": "ant"}, ["ant"], 3)),
    ],
)
def test_label_names_in_another_number_or_form_are_refused(with_heads, stored, error, words):
    folder = with_heads("BertForTokenClassification")
    edit_config(folder, id2label=stored)
    with pytest.raises(error, match=words):
        load(folder, heads="token", device="cpu")


# Saving


def test_heads_that_no_architecture_joins_cannot_be_saved_together(with_heads, tmp_path):
    folder = with_heads("BertForMultipleChoice")
    edit_config(folder, architectures=None, id2label={"0": "only"})
    model = load(folder, heads=["sequence", "multiple_choice"], device="cpu")
    with pytest.raises(InvalidInput, match="but not with sequence and multiple_choice"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_head_that_is_only_stored_with_another_cannot_be_saved_alone(with_heads, tmp_path):
    model = load(with_heads("AlbertForPreTraining", "albert"), heads="sentence_order", device="cpu")
    with pytest.raises(InvalidInput, match=r"masked_lm with sentence_order.*but not with sentence_order alone"):
        model.save(tmp_path / "saved")


@every_family
def test_heads_that_were_not_loaded_are_not_saved(with_heads, model_type, tmp_path):
    architecture = next(iter(FAMILIES[model_type].architectures))
    folder = with_heads(architecture, model_type)
    load(folder, device="cpu").save(tmp_path / "saved")
    assert open_checkpoint(tmp_path / "saved").heads() == ()
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert settings["architectures"] == [FAMILIES[model_type].base_architecture]
