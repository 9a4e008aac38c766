"""Settings of ``config.json``: known ones open, and all others are refused by name and value."""

import contextlib
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_settings import OPENED, REFUSED

from bothways.encoder.config import TanhPooler
from bothways.errors import BothwaysError, UnknownModel, UnsupportedConfig
from bothways.families import FAMILIES, family_in
from bothways.families.family import IMPLIED, KNOWN_TO_ALL
from bothways.families.keys import HARMLESS, NEUTRAL, NEUTRAL_NAMES
from bothways.families.layout import Ignored
from bothways.families.others import OTHER_ENCODERS, recognise
from tiny_models import TINY, every_family


def sizes(model_type, name):
    """The sizes of the published model of this name, or of the family's first."""
    published = FAMILIES[model_type].published
    return next((each.settings for each in published if each.name == name), published[0].settings)


@pytest.mark.parametrize(("model_type", "name", "stated"), OPENED, ids=[name for _, name, _ in OPENED])
def test_settings_of_published_models_are_known(model_type, name, stated):
    family = family_in({"model_type": model_type})
    whole = {"model_type": model_type, **sizes(model_type, name), **stated}
    config = family.config(whole)
    assert config.hidden
    for head in family.architecture_heads(whole):
        family.head(head, whole)


@pytest.mark.parametrize(("model_type", "name", "stated", "words"), REFUSED, ids=[name for _, name, _, _ in REFUSED])
def test_models_that_only_look_like_a_family_are_refused_and_named(model_type, name, stated, words):
    base = sizes(model_type, name) if model_type in FAMILIES else {}
    whole = {"model_type": model_type, **base, **stated}
    with pytest.raises((UnsupportedConfig, UnknownModel), match=words) as refusal:
        family_in(whole).config(whole)
    # A model that is known to be another is no standard one.
    assert "standard model" not in str(refusal.value)


@every_family
@pytest.mark.parametrize("value", [1, 0, False, "x", "", [], {}, {"a": [1]}])
def test_an_unknown_setting_is_refused_with_its_value_and_advice(model_type, value):
    family = FAMILIES[model_type]
    with pytest.raises(UnsupportedConfig) as refusal:
        family.config(TINY[model_type] | {"a_new_feature": value})
    assert f"sets a_new_feature to {value!r}, which {family.title} models do not have" in str(refusal.value)
    assert "open a copy of the folder without a_new_feature in config.json" in str(refusal.value)


@every_family
def test_an_unknown_setting_without_a_value_sets_nothing(model_type):
    family = FAMILIES[model_type]
    assert family.config(TINY[model_type] | {"a_new_feature": None}) == family.config(TINY[model_type])


def test_of_many_unknown_settings_five_are_named():
    many = {f"feature_{number}": number for number in range(8)}
    with pytest.raises(UnsupportedConfig, match=r"feature_4 to 4 and 3 more, which") as refusal:
        FAMILIES["bert"].config(TINY["bert"] | many)
    assert "feature_5" not in str(refusal.value)
    with pytest.raises(UnsupportedConfig, match=r"feature_4 to 4, which"):
        FAMILIES["bert"].config(TINY["bert"] | {name: many[name] for name in list(many)[:5]})


def test_a_value_of_any_size_is_refused_in_a_short_sentence():
    with pytest.raises(UnsupportedConfig) as refusal:
        FAMILIES["bert"].config(TINY["bert"] | {"a_new_feature": ["x" * 10_000], "y" * 10_000: 1})
    assert len(str(refusal.value)) < 700


@every_family
def test_settings_of_unsupported_features_are_refused_unless_switched_off(model_type):
    family, tiny = FAMILIES[model_type], TINY[model_type]
    expected = family.config(tiny)
    for name, values in {**HARMLESS, **family.reader.known.harmless}.items():
        for value in values:
            assert family.config(tiny | {name: value}) == expected
        with pytest.raises(UnsupportedConfig, match=f"sets {name} to .*other.*not supported"):
            family.config(tiny | {name: ["other"]})


@every_family
def test_settings_that_repeat_others_must_agree_with_them(model_type):
    family, tiny = FAMILIES[model_type], TINY[model_type]
    expected = family.config(tiny)
    for name, implied in IMPLIED.items():
        if name in family.reader.known.read:
            continue
        assert family.config(tiny | {name: implied(expected)}) == expected
        with pytest.raises(UnsupportedConfig, match=f"sets {name} to 17, .*; its other settings give"):
            family.config(tiny | {name: 17})


@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.reader.known.aliases])
def test_two_names_of_a_setting_must_agree(model_type):
    family, tiny = FAMILIES[model_type], TINY[model_type]
    for alias, name in family.reader.known.aliases.items():
        assert family.config(tiny | {alias: tiny[name]}) == family.config(tiny)
        with pytest.raises(UnsupportedConfig, match=f"sets {name} to {tiny[name]} and {alias}, .* to 17"):
            family.config(tiny | {alias: 17})


