"""Two streams: who sees whom in a factorisation order, plain loops as the oracle, and memories before sequences."""

from dataclasses import replace

import pytest
import torch

from bothways.encoder import Recorder
from bothways.encoder.attention import BACKENDS, REFERENCE
from bothways.encoder.backends.basic import AttentionCall, RelativeScores
from bothways.encoder.streams import Memory, Targets, attend_before
from bothways.errors import InvalidInput, UnsupportedAttention, UnsupportedConfig
from bothways.packing import pack
from cuda_emulation import emulated_cuda, no_waits
from tiny_models import order_of, random_ids, random_types, targets_of, tiny_encoder

HEADS, WIDTH = 2, 4
LENGTHS = (6, 1, 11)


def call_of(lengths, order_T=None, seed=0, **changes):
    """A call with every term of relative scores, in double precision, and the tensors that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    width = 2 * max(lengths) - 1
    shapes = [(sum(lengths), 3, HEADS, WIDTH), (width, HEADS, WIDTH), (width, HEADS, WIDTH), (HEADS, WIDTH)]
    shapes.append((sum(lengths), HEADS))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    packed = pack([[7] * length for length in lengths], random_types(lengths))
    call = AttentionCall(tensors[0], packed, 0.3, relative=RelativeScores(*tensors[1:]), order_T=order_T)
    return replace(call, **changes), tensors


def gradients_of(context, tensors):
    weights = torch.linspace(-1, 1, context.numel(), dtype=torch.float64).view_as(context)
    return torch.autograd.grad((context * weights).sum(), tensors, allow_unused=True)


@pytest.mark.parametrize("name", ["skewed", "padded"])
@pytest.mark.parametrize("lengths", [LENGTHS, (150, 70)])
def test_backends_mask_by_the_order_as_the_reference_does(name, lengths):
    order_T = torch.cat([order_of(length, seed) for seed, length in enumerate(lengths)])
    results = []
    for backend in (BACKENDS[name], REFERENCE):
        call, tensors = call_of(lengths, order_T)
        context = backend.attend(call)
        results.append((context, *gradients_of(context, tensors)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)


def test_other_backends_refuse_orders():
    encoder, ids = tiny_encoder("xlnet"), random_ids((5,))
    packed = pack(ids)
    queries = encoder.queries(*targets_of([order_of(5)]))
    for name in BACKENDS.keys() - {"reference", "padded", "skewed"}:
        with pytest.raises(UnsupportedAttention, match=name):
            encoder(packed, queries=queries, backend=name)


def looped(q_MND, rows_M, call, gain_MN):
    """Context of each target, one pair and one head after another."""
    packed, relative, contexts = call.packed, call.relative, []
    longest, sequence_T, place_T = packed.max_length, packed.sequence_T, packed.positions_T
    for number, row in enumerate(rows_M.tolist()):
        seen = [other for other in range(len(place_T)) if sequence_T[other] == sequence_T[row]]
        seen = [other for other in seen if call.order_T[other] < call.order_T[row]]
        if call.reach is not None:
            seen = [other for other in seen if abs(int(place_T[other] - place_T[row])) <= call.reach]
        if not seen:
            contexts.append(torch.zeros_like(q_MND[number]))
            continue
        scores = []
        for other in seen:
            distance = int(place_T[row] - place_T[other]) + longest - 1
            key = call.qkv_T3ND[other, 1]
            score = (q_MND[number] * key).sum(-1)
            score = score + ((q_MND[number] + relative.shift_ND) * relative.keys_WND[distance]).sum(-1)
            score = score + (key * relative.queries_WND[distance]).sum(-1)
            if packed.types_T[row] != packed.types_T[other]:
                score = score + gain_MN[number]
            scores.append(score * call.scale)
        weights = torch.stack(scores).softmax(0)
        contexts.append((weights[..., None] * call.qkv_T3ND[seen, 2]).sum(0))
    return torch.stack(contexts)


@pytest.mark.parametrize("reach", [None, 2])
def test_queries_equal_a_plain_loop_and_its_gradients(reach):
    rows_M, counts, order_T = targets_of([order_of(length, seed) for seed, length in enumerate(LENGTHS)])
    call, tensors = call_of(LENGTHS, order_T, reach=reach)
    q_MND = torch.randn(len(rows_M), HEADS, WIDTH, dtype=torch.float64).requires_grad_()
    gain_MN = torch.randn(len(rows_M), HEADS, dtype=torch.float64).requires_grad_()
    call = replace(call, relative=replace(call.relative, gain_TN=gain_MN))
    ours = attend_before(q_MND, Targets.of(rows_M, counts, order_T, call.packed), call)
    expected = looped(q_MND, rows_M, call, gain_MN)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    wanted = [q_MND, gain_MN, *tensors[:4]]
    for gradient, other in zip(gradients_of(ours, wanted), gradients_of(expected, wanted), strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-12)


def test_a_target_with_nothing_before_it_gets_zeros_and_a_finite_gradient():
    order_T = torch.tensor([1, 0, 2])
    call, tensors = call_of((3,), order_T)
    rows_M = torch.arange(3)
    context = attend_before(call.qkv_T3ND[:, 0], Targets.of(rows_M, (3,), order_T, call.packed), call)
    assert not context[1].any()
    assert context[0].any()
    assert all(gradient.isfinite().all() for gradient in gradients_of(context, tensors))


@pytest.mark.parametrize("backend", ["reference", "padded", "skewed"])
def test_a_prediction_depends_on_the_tokens_before_its_target_alone(backend):
    """To the bit, on the target's own token and on those behind it; on all others it does depend."""
    encoder = tiny_encoder("xlnet")
    lengths = (9, 5)
    orders = [order_of(length, 3) for length in lengths]
    rows_M, counts, order_T = targets_of(orders)
    ids = torch.tensor([each for row in random_ids(lengths) for each in row])

    def states(ids_T):
        packed = pack([each.tolist() for each in ids_T.split(lengths)])
        queries = encoder.queries(rows_M, counts, order_T)
        return encoder(packed, queries=queries, backend=backend)

    sequence_T = torch.arange(2).repeat_interleave(torch.tensor(lengths))
    with torch.no_grad():
        before = states(ids)
        for changed in range(len(ids)):
            other = ids.clone()
            other[changed] = 5 + (ids[changed] - 4) % 40
            after = states(other)
            for number, row in enumerate(rows_M.tolist()):
                sees = sequence_T[row] == sequence_T[changed] and order_T[changed] < order_T[row]
                assert torch.equal(before[number], after[number]) != bool(sees)


