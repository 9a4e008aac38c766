"""A batch that keeps its padding gives the hidden states and logits of one without, for every family."""

import pytest
import torch

from bothways.encoder.heads import head_logits, logits_from, new_head
from bothways.encoder.padded_rows import PaddedRows
from bothways.encoder.rows import FIRST_TOKENS, LAST_TOKENS, SelectedRows
from bothways.families import FAMILIES
from bothways.packing import pack, unpad
from tiny_models import TINY, every_family, padded, random_ids, random_types, scramble, tiny_encoder

LENGTHS = (4, 1, 9)
HEADS = [(model_type, name) for model_type, family in FAMILIES.items() for name in family.heads]


def batch(model_type, side, lengths=LENGTHS):
    """Padded ids, mask and types, and the same batch packed."""
    ids_BS, mask_BS = padded(random_ids(lengths), side, fill=0)
    types = random_types(lengths) if FAMILIES[model_type].config(TINY[model_type]).embedding.types != 1 else None
    types_BS = torch.zeros_like(ids_BS) if types is None else padded(types, side, fill=0)[0]
    return PaddedRows.of(ids_BS, mask_BS, types_BS), unpad(ids_BS, mask_BS, types_BS)


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_hidden_states_do_not_depend_on_padding_or_its_side(model_type, side):
    encoder = tiny_encoder(model_type)
    kept, packed = batch(model_type, side)
    with torch.no_grad():
        found = encoder(kept, backend="padded")[kept.mask_BS.flatten()]
        torch.testing.assert_close(found, encoder(packed), rtol=0, atol=1e-5)


@every_family
@pytest.mark.parametrize("rows", [FIRST_TOKENS, LAST_TOKENS])
def test_the_rows_that_are_read_are_those_of_real_tokens(model_type, rows):
    encoder = tiny_encoder(model_type)
    kept, packed = batch(model_type, "left")
    with torch.no_grad():
        found = encoder(kept, rows=rows, backend="padded")
        torch.testing.assert_close(found, encoder(packed, rows=rows), rtol=0, atol=1e-5)


def test_single_rows_are_counted_with_the_padding():
    encoder = tiny_encoder()
    kept, packed = batch("bert", "right")
    with torch.no_grad():
        found = encoder(kept, rows=SelectedRows(torch.tensor([9, 18])), backend="padded")
        torch.testing.assert_close(found, encoder(packed, rows=SelectedRows(torch.tensor([4, 5]))), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("model_type", "name"), HEADS)
def test_logits_do_not_depend_on_padding(model_type, name):
    encoder = tiny_encoder(model_type)
    family = FAMILIES[model_type]
    head = scramble(new_head(encoder.config, family.head(name, TINY[model_type]).kind, labels=3), 1)
    kept, packed = batch(model_type, "right", (4, 1, 9, 9))
    with torch.no_grad():
        found = logits_from(head, encoder, kept, encoder(kept, backend="padded"), choices=2)
        torch.testing.assert_close(found, head_logits(head, encoder, packed, choices=2), rtol=0, atol=1e-5)


def test_a_mean_counts_real_tokens_alone():
    settings = TINY["modernbert"] | {"classifier_pooling": "mean"}
    encoder = tiny_encoder("modernbert")
    head = scramble(new_head(encoder.config, FAMILIES["modernbert"].head("sequence", settings).kind, labels=3), 1)
    kept, packed = batch("modernbert", "left")
    with torch.no_grad():
        found = logits_from(head, encoder, kept, encoder(kept, backend="padded"))
        torch.testing.assert_close(found, head_logits(head, encoder, packed), rtol=0, atol=1e-5)


def test_any_number_but_zero_marks_a_token():
    ids_BS = torch.tensor([[5, 6, 7]])
    kept = PaddedRows.of(ids_BS, torch.tensor([[2, 5, 0]]))
    assert kept.positions_T.tolist() == [0, 1, 1]
    assert kept.lengths_B.tolist() == [2]
    assert kept.to("cpu").mask_BS.tolist() == [[True, True, False]]


def test_a_backend_that_needs_lengths_on_the_host_does_not_run_on_padding():
    kept, _ = batch("bert", "right")
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        tiny_encoder()(kept, backend="reference")


def test_what_is_known_of_a_packed_batch_is_that_of_its_padded_form():
    ids_BS, mask_BS = padded(random_ids(LENGTHS), "right", fill=0)
    kept, packed = PaddedRows.of(ids_BS, mask_BS), pack(random_ids(LENGTHS))
    assert (packed.count, packed.max_length) == (kept.count, kept.max_length) == (3, 9)
    assert torch.equal(packed.lengths_B, kept.lengths_B)
    assert torch.equal(packed.real_BS, kept.real_BS)
    assert torch.equal(packed.sequence_T, kept.sequence_T[mask_BS.flatten() == 1])
    assert torch.equal(packed.sums(packed.ids_T[:, None]), kept.sums(kept.ids_T[:, None]))
