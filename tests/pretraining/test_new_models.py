"""New models of every recipe: they are saved, opened here and in transformers, and read pairs as their family does."""

import pytest
import torch
from pretraining_cases import HEADS

from bothways import load
from bothways.families import FAMILIES
from bothways.pretraining.models import masked_lm_head, narrowed, new_model, published_settings, settings_over
from bothways.pretraining.recipes import RECIPES, scaled

READ = ["the cat sat", ("a mat", "two birds")]


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
        states = model(READ).last_hidden_state
        assert torch.equal(opened(READ).last_hidden_state, states)
        for row, text in enumerate(READ):
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