def test_an_encoder_without_the_vector_has_no_query_stream():
    with pytest.raises(UnsupportedConfig, match="query stream"):
        tiny_encoder("bert").queries(*targets_of([order_of(4)]))


@pytest.mark.parametrize("model_type", ["xlnet", "modernbert"])
def test_memories_of_different_lengths_equal_each_sequence_alone(model_type):
    """A sequence of length 0 before another one is no memory, and positions go on from it."""
    encoder = tiny_encoder(model_type)
    before, lengths = (4, 0, 7), (5, 3, 6)
    ids = random_ids(lengths)
    with torch.no_grad():
        states = []
        for number, length in enumerate(before):
            recorder = Recorder()
            if length:
                encoder(pack(random_ids([length], seed=number + 1)), record=recorder)
            states.append(recorder.hidden_states[:-1])
        layers = range(encoder.config.layers)
        joined = tuple(torch.cat([each[layer] for each in states if each]) for layer in layers)
        packed = pack(ids)
        found = encoder(packed, memory=Memory(before, joined)).split(lengths)
        for number, length in enumerate(before):
            alone = pack(ids[number : number + 1])
            own = Memory((length,), tuple(states[number])) if length else None
            expected = encoder(alone, memory=own)
            torch.testing.assert_close(found[number], expected, rtol=0, atol=2e-5)


def test_a_memory_of_another_batch_is_refused():
    encoder, packed = tiny_encoder("xlnet"), pack(random_ids((4, 5)))
    hidden = encoder.embedding(packed)
    for memory in (Memory((2,), (torch.zeros(2, 24),) * 3), Memory((1, 1), (torch.zeros(2, 24),) * 2)):
        with pytest.raises(InvalidInput, match="expected a memory of 2 sequences and 3 layers"):
            encoder(packed, hidden_TH=hidden, memory=memory)
    with pytest.raises(InvalidInput, match="expected 2 rows"):
        encoder(packed, hidden_TH=hidden, memory=Memory((1, 1), (torch.zeros(3, 24),) * 3))


def test_no_gradient_goes_back_to_a_memory():
    encoder, packed = tiny_encoder("xlnet"), pack(random_ids((4,)))
    states = tuple(torch.randn(3, 24, requires_grad=True) for _ in range(3))
    encoder(packed, memory=Memory((3,), states)).sum().backward()
    assert all(state.grad is None for state in states)


def test_a_gpu_does_not_wait_for_the_streams(monkeypatch):
    encoder, packed = tiny_encoder("xlnet").train(), pack(random_ids(LENGTHS))
    orders = [order_of(length, seed) for seed, length in enumerate(LENGTHS)]
    rows_M, counts, order_T = targets_of(orders)
    memory = Memory((2, 0, 1), (torch.randn(3, 24),) * 3)
    with emulated_cuda(monkeypatch), no_waits(), torch.autocast("cpu", torch.bfloat16):
        queries = encoder.queries(rows_M, counts, order_T)
        states = encoder(packed, queries=queries, memory=memory)
    assert states.isfinite().all()