@every_family
def test_a_family_has_a_pooler_if_it_has_weights_for_one(model_type):
    family = FAMILIES[model_type]
    weights = any(row.ours.startswith("pooler.") for row in family.rows if not isinstance(row, Ignored))
    assert isinstance(family.config(TINY[model_type]).pooler, TanhPooler) is weights


@every_family
def test_a_setting_has_one_meaning(model_type):
    known, heads = FAMILIES[model_type].reader.known, FAMILIES[model_type].read_by_heads
    kinds = [known.read | heads, {*known.aliases}, {*known.harmless}, {*known.neutral}]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    assert not {*known.neutral, *known.harmless, *known.aliases} & NEUTRAL_NAMES
    assert not {*known.neutral, *known.read} & {*HARMLESS}


def test_neutral_settings_are_listed_once():
    assert sum(map(len, NEUTRAL.values())) == len(NEUTRAL_NAMES)
    assert not NEUTRAL_NAMES & {*HARMLESS, *IMPLIED}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.sampled_from(["c2p|p2c", "gelu", "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["full_attention", "AutoModel"]), inner)
    ),
    max_leaves=5,
)


@st.composite
def spoilt(draw):
    """A family, and its tiny settings with other values for some settings that it knows, or for a new one."""
    model_type = draw(st.sampled_from(sorted(FAMILIES)))
    known = FAMILIES[model_type].reader.known
    names = sorted({*known.read, *known.harmless, *known.aliases, *FAMILIES[model_type].read_by_heads, *KNOWN_TO_ALL})
    changes = draw(st.dictionaries(st.sampled_from([*names, "a_new_feature"]), JSON, min_size=1, max_size=3))
    return model_type, TINY[model_type] | changes


@given(spoilt())
@settings(max_examples=150)
def test_whatever_settings_say_they_are_read_or_refused(case):
    model_type, spoilt_settings = case
    family = FAMILIES[model_type]
    for read in (family.config, *(partial(family.head, name) for name in family.heads)):
        with contextlib.suppress(BothwaysError):
            read(spoilt_settings)


# Code of a checkpoint


@pytest.mark.parametrize("value", ["modeling_x.XModel", ["modeling_x.XModel", None]])
@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForSequenceClassification"])
def test_code_for_the_model_is_refused_by_name(name, value):
    with pytest.raises(UnsupportedConfig, match=rf"auto_map \({name}: .*modeling_x.XModel.* never runs code"):
        FAMILIES["bert"].config(TINY["bert"] | {"auto_map": {"AutoConfig": "configuration_x.XConfig", name: value}})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"AutoConfig": "configuration_x.XConfig"},
        {"AutoTokenizer": ["tokenization_x.XTokenizer", None]},
        {"TFAutoModel": "modeling_tf_x.XModel", "FlaxAutoModel": "modeling_flax_x.XModel"},
        {"AutoModel": None},
    ],
)
def test_code_for_other_things_than_the_model_changes_nothing(value):
    config = FAMILIES["bert"].config(TINY["bert"] | {"auto_map": value})
    assert config == FAMILIES["bert"].config(TINY["bert"])


@pytest.mark.parametrize("value", ["modeling_x.XModel", ["AutoModel"], 3, True])
def test_an_auto_map_in_another_form_is_refused(value):
    with pytest.raises(UnsupportedConfig, match="must give auto_map as an object"):
        FAMILIES["bert"].config(TINY["bert"] | {"auto_map": value})


# Encoders that are not built


def test_no_other_encoder_has_the_name_or_the_settings_of_a_family():
    for other in OTHER_ENCODERS:
        assert not {*other.model_types} & {*FAMILIES}
    for model_type, _, stated in OPENED:
        assert recognise({"model_type": model_type, **stated}) is None


@pytest.mark.parametrize(
    ("tensor", "title"),
    [
        ("bert.encoder.layer.0.mlp.gated_layers.weight", "JinaBERT"),
        ("encoder.layer.11.mlp.up_gated_layer.weight", "JinaBERT"),
        ("bert.encoder.layer.0.attention.self.Wqkv.weight", "MosaicBERT"),
        ("roberta.encoder.layers.0.mixer.Wqkv.weight", "Jina's XLM-R"),
        ("new.encoder.layer.0.attention.qkv_proj.weight", "GTE"),
        ("encoder.layer.12.attention.self.query.weight", None),
    ],
)
def test_other_encoders_are_recognised_by_their_tensors(tensor, title):
    found = recognise({"model_type": "bert"}, [tensor])
    assert (found and found.title) == title


def test_an_encoder_without_a_family_is_named_before_the_families():
    with pytest.raises(UnknownModel, match=r"^this is Longformer \(sparse attention.*names 'longformer'"):
        family_in({"model_type": "longformer"})
    with pytest.raises(
        UnknownModel, match=r"^config\.json must name one of .*, but it names None\. If .*, add its name"
    ):
        family_in({})
    with pytest.raises(UnknownModel, match=r"^config\.json must name one of the families .*'wav2vec2'\.$"):
        family_in({"model_type": "wav2vec2"})
