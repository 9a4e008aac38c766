"""Every family with a masked language modelling head fills masks as transformers' logits have it."""

import functools

import pytest
import torch

from bothways.families import FAMILIES
from bothways.tasks import FillMask
from contract_cases import tiny_settings
from tiny_models import scramble, write_tokenizer

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

WITH_HEAD = [name for name, family in FAMILIES.items() if "masked_lm" in family.heads]
every_masked_lm = pytest.mark.parametrize("model_type", WITH_HEAD)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A factory: transformers' model and ours, opened from the folder that it was saved in."""

    @functools.cache
    def make(model_type):
        folder = tmp_path_factory.mktemp(model_type)
        theirs = scramble(transformers.AutoModelForMaskedLM.from_config(tiny_settings(model_type)), spread=0.2)
        theirs.save_pretrained(folder)
        write_tokenizer(folder, model_type)
        return theirs, FillMask.from_pretrained(folder, device="cpu")

    return make


def their_logs(theirs, ids, place):
    """Log-probabilities (V) of transformers at a place."""
    with torch.no_grad():
        return theirs(torch.tensor([ids])).logits[0, place].log_softmax(-1)


def encoded(ours, text):
    tokenizer = ours.model.tokenizer
    own = tokenizer.token(tokenizer.mask_id)
    (found,) = tokenizer.encode([text.replace("[MASK]", own)], max_length=18)
    return found.windows[0].ids


def test_every_family_but_those_trained_otherwise_has_the_head():
    assert set(FAMILIES) - set(WITH_HEAD) == {"xlnet"}


@every_masked_lm
@pytest.mark.parametrize("spelling", ["[MASK]", None])
def test_the_best_words_are_those_of_transformers(models, model_type, spelling):
    theirs, ours = models(model_type)
    tokenizer = ours.model.tokenizer
    text = f"w5 w17 {spelling or tokenizer.token(tokenizer.mask_id)} w9 w30"
    ids = encoded(ours, text)
    logs = their_logs(theirs, ids, ids.index(tokenizer.mask_id))
    logs[sorted(tokenizer.special_ids)] = float("-inf")
    best = logs.topk(5)
    answer = ours.predict(text)
    assert [word.pieces[0] for word in answer.masks[0]] == tokenizer.tokens(best.indices.tolist())
    assert [word.log_probability for word in answer.masks[0]] == pytest.approx(best.values.tolist(), abs=2e-5)


@every_masked_lm
def test_two_masks_are_scored_by_transformers_logits_with_one_of_them_filled(models, model_type):
    theirs, ours = models(model_type)
    ids = encoded(ours, "w5 [MASK] w9 [MASK] w30")
    first, second = (place for place, number in enumerate(ids) if number == ours.model.tokenizer.mask_id)
    expected = {}
    for one, other in ((11, 12), (12, 11), (11, 11), (12, 12)):
        left = [one if place == first else number for place, number in enumerate(ids)]
        right = [other if place == second else number for place, number in enumerate(ids)]
        forward = their_logs(theirs, ids, first)[one] + their_logs(theirs, left, second)[other]
        backward = their_logs(theirs, ids, second)[other] + their_logs(theirs, right, first)[one]
        expected[f"w{one}", f"w{other}"] = float(forward + backward) / 2
    answer = ours.predict("w5 [MASK] w9 [MASK] w30", words=["w11", "w12"], top=4)
    found = {filling.words: filling.log_probability for filling in answer.fillings}
    assert found == pytest.approx(expected, abs=2e-5)


@every_masked_lm
def test_pseudo_log_likelihood_is_the_sum_over_transformers_logits(models, model_type):
    theirs, ours = models(model_type)
    ids = encoded(ours, "w5 w17 w9 w30 w31")
    expected = 0.0
    for place in range(1, len(ids) - 1):
        masked = [ours.model.tokenizer.mask_id if index == place else number for index, number in enumerate(ids)]
        expected += float(their_logs(theirs, masked, place)[ids[place]])
    answer = ours.pseudo_log_likelihood("w5 w17 w9 w30 w31")
    assert answer.tokens == 5
    assert answer.log_likelihood == pytest.approx(expected, abs=5e-5)
