"""Every setting of transformers' configurations is known, and has the effect that it has there."""

from dataclasses import fields

import pytest
import torch
import transformers
from oracles import (
    CHOICES,
    CLASSES,
    every_architecture,
    head_answers,
    head_inputs,
    in_memory,
    oracle,
    real_answers,
    scaled_difference,
)
from transformers.models.auto import modeling_auto

from bothways.checkpoints.checkpoint import DECODERS
from bothways.encoder.config import EncoderConfig
from bothways.encoder.heads import head_logits
from bothways.errors import BothwaysError, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.families.family import HEAD_POOLING, HEAD_TOKENS, KNOWN_TO_ALL
from bothways.families.keys import NEUTRAL_NAMES
from bothways.families.layout import ACTIVATION_NAMES
from bothways.families.others import OTHER_ENCODERS
from bothways.packing import pack, unpad
from tiny_models import TINY, every_family, random_ids

TOLERANCE = 1e-5
LENGTHS = (1, 4, 9)

# Another value than those of the tiny models and the defaults, for every setting that a family reads.
_BERT = {
    "vocab_size": 67,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 41,
    "max_position_embeddings": 22,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.21,
    "attention_probs_dropout_prob": 0.22,
    "classifier_dropout": 0.23,
    "initializer_range": 0.03,
    "layer_norm_eps": 1e-3,
    "type_vocab_size": 3,
}
_ROBERTA = _BERT | {"pad_token_id": 4}
_DEBERTA = {name: value for name, value in _BERT.items() if name != "classifier_dropout"} | {
    "cls_dropout": 0.24,
    "embedding_size": 20,
    "pos_att_type": ["p2c"],
    "max_relative_positions": 7,
}
OTHERS = {
    "bert": [_BERT],
    "roberta": [_ROBERTA],
    "xlm-roberta": [_ROBERTA],
    "camembert": [_ROBERTA],
    "distilbert": [
        {
            "vocab_size": 67,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 8,
            "hidden_dim": 41,
            "max_position_embeddings": 22,
            "activation": "relu",
            "dropout": 0.21,
            "attention_dropout": 0.22,
            "seq_classif_dropout": 0.23,
            "initializer_range": 0.03,
        }
    ],
    "electra": [_BERT | {"embedding_size": 20}],
    "albert": [
        {name: value for name, value in _BERT.items() if name != "classifier_dropout"}
        | {
            "num_hidden_layers": 6,
            "classifier_dropout_prob": 0.3,
            "embedding_size": 20,
            "num_hidden_groups": 1,
            "inner_group_num": 3,
        }
    ],
    "deberta": [
        _DEBERTA | {"position_biased_input": False},
        {"relative_attention": False, "position_biased_input": True, "pos_att_type": None},
    ],
    "deberta-v2": [
        _DEBERTA
        | {
            "position_biased_input": True,
            "position_buckets": 4,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "conv_kernel_size": 5,
            "conv_groups": 2,
            "conv_act": "relu",
        },
        {"relative_attention": False, "position_biased_input": True, "pos_att_type": None},
    ],
    "xlnet": [
        {
            "vocab_size": 67,
            "d_model": 32,
            "n_layer": 2,
            "n_head": 8,
            "d_inner": 41,
            "ff_activation": "relu",
            "dropout": 0.21,
            "clamp_len": 3,
            "layer_norm_eps": 1e-3,
            "initializer_range": 0.03,
        }
    ],
    "modernbert": [
        {
            "vocab_size": 67,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "intermediate_size": 41,
            "max_position_embeddings": 22,
            "initializer_range": 0.03,
            "norm_eps": 1e-3,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_activation": "relu",
            "attention_dropout": 0.21,
            "embedding_dropout": 0.22,
            "mlp_dropout": 0.23,
            "classifier_dropout": 0.24,
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 5_000.0,
            "local_rope_theta": 300.0,
        },
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 700.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
            },
        },
    ],
}


def known_names(family):
    known = family.reader.known
    ours = {*known.read, *known.harmless, *known.neutral, *known.aliases}
    return ours | family.read_by_heads | KNOWN_TO_ALL


def states(model):
    sequences = random_ids(LENGTHS, seed=13)
    with torch.no_grad():
        return torch.cat([model(torch.tensor([ids]))[0][0] for ids in sequences])


