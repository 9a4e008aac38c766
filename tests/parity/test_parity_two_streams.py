"""Two-stream attention and segment recurrence compute what XLNet of transformers computes."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from bothways.encoder.streams import Memory
from bothways.packing import pack
from tiny_models import VOCABULARY, order_of, padded, random_ids, random_types, targets_of

LENGTHS = (7, 19, 1, 12)
MEMORY = 5


def upstream_masks(orders, longest):
    """Permutation masks and target mappings for padding on the left."""
    most = max(int((order >= 0).sum()) for order in orders)
    hidden, mapping = torch.zeros(len(orders), longest, longest), torch.zeros(len(orders), most, longest)
    for number, order in enumerate(orders):
        begin = longest - len(order)
        hidden[number, begin:, begin:] = ((order[:, None] <= order) & (order >= 0)).float()
        for target, place in enumerate((order >= 0).nonzero().flatten().tolist()):
            mapping[number, target, begin + place] = 1.0
    return hidden, mapping


@pytest.fixture
def models(saved):
    from bothways.checkpoints import load

    theirs, folder = saved("xlnet", "XLNetLMHeadModel")
    return theirs, load(folder, heads=["permutation_lm"], device="cpu")


def logits_of(ours, packed, orders, **options):
    encoder = ours.encoder
    states = encoder(packed, queries=encoder.queries(*targets_of(orders)), **options)
    return ours.heads["permutation_lm"](states, encoder.embedding.tokens.weight)


@pytest.mark.parametrize("backend", [None, "reference", "padded", "skewed"])
@pytest.mark.parametrize("lengths", [(9,), (16, 16), LENGTHS])
def test_logits_and_loss_are_those_of_transformers(models, lengths, backend):
    theirs, ours = models
    # The one token of a sequence has nothing before it; upstream then attends to everything.
    lengths = tuple(length for length in lengths if length > 1)
    ids, types, orders = (
        random_ids(lengths),
        random_types(lengths),
        [order_of(length, seed) for seed, length in enumerate(lengths)],
    )
    longest = max(lengths)
    hidden, mapping = upstream_masks(orders, longest)
    ids_BS, mask_BS = padded(ids, "left", 0)
    types_BS, _ = padded(types, "left", 0)
    counts = [int((order >= 0).sum()) for order in orders]
    with torch.no_grad():
        logits_MV = logits_of(ours, pack(ids, types), orders, backend=backend)
        expected_BPV = theirs(
            input_ids=ids_BS,
            attention_mask=mask_BS,
            token_type_ids=types_BS,
            perm_mask=hidden,
            target_mapping=mapping,
        ).logits
    expected_MV = torch.cat([row[:count] for row, count in zip(expected_BPV, counts, strict=True)])
    assert (logits_MV - expected_MV).abs().max() < 1e-5 * expected_MV.abs().max().clamp(min=1)
    targets_M = torch.arange(len(logits_MV)) % VOCABULARY
    assert cross_entropy(logits_MV, targets_M).item() == pytest.approx(
        cross_entropy(expected_MV, targets_M).item(), rel=1e-5, abs=1e-5
    )


@pytest.mark.parametrize("two_streams", [False, True], ids=["content", "two streams"])
def test_memory_is_that_of_transformers(models, two_streams):
    theirs, ours = models
    lengths = (12, 12, 12)
    before, ids = random_ids([MEMORY] * 3, seed=5), random_ids(lengths)
    types = random_types(lengths)
    orders = [order_of(length, seed) for seed, length in enumerate(lengths)]
    hidden, mapping = upstream_masks(orders, 12)
    extra = {"perm_mask": hidden, "target_mapping": mapping} if two_streams else {}
    encoder, packed = ours.encoder, pack(ids, types)
    with torch.no_grad():
        mems = theirs(input_ids=torch.tensor(before), use_mems=True).mems
        expected = theirs(
            input_ids=torch.tensor(ids), token_type_ids=torch.tensor(types), mems=mems, use_mems=True, **extra
        ).logits.flatten(0, 1)
        states = tuple(each.transpose(0, 1).flatten(0, 1) for each in mems)
        memory = Memory((MEMORY,) * 3, states)
        if two_streams:
            logits = logits_of(ours, packed, orders, memory=memory)
        else:
            rows = encoder(packed, memory=memory)
            logits = ours.heads["permutation_lm"](rows, encoder.embedding.tokens.weight)
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)
