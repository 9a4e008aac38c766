"""An exported graph answers as the packed encoder does, for batches and lengths that it was not recorded with."""

import numpy as np
import pytest
from exported import LENGTHS, TOLERANCE, batch, exported, largest_difference

from bothways.export.graph import HIDDEN
from bothways.families import FAMILIES
from everyday import slow, some_of

# Every family, and among them every kind of head.
REPRESENTATIVE = {
    "bert": "next_sentence",
    "roberta": "masked_lm",
    "xlm-roberta": "token",
    "camembert": "multiple_choice",
    "distilbert": "span",
    "electra": "replaced_token",
    "albert": "sentence_order",
    "deberta": "sequence",
    "deberta-v2": "multiple_choice",
    "xlnet": "permutation_lm",
    "modernbert": "sequence",
}
# Of each way to attend, one family every day.
EVERY_DAY = ("distilbert", "deberta-v2", "xlnet", "modernbert")
represented = pytest.mark.parametrize(
    ("model_type", "head"),
    some_of(list(REPRESENTATIVE.items()), *((name, REPRESENTATIVE[name]) for name in EVERY_DAY)),
)
EVERY_HEAD = [(model_type, head) for model_type, family in FAMILIES.items() for head in (None, *family.heads)]
SIDES = ("right", "left")


def compare(made, count, length, side="right", choices=2):
    inputs = batch(made.graph, count, length, choices, side)
    found, expected = made.run(inputs), made.expected(inputs)
    assert largest_difference(found, expected, inputs["attention_mask"], side) < TOLERANCE


def test_every_family_and_every_head_is_represented():
    assert REPRESENTATIVE.keys() == FAMILIES.keys()
    assert set(REPRESENTATIVE.values()) == {head for family in FAMILIES.values() for head in family.heads}


@represented
def test_hidden_states_and_logits_are_those_of_the_packed_encoder(model_type, head):
    made = exported(model_type, head)
    compare(made, 1, 33)
    compare(made, 5, 7, choices=4)
    compare(made, 3, 20, side="left")


@pytest.mark.parametrize("model_type", ["deberta-v2", "modernbert"])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("length", LENGTHS)
def test_relative_positions_and_windows_hold_at_every_length(model_type, count, length):
    compare(exported(model_type, REPRESENTATIVE[model_type]), count, length)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "head"), EVERY_HEAD)
def test_every_head_of_every_family_holds_at_every_length(model_type, head):
    made = exported(model_type, head)
    for length in LENGTHS:
        for count in (1, 5):
            for side in SIDES:
                compare(made, count, length, side)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sequence", "multiple_choice"])
def test_the_mean_of_tokens_counts_no_padding(head):
    made = exported("modernbert", head, classifier_pooling="mean")
    for side in SIDES:
        compare(made, 5, 20, side)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"norm_bias": True}, {"mlp_bias": True}])
def test_biases_that_modernbert_may_have_are_exported(changes):
    compare(exported("modernbert", None, **changes), 3, 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"share_att_key": False},
        {"position_buckets": -1},
        {"norm_rel_ebd": "none"},
        {"conv_kernel_size": 5, "conv_act": "tanh"},
        {"pos_att_type": "c2p"},
        {"pos_att_type": "p2c"},
        {"position_biased_input": True, "type_vocab_size": 2},
    ],
)
def test_every_form_of_deberta_v2_is_exported(changes):
    made = exported("deberta-v2", None, num_hidden_layers=2, **changes)
    for length in (1, 64, 512):
        compare(made, 3, length)


@pytest.mark.parametrize("side", SIDES)
def test_padding_is_zero_and_no_answer_starts_or_ends_in_it(side):
    made = exported("distilbert", "span")
    inputs = batch(made.graph, 3, 20, side=side)
    found, padding = made.run(inputs), inputs["attention_mask"].numpy() == 0
    assert padding.any()
    assert (found[HIDDEN][padding] == 0).all()
    assert np.isfinite(found[HIDDEN]).all()
    for name in ("start_logits", "end_logits"):
        assert (found[name][padding] == -np.inf).all()
        assert np.isfinite(found[name][~padding]).all()


def test_an_answer_does_not_depend_on_what_stands_in_the_padding():
    made = exported("deberta-v2", "multiple_choice")
    inputs = batch(made.graph, 3, 20)
    other = inputs | {"input_ids": inputs["input_ids"].where(inputs["attention_mask"] == 1, 7)}
    for name, value in made.run(inputs).items():
        np.testing.assert_array_equal(value, made.run(other)[name])


@pytest.mark.parametrize(
    ("model_type", "reads"),
    [slow("bert", True), ("xlnet", True), slow("roberta", False), ("distilbert", False), ("modernbert", False)],
)
def test_segments_are_an_input_where_a_family_tells_them_apart(model_type, reads):
    made = exported(model_type, REPRESENTATIVE[model_type])
    names = [port.name for port in made.session.get_inputs()]
    assert names == ["input_ids", "attention_mask", *(["token_type_ids"] if reads else [])]
    assert [port.name for port in made.graph.inputs()] == names


@represented
def test_the_file_states_its_shapes_as_the_graph_does(model_type, head):
    made = exported(model_type, head)
    for stated, held in (
        (made.graph.inputs(), made.session.get_inputs()),
        (made.graph.outputs(), made.session.get_outputs()),
    ):
        assert [(port.name, port.shape) for port in stated] == [(port.name, tuple(port.shape)) for port in held]


def test_more_tokens_than_the_model_reads_are_an_error_and_no_answer():
    for model_type in ("distilbert", "deberta-v2"):
        made = exported(model_type, REPRESENTATIVE[model_type])
        with pytest.raises(Exception, match=r"(?i)indices|out of (data )?bounds|node"):
            made.run(batch(made.graph, 1, 513))
