"""Packing and padding lose nothing and are each other's inverse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.packing import pack, to_padded, unpad
from tiny_models import padded

ids = st.integers(0, 2**40)
batches = st.lists(st.lists(ids, min_size=1, max_size=9), min_size=1, max_size=7)
pairs = batches.flatmap(
    lambda rows: st.tuples(
        st.just(rows), st.tuples(*(st.lists(st.integers(0, 1), min_size=len(r), max_size=len(r)) for r in rows))
    )
)


def assert_same(found, expected):
    assert found.lengths == expected.lengths
    for name in ("ids_T", "types_T", "positions_T", "cu_seqlens"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert getattr(found, name).dtype == getattr(expected, name).dtype, name


@given(pairs)
def test_packing_keeps_every_token_and_says_where_each_sequence_lies(pair):
    rows, types = pair
    packed = pack(rows, types)
    assert packed.lengths == tuple(map(len, rows))
    assert packed.max_length == max(map(len, rows))
    assert packed.cu_seqlens.dtype == torch.int32
    starts = packed.cu_seqlens.tolist()
    assert starts[0] == 0
    for index, (row, kinds) in enumerate(zip(rows, types, strict=True)):
        here = slice(starts[index], starts[index + 1])
        assert packed.ids_T[here].tolist() == row
        assert packed.types_T[here].tolist() == kinds
        assert packed.positions_T[here].tolist() == list(range(len(row)))
    assert packed.first_tokens_B.tolist() == starts[:-1]


@given(pairs, st.sampled_from(["left", "right"]))
def test_unpadding_gives_what_packing_gives(pair, side):
    rows, types = pair
    ids_BS, mask_BS = padded(rows, side, fill=7)
    types_BS, _ = padded(types, side, fill=1)
    assert_same(unpad(ids_BS, mask_BS, types_BS), pack(rows, types))


@given(batches)
def test_arrays_pack_like_lists(rows):
    assert_same(pack([np.array(row) for row in rows]), pack(rows))


@given(batches, st.integers(-5, 5))
def test_padding_again_gives_the_padded_batch_back(rows, fill):
    ids_BS, mask_BS = padded(rows, "right", fill)
    packed = unpad(ids_BS, mask_BS)
    assert torch.equal(to_padded(packed.ids_T, packed.lengths, fill), ids_BS)


@given(batches)
def test_padding_keeps_the_other_dimensions_and_fills_with_zeros(rows):
    packed = pack(rows)
    values_T23 = torch.randn(sum(packed.lengths), 2, 3)
    padded_BS23 = to_padded(values_T23, packed.lengths)
    assert padded_BS23.shape == (len(rows), packed.max_length, 2, 3)
    for row_S23, values_n23 in zip(padded_BS23, values_T23.split(packed.lengths), strict=True):
        assert torch.equal(row_S23[: len(values_n23)], values_n23)
        assert not row_S23[len(values_n23) :].any()


def test_without_a_mask_every_token_is_real():
    assert_same(unpad(torch.tensor([[4, 5], [6, 7]])), pack([[4, 5], [6, 7]]))


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32, torch.int32])
def test_any_kind_of_mask_will_do(mask_dtype):
    packed = unpad(torch.tensor([[4, 5], [6, 7]]), torch.tensor([[1, 0], [1, 1]]).to(mask_dtype))
    assert_same(packed, pack([[4], [6, 7]]))


def test_moving_a_batch_keeps_it():
    packed = pack([[4], [6, 7]])
    assert_same(packed.to("cpu"), packed)
    assert pack([[4], [6, 7]], device="meta").ids_T.device.type == "meta"


@pytest.mark.parametrize(
    ("rows", "types", "words"),
    [
        ([], None, "no sequence at all"),
        ([[5], []], None, "sequence 1 is empty"),
        ([[5, 6]], [[0]], "lengths of ids and types differ"),
        ([[5], [6]], [[0]], "lengths of ids and types differ"),
    ],
)
def test_what_cannot_be_packed_is_refused(rows, types, words):
    with pytest.raises(InvalidInput, match=words):
        pack(rows, types)


@pytest.mark.parametrize(
    ("ids", "mask", "types", "words"),
    [
        ([5, 6], None, None, r"must have the shape \(batch, sequence\), but it is \(2,\)"),
        ([[5, 6]], [[1]], None, r"attention_mask must have the shape of input_ids, \(1, 2\), but it is \(1, 1\)"),
        ([[5, 6]], None, [[0, 0, 0]], "token_type_ids must have the shape of input_ids"),
        ([[5, 6], [5, 6]], [[1, 1], [0, 0]], None, "keep at least one token"),
        ([[5, 6, 7]], [[1, 0, 1]], None, "some row has a gap"),
        ([[]], None, None, "keep at least one token"),
    ],
)
def test_what_cannot_be_unpadded_is_refused(ids, mask, types, words):
    tensors = [None if value is None else torch.tensor(value) for value in (ids, mask, types)]
    with pytest.raises(InvalidInput, match=words):
        unpad(*tensors)


@given(batches, st.sampled_from(["left", "right"]))
def test_what_a_batch_says_of_itself_is_counted_from_its_rows(rows, side):
    ids_BS, mask_BS = padded(rows, side, fill=7)
    packed = unpad(ids_BS, mask_BS)
    lengths = [len(row) for row in rows]
    assert (packed.count, packed.max_length, packed.lengths_B.tolist()) == (len(rows), max(lengths), lengths)
    assert packed.sequence_T.tolist() == [index for index, length in enumerate(lengths) for _ in range(length)]
    assert packed.first_tokens_B.tolist() == [sum(lengths[:index]) for index in range(len(rows))]
    assert packed.last_tokens_B.tolist() == [sum(lengths[: index + 1]) - 1 for index in range(len(rows))]
    assert packed.real_BS.tolist() == [[place < length for place in range(max(lengths))] for length in lengths]


@given(batches)
def test_rows_of_the_padded_form_are_the_packed_ones_and_sums_are_those_of_each_sequence(rows):
    packed = pack(rows)
    values_T3 = torch.randn(sum(packed.lengths), 3)
    assert torch.equal(packed.rows(packed.padded(values_T3, fill=9.0)), values_T3)
    assert packed.blanked(values_T3) is values_T3
    expected_B3 = torch.stack([part.sum(0) for part in values_T3.split(packed.lengths)])
    torch.testing.assert_close(packed.sums(values_T3), expected_B3)


def test_a_reach_hides_something_where_two_tokens_are_further_apart():
    packed = pack([[5, 6, 7, 8], [9]])
    assert [packed.hides(reach) for reach in (1, 2, 3, 4)] == [True, True, False, False]


def test_what_was_worked_out_once_is_kept_and_not_shown():
    packed, calls = pack([[5, 6], [7]]), []

    def work(batch, factor):
        calls.append(factor)
        return batch.lengths_B * factor

    with torch.inference_mode():
        first = packed.once(work, 2)
    assert packed.once(work, 2) is first
    assert packed.once(work, 3).tolist() == [6, 3]
    assert calls == [2, 3]
    assert not first.is_inference()
    assert "work" not in repr(packed)
