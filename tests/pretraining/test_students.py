"""New models and students, copies of a teacher with some of its layers, which open wherever their teacher does."""

import pytest
import torch
from pretraining_cases import HEADS

from bothways import load
from bothways.encoder.config import LocalGlobalAttention
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.pretraining.models import (
    Student,
    evenly_spread,
    masked_lm_head,
    narrowed,
    new_model,
    published_settings,
    settings_over,
    shortened,
)
from bothways.pretraining.recipes import RECIPES, scaled
from tiny_models import TINY, every_family, write_checkpoint, write_tokenizer

READ = ["w5 w6 w7 w8", "w9 w40 w41"]


def opened(folder, model_type="bert", **options):
    write_checkpoint(folder, model_type, **options)
    write_tokenizer(folder, model_type)
    return load(folder, device="cpu")


def test_layers_are_spread_with_the_first_and_the_last():
    assert evenly_spread(12, 6) == (0, 2, 4, 7, 9, 11)  # as in DistilBERT's published code
    assert evenly_spread(12, 4) == (0, 4, 7, 11)
    assert evenly_spread(6, 3) == (0, 3, 5)
    assert evenly_spread(6, 2) == (0, 5)
    assert evenly_spread(6, 1) == (0,)
    for layers in (0, 7):
        with pytest.raises(
            InvalidInput, match=f"`layers` must be from 1 to 6, the number of the teacher's layers, got {layers}"
        ):
            evenly_spread(6, layers)


@every_family
def test_a_student_of_all_layers_is_its_teacher(model_type, tmp_path):
    teacher = opened(tmp_path, model_type)
    student = shortened(teacher, teacher.config.layers)
    assert student.copied == tuple(range(teacher.config.layers))
    with torch.inference_mode():
        assert torch.equal(student.model(READ).last_hidden_state, teacher(READ).last_hidden_state)
    assert student.model.encoder.state_dict().keys() == teacher.encoder.state_dict().keys()
    ours, theirs = (
        {parameter.data_ptr() for parameter in each.encoder.parameters()} for each in (student.model, teacher)
    )
    assert ours.isdisjoint(theirs)


@every_family
def test_a_shorter_student_opens_here_and_in_transformers(model_type, tmp_path):
    from transformers import AutoModel

    student = shortened(opened(tmp_path / "teacher", model_type), 2).model
    assert student.config == FAMILIES[model_type].config(student.settings)
    assert student.config.layers == 2
    student.save(tmp_path / "student")
    again, oracle = load(tmp_path / "student", device="cpu"), AutoModel.from_pretrained(tmp_path / "student").eval()
    with torch.inference_mode():
        states = student(READ).last_hidden_state
        assert torch.equal(again(READ).last_hidden_state, states)
        for row, text in enumerate(READ):
            window = student.tokenizer.encode([text], max_length=18)[0].windows[0]
            given = {"input_ids": torch.tensor([list(window.ids)])}
            if student.config.reads_types:
                given["token_type_ids"] = torch.tensor([list(window.types)])
            expected = oracle(**given).last_hidden_state[0]
            torch.testing.assert_close(states[row, : len(expected)], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("listed", [False, True])
def test_a_layer_sees_as_much_as_the_one_that_it_was_copied_from(tmp_path, listed, monkeypatch):
    kinds = ["full_attention", "sliding_attention", "sliding_attention"] * 2
    more = {"num_hidden_layers": 6} | ({"layer_types": kinds} if listed else {})
    monkeypatch.setitem(TINY, "modernbert", TINY["modernbert"] | more)
    teacher = opened(tmp_path, "modernbert")
    student = shortened(teacher, 4)
    assert student.copied == (0, 2, 4, 3)  # evenly spread they were 0, 2, 3 and 5
    assert isinstance(student.model.config.pattern, LocalGlobalAttention)
    assert student.model.config.pattern.seen_whole == (True, False, False, True)
    assert student.learns_from(teacher.config) == (0, 2, 4, 5)


def test_other_students_learn_from_evenly_chosen_layers(tmp_path):
    teacher, other = opened(tmp_path / "a"), opened(tmp_path / "b", "electra")
    assert Student(other).learns_from(teacher.config) == (0, 1, 2)
    assert Student(shortened(other, 1).model).learns_from(teacher.config) == (2,)


SPELT = ["the cat sat", ("a mat", "two birds")]


@pytest.fixture
def make(trained_tokenizers):
    """A factory of tiny models of a recipe."""

    def made(name, seed=1):
        recipe = RECIPES[name]
        family = FAMILIES[recipe.family]
        tokenizer = trained_tokenizers[recipe.tokenizer].with_template(family.tokenizer.template)
        settings = settings_over(scaled(recipe, "tiny"), tokenizer)
        return new_model(family, settings, tokenizer, HEADS.get(name, ("masked_lm",)), seed=seed)

    return made


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_model_gives_the_same_states_here_and_in_transformers(name, make, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    model = make(name)
    model.encoder.eval()
    model.save(tmp_path / "model")
    tokenizer, oracle = (each.from_pretrained(tmp_path / "model") for each in (AutoTokenizer, AutoModel))
    opened = load(tmp_path / "model", heads=HEADS.get(name, ("masked_lm",)), device="cpu")
    with torch.inference_mode():
        states = model(SPELT).last_hidden_state
        assert torch.equal(opened(SPELT).last_hidden_state, states)
        for row, text in enumerate(SPELT):
            read = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
            expected = oracle.eval()(**read).last_hidden_state[0]
            torch.testing.assert_close(states[row, : len(expected)], expected, atol=1e-5, rtol=1e-4)


def test_the_seed_draws_all_weights(make):
    first, same, other = make("bert"), make("bert"), make("bert", seed=2)
    heads = [[*each.encoder.parameters(), *each.heads["next_sentence"].parameters()] for each in (first, same, other)]
    assert all(map(torch.equal, heads[0], heads[1]))
    assert not all(map(torch.equal, heads[0], heads[2]))
    assert masked_lm_head(first) is first.heads["masked_lm"]


def test_a_generator_has_heads_as_wide_and_the_embedding_of_its_encoder():
    recipe = RECIPES["electra-base"]
    _, settings = published_settings(scaled(recipe, "published"))
    narrow = narrowed(settings, recipe.keys, (1 / 3, 0.5))
    assert (narrow["hidden_size"], narrow["num_attention_heads"], narrow["num_hidden_layers"]) == (256, 4, 6)
    assert (narrow["intermediate_size"], narrow["embedding_size"]) == (1024, 768)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_template_moves_the_special_tokens_alone(trained_tokenizers, kind):
    tokenizer = trained_tokenizers[kind]
    moved = tokenizer.with_template(FAMILIES["xlnet"].tokenizer.template)
    (before,), (after,) = ([each.encode(["the cat sat"], max_length=64)[0].windows[0]] for each in (tokenizer, moved))
    assert list(after.ids) == [*before.ids[1:], before.ids[0]]
    assert moved.cls_is_last
    assert not tokenizer.cls_is_last
    assert tokenizer.with_template(tokenizer.recipe.template) is tokenizer
