"""Tiny generators and discriminators, and a corpus for them."""

import pytest
import torch

from bothways.encoder import Encoder
from bothways.encoder.heads import new_head
from bothways.families import FAMILIES
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.replaced_tokens import DisentangledEmbeddings, OwnEmbeddings, ReplacedTokens, SharedEmbeddings
from tiny_models import TINY

SHARINGS = [OwnEmbeddings(), SharedEmbeddings(), DisentangledEmbeddings()]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GENERATOR = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
# As narrow models learn nothing for long from the usual spread of 0.02.
QUICK = {"initializer_range": 0.15, "embedding_size": 32}

every_sharing = pytest.mark.parametrize("sharing", SHARINGS, ids=lambda sharing: sharing.name)


def model_of(sharing, seed=0, model_type="electra", generator=None, **settings):
    """A discriminator of a family's tiny size, and a smaller generator."""
    torch.manual_seed(seed)
    family, own = FAMILIES[model_type], TINY[model_type] | settings
    smaller = own | GENERATOR | (generator or {})
    configs = family.config(smaller), family.config(own)
    # Only ELECTRA has a class for the discriminator's head.
    heads = FAMILIES["electra"].head("replaced_token", own).kind, family.head("masked_lm", smaller).kind
    return ReplacedTokens(
        Encoder(configs[0]),
        new_head(configs[0], heads[1]),
        Encoder(configs[1]),
        new_head(configs[1], heads[0]),
        embeddings=sharing,
    )


def objective_of(model, source, tokenizer, validation=None, batch_size=8, tokens=100, **masking):
    masker = Masker(tokenizer, Masking(**({"masked": 0.85, "random": 0.0} | masking)), 0)
    return PretrainingObjective.in_epochs(model, source, validation, masker, batch_size=batch_size, tokens=tokens)


def batches(objective, epoch=0):
    return [part.payload.batch for update in objective.updates(epoch, 0) for part in update.micro_batches]
