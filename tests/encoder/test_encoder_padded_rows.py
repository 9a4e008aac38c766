"""A batch that keeps its padding gives the hidden states and logits of one without, for every family."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from bothways.encoder import Recorder
from bothways.encoder.attention import BACKENDS, choose
from bothways.encoder.backends.basic import AttentionRequest
from bothways.encoder.heads import head_logits, new_head
from bothways.errors import UnsupportedAttention
from bothways.families import FAMILIES
from bothways.packing import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, PaddedRows, SelectedRows, pack, unpad
from cuda_emulation import NoWaitsInside
from tiny_models import TINY, every_family, padded, random_ids, random_types, scramble, tiny_encoder

LENGTHS = (4, 1, 9)
# On a CPU these serve some families or none.
NOT_FOR_ALL = ("varlen", "sdpa", "grouped", "skewed", "local", "flex")
HEADS = [(model_type, name) for model_type, family in FAMILIES.items() for name in family.heads]


def batch(model_type, side, lengths=LENGTHS):
    """Padded ids, mask and types, and the same batch packed."""
    ids_BS, mask_BS = padded(random_ids(lengths), side, fill=0)
    types = random_types(lengths) if FAMILIES[model_type].config(TINY[model_type]).embedding.types != 1 else None
    types_BS = torch.zeros_like(ids_BS) if types is None else padded(types, side, fill=0)[0]
    return PaddedRows.of(ids_BS, mask_BS, types_BS), unpad(ids_BS, mask_BS, types_BS)


@every_family
@pytest.mark.parametrize(("rows", "side"), [(ALL_ROWS, "right"), (FIRST_TOKENS, "left"), (LAST_TOKENS, "left")])
def test_hidden_states_do_not_depend_on_padding_or_its_side(model_type, rows, side):
    encoder = tiny_encoder(model_type)
    kept, packed = batch(model_type, side)
    with torch.no_grad():
        found = encoder(kept, rows=rows, backend="padded")
        found = found[kept.mask_BS.flatten()] if rows == ALL_ROWS else found
        torch.testing.assert_close(found, encoder(packed, rows=rows), rtol=0, atol=1e-5)


def test_single_rows_are_counted_with_the_padding():
    encoder = tiny_encoder()
    kept, packed = batch("bert", "right")
    with torch.no_grad():
        found = encoder(kept, rows=SelectedRows(torch.tensor([9, 18])), backend="padded")
        torch.testing.assert_close(found, encoder(packed, rows=SelectedRows(torch.tensor([4, 5]))), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "name", "settings", "side"),
    [*((*each, {}, "right") for each in HEADS), ("modernbert", "sequence", {"classifier_pooling": "mean"}, "left")],
)
def test_logits_do_not_depend_on_padding(model_type, name, settings, side):
    encoder = tiny_encoder(model_type)
    kind = FAMILIES[model_type].head(name, TINY[model_type] | settings).kind
    head = scramble(new_head(encoder.config, kind, labels=3), 1)
    kept, packed = batch(model_type, side, (4, 1, 9, 9))
    with torch.no_grad():
        found = head_logits(head, encoder, kept, hidden_TH=encoder(kept, backend="padded"), choices=2)
        torch.testing.assert_close(found, head_logits(head, encoder, packed, choices=2), rtol=0, atol=1e-5)


def test_any_number_but_zero_marks_a_token():
    ids_BS = torch.tensor([[5, 6, 7]])
    kept = PaddedRows.of(ids_BS, torch.tensor([[2, 5, 0]]))
    assert kept.positions_T.tolist() == [0, 1, 1]
    assert kept.lengths_B.tolist() == [2]
    assert kept.mask_BS.tolist() == [[True, True, False]]


@every_family
@pytest.mark.parametrize("rows", [ALL_ROWS, FIRST_TOKENS])
def test_every_backend_computes_or_refuses_a_batch_of_either_kind(model_type, rows):
    """The best is taken where none is named; a named one gives the numbers of the reference, or the reason why not."""
    encoder = tiny_encoder(model_type)
    for backend in (None, *BACKENDS):
        kept, packed = batch(model_type, "left")
        expected = encoder(packed, rows=rows, backend="reference")
        try:
            torch.testing.assert_close(encoder(packed, rows=rows, backend=backend), expected, rtol=0, atol=1e-5)
        except UnsupportedAttention:
            assert backend in NOT_FOR_ALL
        if backend in (None, "padded"):
            found = encoder(kept, rows=rows, backend=backend)
            found = found[kept.mask_BS.flatten()] if rows == ALL_ROWS else found
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        else:
            words = "CUDA device" if backend == "flex" else "needs a batch without padding"
            with pytest.raises(UnsupportedAttention, match=f"{backend!r} cannot serve this call: .*{words}.* 'padded'"):
                encoder(kept, rows=rows, backend=backend)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_padding_is_served_by_the_padded_backend_alone(device, dropout):
    request = AttentionRequest(device, torch.float32, 64, dropout, weights=False, padding=True)
    assert choose(request).name == "padded"
    for local, relative in product((False, True), repeat=2):
        request = replace(request, local=local, relative=relative)
        assert [name for name, backend in BACKENDS.items() if backend.refusal(request) is None] == ["padded"]


def test_attention_weights_of_a_padded_batch_are_refused_by_name():
    kept, _ = batch("bert", "right")
    for backend, words in ((None, "'reference': it needs a batch without"), ("padded", "does not return attention")):
        with pytest.raises(UnsupportedAttention, match=words):
            tiny_encoder()(kept, backend=backend, record=Recorder(attentions=True))


def test_hidden_states_of_a_padded_batch_are_recorded():
    kept, _ = batch("bert", "right")
    encoder, record = tiny_encoder(), Recorder()
    assert torch.equal(encoder(kept, record=record), record.hidden_states[-1])
    assert len(record.hidden_states) == encoder.config.layers + 1


def test_what_is_known_of_a_packed_batch_is_that_of_its_padded_form():
    ids_BS, mask_BS = padded(random_ids(LENGTHS), "right", fill=0)
    kept, packed = PaddedRows.of(ids_BS, mask_BS), pack(random_ids(LENGTHS))
    assert (packed.count, packed.max_length) == (kept.count, kept.max_length) == (3, 9)
    assert torch.equal(packed.lengths_B, kept.lengths_B)
    assert torch.equal(packed.real_BS, kept.real_BS)
    assert torch.equal(packed.sequence_T, kept.sequence_T[mask_BS.flatten() == 1])
    assert torch.equal(packed.sums(packed.ids_T[:, None]), kept.sums(kept.ids_T[:, None]))


@every_family
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_was_read_in_inference_mode_can_be_trained_on(model_type, backend):
    encoder = tiny_encoder(model_type)
    _, packed = batch(model_type, "right")

    def both():
        return packed.sums(encoder(packed, backend=backend)), encoder(packed, rows=FIRST_TOKENS, backend=backend)

    try:
        with torch.inference_mode():
            expected = both()
    except UnsupportedAttention:
        assert backend in NOT_FOR_ALL
        return
    found = both()
    (found[0].sum() + found[1].sum()).backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@every_family
@pytest.mark.parametrize("training", [False, True])
def test_no_layer_waits_for_the_device(model_type, training):
    encoder = tiny_encoder(model_type).train(training)
    for read, backend, rows in product(batch(model_type, "right"), (None, *BACKENDS), (ALL_ROWS, FIRST_TOKENS)):
        try:
            with NoWaitsInside():
                encoder(read, rows=rows, backend=backend)
        except UnsupportedAttention:
            assert backend is not None


def test_waiting_would_be_seen():
    packed = pack(random_ids(LENGTHS))
    for wait in (lambda: packed.ids_T[0].item(), lambda: packed.ids_T[packed.ids_T > 3], packed.ids_T.nonzero):
        with pytest.raises(AssertionError, match="waits"), NoWaitsInside():
            wait()
