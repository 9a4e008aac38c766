"""One step of fine-tuning: loss and gradients are those of transformers on a padded batch."""

import inspect

import pytest
import torch

from bothways.checkpoints import open_checkpoint
from bothways.data import Example
from bothways.data.windows import WindowStore
from bothways.families.layout import write_weights
from bothways.tasks.heads.objective import WindowObjective
from bothways.tasks.heads.target_training import TextLoss
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel
from bothways.tasks.torch_backend import HeadModel
from bothways.text import TextTokenizer
from contract_cases import padding_side, tiny_settings
from tiny_models import TINY, every_family, padded, scramble, write_tokenizer

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

TEXTS = ("w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14 w15", "w5 w40 w41", "w20 w21")
NAMES = ("ant", "bee", "cow")
CASES = {
    "single": (SingleLabel(NAMES), ("ant", "cow", "bee", "cow", "ant")),
    "multi": (MultiLabel(NAMES), (("ant", "cow"), (), ("bee",), NAMES, ("cow",))),
    "regression": (Regression(), (0.5, -1.25, 3.0, 0.0, 1.0)),
}


def oracle(folder, model_type, target):
    """A model of transformers with no dropout, saved into ``folder`` with a tokenizer."""
    config = tiny_settings(model_type, num_labels=target.outputs, problem_type=target.problem_type)
    model = scramble(transformers.AutoModelForSequenceClassification.from_config(config), spread=0.15)
    model.save_pretrained(folder)
    write_tokenizer(folder, model_type)
    return model.train()


@every_family
@pytest.mark.parametrize("kind", CASES)
def test_loss_and_gradients_of_one_step_are_those_of_transformers(model_type, kind, tmp_path):
    target, labels = CASES[kind]
    theirs = oracle(tmp_path, model_type, target)
    checkpoint = open_checkpoint(tmp_path)
    family, config = checkpoint.family, checkpoint.config
    encoded = TextTokenizer.from_folder(tmp_path, family.tokenizer).encode(TEXTS, max_length=18)
    truth = target.encode([Example(text, label, 1) for text, label in zip(TEXTS, labels, strict=True)])

    ids = [text.windows[0].ids for text in encoded]
    ids_BS, mask_BS = padded(ids, padding_side(model_type), TINY[model_type]["pad_token_id"])
    # Given, because XLNet leaves segments out of the sum where they are not; its [CLS] is a segment of its own.
    takes_types = "token_type_ids" in inspect.signature(theirs.forward).parameters
    types_BS, _ = padded([text.windows[0].types for text in encoded], padding_side(model_type), 0)
    types = {"token_type_ids": types_BS} if takes_types else {}
    expected = theirs(ids_BS, attention_mask=mask_BS, labels=torch.from_numpy(truth), **types).loss
    expected.backward()

    store = WindowStore.of(encoded)
    model = HeadModel(checkpoint.build_encoder(), checkpoint.build_score_head("sequence")).train()
    answers = TextLoss(target, truth, store)
    objective = WindowObjective(
        model, store, answers, lambda: None, batch_size=len(TEXTS), tokens=12, seed=0, run_settings={}
    )
    (update,) = objective.updates(epoch=0, start=0)
    assert len(update.micro_batches) > 1
    loss = sum(objective.loss(part.payload) for part in update.micro_batches) / update.weight
    loss.backward()

    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    gradients = {}
    for rows, module, before in (
        (family.rows, model.encoder, ""),
        (family.head("sequence", checkpoint.settings).rows, model.head, "head."),
    ):
        # What takes no part (a vector for pre-training alone) has none; that it has none there either is seen below.
        ours = {before + name: value.grad for name, value in module.named_parameters() if value.grad is not None}
        gradients |= write_weights(rows, config, ours, "" if before else family.prefix)
    wanted = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    assert wanted.keys() == gradients.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(
            gradients[name], value, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
