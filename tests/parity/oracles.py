"""How the tests of this folder make, call and open the models of transformers."""

import inspect

import torch
import transformers

from bothways.encoder.config import AbsolutePositions, DisentangledPositions, SharedGroups
from tiny_models import TINY, scramble, tiny_config

AUTO = {
    "encoder": transformers.AutoModel,
    "masked_lm": transformers.AutoModelForMaskedLM,
    "sequence": transformers.AutoModelForSequenceClassification,
}
CLASSES = 3


def oracle(model_type, kind, settings, spread=0.3):
    """A scrambled model of transformers with plain attention, in evaluation mode."""
    labels = {"num_labels": CLASSES} if kind == "sequence" else {}
    config = transformers.AutoConfig.for_model(model_type, **settings, **labels)
    return scramble(AUTO[kind].from_config(config, attn_implementation="eager"), seed=1, spread=spread)


def tiny_oracle(model_type, kind):
    return oracle(model_type, kind, TINY[model_type])


def counts_positions_itself(family):
    """Whether transformers counts a family's positions from the first real token on, as this package always does.

    RoBERTa and its heirs do, and where distances are all that counts it makes no difference. For the others
    transformers counts columns of the padded batch, padding included, so that a row padded on the left gets other
    positions than the same row alone; there the tests hand it the positions.
    """
    positions = tiny_config(family.model_type).positions
    match positions:
        case AbsolutePositions(offset=offset):
            return offset > 0
        case DisentangledPositions(absolute=absolute):
            return not absolute
        case _:
            return True


def reads(model, name):
    """Whether a model of transformers takes an argument."""
    return name in inspect.signature(model.forward).parameters


def call(family, model, ids_BS, mask_BS, types_BS=None, **options):
    """Outputs of a model of transformers, for padding on either side."""
    inputs = {"input_ids": ids_BS, "attention_mask": mask_BS, **options}
    if not counts_positions_itself(family):
        inputs["position_ids"] = (mask_BS.cumsum(1) - 1).clamp(min=0)
    if types_BS is not None and reads(model, "token_type_ids"):
        inputs["token_type_ids"] = types_BS
    return model(**inputs)


def layer_steps(config):
    """Layers that run at each step: transformers records a hidden state for each layer, this package for each step."""
    return config.sharing.inner if isinstance(config.sharing, SharedGroups) else 1


def real(values_BS, mask_BS):
    """The rows of real tokens of a padded tensor, end to end."""
    return values_BS[mask_BS.bool()]


def difference(ours, theirs):
    """Largest absolute difference, infinite where the shapes differ."""
    return float("inf") if ours.shape != theirs.shape else (ours - theirs).abs().max().item()


def opened(model_class, folder, **options):
    """A model that transformers opens from a folder, which must have exactly the tensors that it looks for."""
    model, info = model_class.from_pretrained(folder, output_loading_info=True, attn_implementation="eager", **options)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def scaled_difference(ours, theirs):
    """The largest difference as a share of the largest value, where that is above 1: sums that no norm keeps small."""
    return difference(ours, theirs) / max(1.0, theirs.abs().max().item())


def relative_difference(ours, theirs):
    """Norm of the difference over the norm of the oracle's."""
    return (torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)).item()
