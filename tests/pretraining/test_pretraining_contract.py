"""Every objective of pre-training by every family: it learns and is saved, or is refused with the families that can."""

import itertools
from dataclasses import replace

import pytest
import torch
from pretraining_cases import tiny

from bothways import load
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.objectives.masking import Masking
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import (
    RECIPES,
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    ReplacedTokenDetection,
    scaled,
)
from everyday import some_of

RECIPE_OF = {each.family: each for each in RECIPES.values() if each.name != "electra-base"}
RECIPE_OF["xlm-roberta"] = replace(RECIPES["roberta"], family="xlm-roberta", published="FacebookAI/xlm-roberta-base")
RECIPE_OF["camembert"] = replace(RECIPES["roberta"], family="camembert", published="almanach/camembert-base")
MASKING = [name for name in FAMILIES if name != "xlnet"]
CASES = {
    "masked": (MaskedLanguageModelling(), MASKING),
    "masked, with a decoder": (MaskedLanguageModelling(decoder=True), ["deberta", "deberta-v2"]),
    "masked, next sentence": (MaskedLanguageModelling(relation="next_sentence"), ["bert"]),
    "masked, sentence order": (MaskedLanguageModelling(relation="sentence_order"), ["albert"]),
    "replaced, shared": (ReplacedTokenDetection(generator=(1.0, 0.5)), MASKING),
    "replaced, disentangled": (
        ReplacedTokenDetection(Masking(masked=1.0, random=0.0), embeddings="disentangled", generator=(1.0, 0.5)),
        MASKING,
    ),
    "permuted": (PermutationLanguageModelling(), ["xlnet"]),
    "distillation without a teacher": (DistilledMaskedLM(), MASKING),
}


def made(family, task, tokenizers):
    recipe = RECIPE_OF[family]
    return Pretrainer(replace(tiny(scaled(recipe, "tiny")), task=task), tokenizers[recipe.tokenizer], device="cpu")


def test_every_family_takes_part():
    assert RECIPE_OF.keys() == FAMILIES.keys()


# What every family with words to mask can learn, each learns one of every day; what it cannot is refused every day.
WIDE = [case for case, (_, able) in CASES.items() if able is MASKING]
BY_TURNS = [(case, family) for number, family in enumerate(MASKING) for case in (WIDE[number % len(WIDE)],)]
EVERY_DAY = [
    (case, family)
    for case, (_, able) in CASES.items()
    for family in FAMILIES
    if able is not MASKING or family not in able or (case, family) in BY_TURNS
]


@pytest.mark.parametrize(("case", "family"), some_of(list(itertools.product(CASES, FAMILIES)), *EVERY_DAY))
def test_an_objective_is_learnt_by_a_family_or_refused(case, family, trained_tokenizers, corpora, tmp_path):
    task, able = CASES[case]
    pretrainer = made(family, task, trained_tokenizers)
    corpus = corpora[RECIPE_OF[family].tokenizer]
    options = {"updates": 12, "batch_size": 8, "learning_rate": 3e-3, "show_progress": False}
    if family not in able:
        with pytest.raises((InvalidInput, UnsupportedConfig)) as refused:
            pretrainer.fit(corpus, **options)
        assert all(FAMILIES[name].title in str(refused.value) for name in able)
        return
    record = pretrainer.fit(corpus, **options)
    assert record.updates == 12
    assert record.losses[-1] < record.losses[0]
    pretrainer.save(tmp_path / "model")
    opened = load(tmp_path / "model", device="cpu")
    expected = pretrainer.fitted.model
    expected.encoder.eval()
    with torch.inference_mode():
        states = opened(["the cat sat"]).last_hidden_state
        assert torch.equal(states, expected(["the cat sat"]).last_hidden_state)
