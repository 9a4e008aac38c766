"""How the tests of this folder make, call and open the models of transformers."""

import inspect

import pytest
import torch
import transformers

from bothways.checkpoints.checkpoint import Checkpoint
from bothways.encoder.config import AbsolutePositions, DisentangledPositions, SharedGroups
from bothways.encoder.head_kinds import ChoiceLogit, Labels, LastToken, ScoreHeadKind
from bothways.families import FAMILIES
from tiny_models import TINY, padded, random_ids, random_types, scramble, tiny_config

# As many as the head has where it gives one score for each label, and as many as it needs where it does not.
CLASSES = 3
LABELS = {"id2label": {0: "ant", 1: "bee", 2: "cow"}, "label2id": {"ant": 0, "bee": 1, "cow": 2}}

ARCHITECTURES = [(model_type, name) for model_type, family in FAMILIES.items() for name in family.architectures]
every_architecture = pytest.mark.parametrize(("model_type", "architecture"), ARCHITECTURES)


def model_class(kind):
    """The class of transformers for the bare encoder, or for an architecture."""
    return transformers.AutoModel if kind == "encoder" else getattr(transformers, kind)


def oracle(model_type, kind, settings, spread=0.3):
    """A scrambled model of transformers with plain attention, in evaluation mode."""
    family = FAMILIES[model_type]
    kinds = [family.head(name, settings).kind for name in family.architectures.get(kind, ())]
    labelled = any(isinstance(head, ScoreHeadKind) and isinstance(head.scores, Labels) for head in kinds)
    config = transformers.AutoConfig.for_model(model_type, **settings, **(LABELS if labelled else {}))
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config) if kind == "encoder" else model_class(kind)(config)
    return scramble(model, seed=1, spread=spread)


def tiny_oracle(model_type, kind):
    return oracle(model_type, kind, TINY[model_type])


def in_memory(model_type, settings, model):
    """A checkpoint of a model that was never written."""
    family = FAMILIES[model_type]
    tensors = family.canonical(model.state_dict())
    return Checkpoint(None, model_type, None, settings, family, family.config(settings), tensors, {})


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


def opened(opener, folder, **options):
    """A model that transformers opens from a folder, which must have exactly the tensors that it looks for."""
    model, info = opener.from_pretrained(folder, output_loading_info=True, attn_implementation="eager", **options)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def scaled_difference(ours, theirs):
    """The largest difference as a share of the largest value, where that is above 1: sums that no norm keeps small."""
    return difference(ours, theirs) / max(1.0, theirs.abs().max().item())


def relative_difference(ours, theirs):
    """Norm of the difference over the norm of the oracle's."""
    return (torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)).item()


HEAD_LENGTHS = (1, 18, 6, 6, 11, 2)
CHOICES = 2


def head_inputs(model, model_type, kind):
    """Padded inputs for a head: ragged, one token and the most that a tiny model reads among them.

    A head that reads the last token gets its padding on the left: transformers takes the last column.
    """
    side = "left" if isinstance(getattr(kind, "read", None), LastToken) else "right"
    pad = TINY[model_type].get("pad_token_id", 0)
    ids_BS, mask_BS = padded(random_ids(HEAD_LENGTHS, seed=11), side, pad)
    inputs = {"input_ids": ids_BS, "attention_mask": mask_BS}
    if reads(model, "token_type_ids") and tiny_config(model_type).embedding.types != 1:
        inputs["token_type_ids"] = padded(random_types(HEAD_LENGTHS), side, 0)[0]
    if isinstance(kind, ScoreHeadKind) and isinstance(kind.scores, ChoiceLogit):
        inputs = {name: value.unflatten(0, (-1, CHOICES)) for name, value in inputs.items()}
    return inputs


def head_answers(heads, output):
    """The answers of transformers' output, one for each head in the order of ours."""
    if hasattr(output, "start_logits"):
        return [torch.stack([output.start_logits, output.end_logits], -1)]
    if len(heads) == 1:
        return [output.logits]
    return [output.prediction_logits, output.sop_logits if "sop_logits" in output else output.seq_relationship_logits]


def real_answers(answer, mask):
    """The rows of an answer that are no padding: those of real tokens, where it has a row for each token."""
    each_token = answer.dim() > 1 and answer.shape[:2] == mask.shape
    return real(answer, mask) if each_token else answer
