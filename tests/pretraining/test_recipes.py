"""Recipes as data: the published figures, and their cuts."""

from dataclasses import astuple, fields, replace
from typing import get_args

import pytest

from bothways.choices import RecipeName, RecipeScale
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.families.catalogue import find_published
from bothways.objectives.distillation import TripleLoss
from bothways.pretraining.recipes import (
    RECIPES,
    PermutationLanguageModelling,
    ReplacedTokenDetection,
    find_recipe,
    scaled,
)
from bothways.training.options import AdamW, Lamb, TrainingOptions

CUTS = [scale for scale in get_args(RecipeScale) if scale != "published"]


def test_there_is_a_recipe_for_each_name():
    assert tuple(RECIPES) == get_args(RecipeName)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=str)
def test_a_recipe_names_a_model_of_its_family_and_its_source(recipe):
    family, _ = find_published(FAMILIES.values(), recipe.published)
    assert family.model_type == recipe.family
    assert "arXiv:" in recipe.source


def test_roberta_reads_15_6_times_the_sequences_of_bert():
    sequences = {
        name: sum(phase.updates * phase.batch for phase in RECIPES[name].course.phases) for name in ("bert", "roberta")
    }
    assert sequences["roberta"] / sequences["bert"] == 15.625
    assert RECIPES["bert"].course.tokens == 256 * (900_000 * 128 + 100_000 * 512)


@pytest.mark.parametrize("name", RECIPES)
def test_a_course_makes_training_options(name):
    course = RECIPES[name].course
    shared = {each.name for each in fields(course)} & {each.name for each in fields(TrainingOptions)}
    assert len(shared) == 4
    options = TrainingOptions(
        warmup_fraction=course.warmup, **{each: getattr(course, each) for each in shared - {"updates"}}
    )
    assert isinstance(options.optimizer, Lamb if name == "albert" else AdamW)
    assert options.optimizer.eps == 1e-6


@pytest.mark.parametrize("scale", CUTS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_cut_keeps_what_is_learnt(name, scale):
    recipe, cut = RECIPES[name], scaled(RECIPES[name], scale)
    whole = scaled(recipe, "published")
    assert (whole.task, whole.course, whole.shape) == (recipe.task, recipe.course, None)
    assert cut.course.tokens < recipe.course.tokens
    if isinstance(recipe.task, ReplacedTokenDetection):
        assert replace(cut.task, generator=recipe.task.generator) == recipe.task
    elif isinstance(recipe.task, PermutationLanguageModelling):
        assert replace(cut.task, memory=recipe.task.memory) == recipe.task
        assert cut.task.memory == cut.course.phases[0].length * 3 // 4
    else:
        assert cut.task == recipe.task


def test_numbers_can_be_changed_and_the_rate_follows_the_root_of_the_batch():
    whole = scaled(RECIPES["bert"], "published")
    more = whole.changed(batch=1024)
    assert more.course.learning_rate == pytest.approx(2 * whole.course.learning_rate)
    assert [phase.batch for phase in more.course.phases] == [1024, 1024]
    few = whole.changed(updates=50)
    assert [(phase.updates, phase.length) for phase in few.course.phases] == [(45, 128), (5, 512)]
    assert [phase.updates for phase in whole.changed(updates=1).course.phases] == [1]
    assert [astuple(phase) for phase in whole.changed(length=64, updates=7).course.phases] == [(7, 256, 64, None)]
    assert whole.changed() == whole


def test_distilbert_weighs_as_distillation_does():
    task, usual = RECIPES["distilbert"].task, TripleLoss()
    assert (task.weights, task.temperature) == ((usual.soft, usual.masked, usual.cosine), usual.temperature)


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match=r"recipes bert, roberta.*, got 'berd'"):
        find_recipe("berd")
    with pytest.raises(InvalidInput, match="scales tiny, small, base, published, got 'huge'"):
        scaled(RECIPES["bert"], "huge")