@every_family
def test_every_setting_of_transformers_is_known(model_type):
    kind = type(transformers.AutoConfig.for_model(model_type))
    stored, declared = set(kind(**TINY[model_type]).to_dict()), {field.name for field in fields(kind)}
    members = {name: value for each in kind.__mro__ for name, value in vars(each).items()}
    properties = {name for name, value in members.items() if isinstance(value, property) and value.fset}
    # XLNet's class raises an error if it is given this.
    names = {*stored, *declared, *properties, *kind.attribute_map} - {"max_position_embeddings"}
    assert names - known_names(FAMILIES[model_type]) == set()


@every_family
def test_a_setting_that_transformers_would_add_is_noticed(model_type):
    assert "a_new_feature" not in known_names(FAMILIES[model_type])


def test_every_masked_language_model_of_transformers_is_a_family_or_is_named():
    named = {name for other in OTHER_ENCODERS for name in other.model_types}
    # Of images, sounds and bytes, or with a decoder.
    beyond_text = {"modernvbert", "ultravbert", "neomme", "perceiver", "mvp"}
    masked = {*modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    assert masked - named - {*FAMILIES} - DECODERS - beyond_text == set()


def changed(value):
    """A value of the same type that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 3
        case str():
            return f"other {value}"
        case _:
            return 7


# Settings whose values transformers checks.
SPECIAL = {
    "id2label": {str(number): f"name {number}" for number in range(CLASSES)},
    "label2id": {f"name {number}": number for number in range(CLASSES)},
    "num_labels": CLASSES,
    "problem_type": "regression",
    "architectures": ["OtherModel"],
    "dtype": "float32",
    "torch_dtype": "float32",
    "transformers_version": "4.0.0",
    "eos_token_id": 3,
    "summary_type": "mean",
    "tie_last_hidden_states": False,
    "pooler_hidden_act": "relu",
    "classifier_pooling": "mean",
    "classifier_activation": "relu",
}
# transformers chooses by these how it computes, and the oracle sets them.
CHOSEN = {"model_type", *(name for name in NEUTRAL_NAMES if name.endswith(("implementation", "internal")))}


def other_values(model_type, names):
    """Another value for each of these settings."""
    settings = TINY[model_type]
    defaults = transformers.AutoConfig.for_model(model_type, **settings).to_dict()
    return {name: SPECIAL.get(name, changed(settings.get(name, defaults.get(name)))) for name in names}


@every_family
def test_neutral_settings_change_no_hidden_state_of_transformers(model_type):
    family, settings = FAMILIES[model_type], TINY[model_type]
    known = family.reader.known
    others = other_values(model_type, (NEUTRAL_NAMES | {*known.neutral} | family.read_by_heads) - known.read - CHOSEN)
    expected = oracle(model_type, "encoder", settings)
    model = oracle(model_type, "encoder", settings | others)
    model.load_state_dict(expected.state_dict())
    assert len(others) > 80
    assert torch.equal(states(model), states(expected))
    assert family.config(settings | others) == family.config(settings)


# The oracle sets the labels; a tied head and the heads of this package say so; the answers are read by their names.
OF_HEADS = {"id2label", "label2id", "num_labels", "tie_word_embeddings", HEAD_POOLING, *HEAD_TOKENS}
OF_CALLS = {"return_dict", "output_attentions", "output_hidden_states"}


@every_architecture
def test_neutral_settings_change_no_head_of_transformers(model_type, architecture):
    family, settings = FAMILIES[model_type], TINY[model_type]
    known = family.reader.known
    names = (NEUTRAL_NAMES | {*known.neutral}) - known.read - family.read_by_heads - CHOSEN - OF_HEADS - OF_CALLS
    heads = family.architectures[architecture]
    models = [oracle(model_type, architecture, settings | each) for each in ({}, other_values(model_type, names))]
    inputs = head_inputs(models[0], model_type, family.head(heads[0], settings).kind)
    with torch.no_grad():
        expected, found = (head_answers(heads, model(**inputs)) for model in models)
    assert all(map(torch.equal, found, expected))


HEAD_SETTINGS = {
    "summary_type": ("first", "last", "mean"),
    "summary_use_proj": (False,),
    "summary_activation": ("gelu", "tanh"),
    "summary_first_dropout": (0.2,),
    "summary_last_dropout": (0.2,),
    "summary_proj_to_labels": (True,),
    "pooler_hidden_act": ("gelu", "relu"),
    "pooler_dropout": (0.2,),
    "qa_dropout": (0.2,),
    "legacy": (True, False),
    "classifier_pooling": ("cls", "mean"),
    "classifier_activation": ("gelu", "relu"),
    "classifier_bias": (True,),
    "classifier_dropout": (0.2,),
    "decoder_bias": (False,),
    "norm_bias": (True,),
}


def refused(family, heads, settings):
    """Why the family refuses heads with these settings; None if it has them."""
    try:
        for name in heads:
            family.head(name, settings)
    except UnsupportedConfig as error:
        return str(error)


@every_architecture
def test_settings_of_heads_have_their_effect_or_are_refused(model_type, architecture):
    family, heads = FAMILIES[model_type], FAMILIES[model_type].architectures[architecture]
    assert family.read_by_heads <= HEAD_SETTINGS.keys()
    for name in sorted(family.read_by_heads):
        for value in HEAD_SETTINGS[name]:
            settings = TINY[model_type] | {name: value}
            if (refusal := refused(family, heads, settings)) is not None:
                assert f"sets {name} to {value!r}" in refusal
                continue
            model = oracle(model_type, architecture, settings)
            checkpoint = in_memory(model_type, settings, model)
            inputs = head_inputs(model, model_type, family.head(heads[0], settings).kind)
            mask = inputs["attention_mask"]
            packed = unpad(**{f"{each}_BS": value.flatten(0, -2) for each, value in inputs.items()})
            with torch.no_grad():
                encoder, theirs = checkpoint.build_encoder(), head_answers(heads, model(**inputs))
                for head, answer in zip(heads, theirs, strict=True):
                    built = checkpoint.build_head(head)
                    ours = head_logits(built, encoder, packed, choices=CHOICES if mask.dim() == 3 else 1)
                    assert scaled_difference(real_answers(ours, mask), real_answers(answer, mask)) < TOLERANCE, (
                        name,
                        value,
                    )


@every_family
def test_every_setting_that_a_family_reads_changes_its_configuration(model_type):
    family, settings = FAMILIES[model_type], TINY[model_type]
    base, effective = family.config(settings), set()
    for others in OTHERS[model_type]:
        for name, value in others.items():
            if settings.get(name) == value:
                continue
            try:
                assert family.config(settings | {name: value}) != base, name
            except BothwaysError:
                # It fits only together with the others.
                assert family.config(settings | others) != base
            effective.add(name)
    assert family.reader.known.read - effective == set()


def outcome(family, settings):
    """The configuration, or why there is none."""
    try:
        return family.config(settings)
    except BothwaysError as error:
        return str(error)


@every_family
def test_a_missing_setting_has_the_value_that_it_has_in_transformers(model_type):
    family = FAMILIES[model_type]
    for name in family.reader.known.defaults:
        settings = {key: value for key, value in TINY[model_type].items() if key != name}
        theirs = transformers.AutoConfig.for_model(model_type, **settings).to_dict()
        if name in theirs:
            assert outcome(family, settings) == outcome(family, settings | {name: theirs[name]}), name


@pytest.mark.parametrize(
    ("model_type", "others"), [(model_type, others) for model_type, each in OTHERS.items() for others in each]
)
def test_other_values_of_every_setting_equal_transformers(model_type, others):
    settings = TINY[model_type] | others
    model = oracle(model_type, "encoder", settings)
    checkpoint = in_memory(model_type, settings, model)
    assert isinstance(checkpoint.config, EncoderConfig)
    with torch.no_grad():
        ours = checkpoint.build_encoder()(pack(random_ids(LENGTHS, seed=13)))
    assert scaled_difference(ours, states(model)) < TOLERANCE


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_every_activation_equals_transformers(name):
    settings = TINY["bert"] | {"hidden_act": name}
    model = oracle("bert", "encoder", settings)
    with torch.no_grad():
        ours = in_memory("bert", settings, model).build_encoder()(pack(random_ids(LENGTHS, seed=13)))
    assert scaled_difference(ours, states(model)) < TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "alias", "name"),
    [
        (model_type, alias, name)
        for model_type, family in FAMILIES.items()
        for alias, name in family.reader.known.aliases.items()
    ],
)
def test_another_name_of_a_setting_is_read_as_in_transformers(model_type, alias, name):
    settings = TINY[model_type] | ({"d_head": 6} if model_type == "xlnet" else {})
    value = settings.pop(name)
    assert getattr(transformers.AutoConfig.for_model(model_type, **settings, **{alias: value}), name) == value
    assert FAMILIES[model_type].config(settings | {alias: value}) == FAMILIES[model_type].config(TINY[model_type])
