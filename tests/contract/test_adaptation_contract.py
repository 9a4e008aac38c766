"""Masked language modelling of every family: the loss and gradients of transformers, and a model that it opens."""

import functools

import numpy as np
import pytest
import torch

from bothways.data.windows import WindowStore
from bothways.families import FAMILIES
from bothways.families.layout import read_weights
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.sequences import TextWindows
from bothways.tasks import FillMask, TextClassifier
from contract_cases import tiny_settings
from everyday import some_of
from tiny_models import TINY, padded, scramble, write_checkpoint, write_tokenizer

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

every_masked_lm = pytest.mark.parametrize(
    "model_type", [name for name, family in FAMILIES.items() if "masked_lm" in family.heads]
)
# Of each way to attend one family, some of them every day; the others learn for an epoch.
MUCH = ("roberta", "albert", "deberta-v2", "modernbert")
EVERY_DAY = ("albert",)
TEXTS = [" ".join(f"w{5 + (start + place) % 50}" for place in range(2 + start % 14)) for start in range(0, 60, 3)]


@every_masked_lm
def test_loss_and_gradients_of_one_step_are_those_of_transformers(model_type, tmp_path):
    theirs = scramble(transformers.AutoModelForMaskedLM.from_config(tiny_settings(model_type)), spread=0.15)
    theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, model_type)
    ours = FillMask.from_pretrained(tmp_path, device="cpu")
    tokenizer = ours.model.tokenizer
    store = WindowStore.of(tokenizer.encode(TEXTS, max_length=18))
    masker = Masker(tokenizer, Masking(fraction=0.3), seed=1)
    module = ours.fitted.model.train()
    windows = TextWindows(store, masker, "training")
    objective = PretrainingObjective.in_epochs(module, windows, None, masker, batch_size=len(TEXTS), tokens=50)

    masked = [
        masker.training(store.ids_T[s:e], 0, n)
        for n, (s, e) in enumerate(zip(store.starts, store.starts[1:], strict=False))
    ]
    ids_BS, mask_BS = padded([one.ids_n.tolist() for one in masked], "right", TINY[model_type]["pad_token_id"])
    labels_BS = torch.full_like(ids_BS, -100)
    for row, one in enumerate(masked):
        labels_BS[row, one.places_M] = torch.from_numpy(one.targets_M.astype(np.int64))
    expected = theirs.train()(ids_BS, attention_mask=mask_BS, labels=labels_BS).loss
    expected.backward()

    (update,) = objective.updates(epoch=0, start=0)
    assert len(update.micro_batches) > 1
    assert update.weight == sum(len(one.places_M) for one in masked)
    loss = sum(objective.loss(part.payload) for part in update.micro_batches) / update.weight
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)

    family, config = ours.model.family, ours.model.config
    stored = {
        name: value.grad for name, value in theirs.named_parameters(remove_duplicate=False) if value.grad is not None
    }
    wanted = read_weights(family.rows, config, stored, family.prefix)
    head = read_weights(family.head("masked_lm", ours.model.settings).rows, config, stored)
    for module_, gradients in (
        (module.encoder, wanted),
        (module.head, {k.removeprefix("head."): v for k, v in head.items()}),
    ):
        for name, parameter in module_.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(
                    parameter.grad, gradients[name], rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A factory: a bare encoder of a family that learnt some texts, and the folder that it was saved in."""

    @functools.cache
    def make(model_type, much):
        folder = tmp_path_factory.mktemp(model_type)
        write_checkpoint(folder / "base", model_type)
        model = FillMask.from_pretrained(folder / "base", device="cpu")
        model.fit(TEXTS, validation=TEXTS, epochs=16 if much else 1, learning_rate=0.01, batch_size=8, seed=2)
        model.save(folder / "saved")
        return model, folder / "saved"

    return lambda model_type, much=False: make(model_type, much or model_type in EVERY_DAY)


@pytest.mark.parametrize("model_type", some_of(MUCH, *EVERY_DAY))
def test_a_new_head_learns_and_before_and_after_are_told(adapted, model_type):
    model, _ = adapted(model_type, much=True)
    facts = model.fitted.facts()
    assert facts["new_head"] is True
    assert facts["after"]["loss"] < facts["before"]["loss"] - 0.3
    assert facts["after"]["perplexity"] == pytest.approx(np.exp(facts["after"]["loss"]))


@every_masked_lm
def test_the_saved_model_opens_in_transformers_with_the_same_logits(adapted, model_type):
    model, folder = adapted(model_type)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    tokenizer = model.model.tokenizer
    (encoded,) = tokenizer.encode(["w5 w6 w7 w8"], max_length=18)
    ids = list(encoded.windows[0].ids)
    ids[2] = tokenizer.mask_id
    with torch.no_grad():
        logs = theirs.eval()(torch.tensor([ids])).logits[0, 2].log_softmax(-1)
    found = model.predict("w5 [MASK] w7 w8", words=["w6", "w20"])
    for filling in found.fillings:
        assert filling.log_probability == pytest.approx(float(logs[int(filling.words[0][1:])]), abs=2e-5)


@every_masked_lm
def test_the_saved_model_is_the_same_here_and_writes_itself_again(adapted, model_type, tmp_path):
    model, folder = adapted(model_type)
    again = FillMask.from_pretrained(folder, device="cpu")
    assert again.predict("w5 [MASK] w7") == model.predict("w5 [MASK] w7")
    assert again.fitted.facts() == model.fitted.facts()
    again.save(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "bothways.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


@every_masked_lm
def test_the_saved_model_is_fine_tuned_for_a_task(adapted, model_type):
    model, folder = adapted(model_type)
    classifier = TextClassifier.from_pretrained(folder, device="cpu")
    assert torch.equal(classifier.model.encoder.embedding.tokens.weight, model.model.encoder.embedding.tokens.weight)
    rows = [{"text": f"w{5 + number % 2} w{20 + number}", "label": "ab"[number % 2]} for number in range(8)]
    record = classifier.fit(rows, validation=rows, epochs=1)
    assert record.updates == 1
    assert classifier.predict("w5 w20").label in ("a", "b")
