"""Lanes: what rows of the updates read on, what they remember of it, and what transformers computes from the same."""

from collections import Counter
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from corpora import random_documents, write_corpus

from bothways.checkpoints import load
from bothways.errors import InvalidInput
from bothways.objectives.corpus import CorpusPieces, EitherDocument, NextSentence, SegmentPairs
from bothways.objectives.permutation_lm import Permutation, PermutationLM, Permuter
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.sequences import micro_batches
from bothways.objectives.streams import Lanes, PhasedStream, StreamPhase
from tiny_models import write_checkpoint

LENGTH, MEMORY, STEPS = 14, 16, 5


@pytest.fixture(scope="module")
def corpus(xlnet, tmp_path_factory):
    """Documents of one sentence to some thirty."""
    documents = [*random_documents(0, 5, sentences=30), *random_documents(1, 5, sentences=2)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), xlnet, documents)


@pytest.fixture(scope="module", params=["pieces", "pairs"])
def source(request, xlnet, corpus):
    if request.param == "pieces":
        return CorpusPieces.of(corpus, xlnet, LENGTH)
    return SegmentPairs.of(corpus, xlnet, LENGTH, EitherDocument(), 0)


@pytest.fixture
def models(tmp_path):
    """The model of transformers, and ours with the same weights."""
    write_checkpoint(tmp_path, "xlnet", architecture="XLNetLMHeadModel")
    opened = load(tmp_path, heads=["permutation_lm"], device="cpu")
    ours = PermutationLM(opened.encoder, opened.heads["permutation_lm"]).eval()
    return transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval(), ours


def objective_of(model, tokenizer, source, lanes=4, tokens=400, validation=None):
    stream = PhasedStream([StreamPhase(source, 2 * STEPS, lanes, MEMORY)], 0)
    permuter = Permuter(tokenizer, Permutation(), 0)
    return PretrainingObjective(model, stream, validation, permuter, updates_per_epoch=STEPS, tokens=tokens)


def batches(update):
    return [each.payload.batch for each in update.micro_batches]


def read(lanes, steps):
    """Sequences of each lane, update by update."""
    by_lane = {}
    for update in range(steps):
        for lane, part in enumerate(lanes.read(update)):
            by_lane.setdefault(lane, []).append(part.sequences)
    return by_lane


@pytest.mark.parametrize("count", [1, 4, 5, 40])
def test_a_lap_reads_all_text_once_in_each_direction(source, count):
    lanes = Lanes(source, count, MEMORY, 3)
    steps = -(-len(source) // (count - count // 2))
    read_by = read(lanes, steps)
    for backward in (False, True):
        counts = Counter(
            each.number
            for sequences in read_by.values()
            for update in sequences
            for each in update
            if each.link.backward == backward
        )
        # Of an odd number of lanes, one is not read backward.
        if count % 2 and backward:
            assert len(counts) < source.framed.pieces.count
        else:
            assert counts.keys() == set(range(source.framed.pieces.count))
            assert max(counts.values()) - min(counts.values()) <= 1


def test_an_update_does_not_depend_on_those_before_it(source):
    def update(lanes, number):
        return [(part.epoch, [each.ids.tolist() for each in part.sequences]) for part in lanes.read(number)]

    whole = Lanes(source, 4, MEMORY, 3)
    expected = [update(whole, number) for number in range(30)]
    assert [update(Lanes(source, 4, MEMORY, 3), number) for number in reversed(range(30))] == expected[::-1]
    assert expected != [update(Lanes(source, 4, MEMORY, 4), number) for number in range(30)]


def test_a_memory_is_of_the_text_that_stands_beside_a_sequence(source):
    pieces = source.framed.pieces
    linked = 0
    for updates in read(Lanes(source, 4, MEMORY, 3), 30).values():
        for before, now in pairwise(updates):
            first, last = now[0], before[-1]
            assert (first.link.read > 0) == (last.link.kept > 0)
            assert not any(each.link.read for each in now[1:])
            assert not any(each.link.kept for each in now[:-1])
            if not first.link.read:
                continue
            linked += 1
            earlier, later = (first, last) if first.link.backward else (last, first)
            assert later.number == earlier.number + 1
            assert pieces.document_P[later.number] == pieces.document_P[earlier.number]
    assert linked > 20
    assert not any(part.sequences[0].link.read for part in Lanes(source, 4, MEMORY, 3).read(0))


def test_backward_sequences_are_mirror_images(xlnet, corpus):
    pieces = CorpusPieces.of(corpus, xlnet, LENGTH)
    cls, sep = xlnet.cls_id, xlnet.sep_id
    backward = pieces.read_group(0, 0, backward=True)
    forward = pieces.read_group(0, 0, backward=False)
    assert [each.number for each in backward] == [each.number for each in forward][::-1]
    for one, other in zip(forward, backward[::-1], strict=True):
        assert one.ids.tolist() == [*one.ids[one.text], sep, cls]
        assert other.ids.tolist() == [cls, sep, *one.ids[one.text]]
        assert other.types.tolist() == one.types[::-1].tolist()
        assert other.ids[other.text].tolist() == one.ids[one.text].tolist()


def test_backward_pairs_have_their_first_segment_last(xlnet, corpus):
    pairs = SegmentPairs.of(corpus, xlnet, LENGTH, NextSentence(), 0)
    cls, sep = xlnet.cls_id, xlnet.sep_id
    seen = Counter()
    for place in range(len(pairs)):
        for each in pairs.read_group(place, 1, backward=True):
            whole = pairs.framed.tokens(each.number).tolist()
            ids, own = each.ids.tolist(), each.ids[each.text].tolist()
            seen[each.relation] += 1
            if each.relation < 0:
                assert ids == [cls, sep, *whole]
                continue
            assert (ids[:2], each.types.tolist()[:2]) == ([cls, sep], [2, 1])
            middle = ids.index(sep, 2)
            second, first = ids[2:middle], ids[middle + 1 :]
            assert each.types[2:].tolist() == [1] * len(second) + [0] * (1 + len(first))
            assert own == (whole if each.relation == 0 else first)
            assert second + first == whole if each.relation == 0 else whole[-len(first) :] == first
    assert abs(seen[0] - seen[1]) <= 1


class Upstream:
    """A lane as transformers reads it: batches of two, of which a backward lane is the second."""

    def __init__(self, model, backward):
        self.model, self.backward, self.mems = model, backward, None
        model.transformer.mem_len = MEMORY

    def logits(self, ids, types, order, text, read):
        """Logits of the targets, first to last."""
        if self.backward:  # upstream reads the mirror image, with negative distances
            ids, types, order = (each.flip(0) for each in (ids, types, order))
        self.model.transformer.bi_data = self.backward
        self.model.transformer.reuse_len = len(text)
        targets = [place for place in (order >= 0).nonzero().flatten().tolist() if ids[place] > 4]
        mapping = torch.nn.functional.one_hot(torch.tensor(targets), len(ids)).float()
        hidden = ((order[:, None] <= order) & (order >= 0)).float()
        found = self.model(
            input_ids=ids.expand(2, -1),
            token_type_ids=types.expand(2, -1),
            perm_mask=hidden.expand(2, -1, -1),
            target_mapping=mapping.expand(2, -1, -1),
            mems=self.mems if read else None,
            use_mems=True,
        )
        self.mems = found.mems
        logits = found.logits[int(self.backward)]
        return logits.flip(0) if self.backward else logits


def test_logits_over_consecutive_updates_are_those_of_transformers(models, xlnet, corpus):
    theirs, ours = models
    source = CorpusPieces.of(corpus, xlnet, LENGTH)
    objective = objective_of(ours, xlnet, source, lanes=4)
    upstream = [Upstream(theirs, backward) for backward in (False, False, True, True)]
    compared = Counter()
    for update in objective.updates(0, 0):
        for batch in batches(update):
            with torch.no_grad():
                logits = ours(batch).split(batch.counts)
            parts = zip(
                *(values.split(batch.packed.lengths) for values in (batch.packed.ids_T, batch.packed.types_T)),
                batch.order_T.split(batch.packed.lengths),
                batch.texts,
                batch.links,
                logits,
                strict=True,
            )
            for ids, types, order, text, link, found in parts:
                # Upstream attends to everything where a target has nothing before it.
                if not (link.read or link.kept) or len(text) == 1:
                    continue
                with torch.no_grad():
                    expected = upstream[link.lane].logits(ids, types, order, text, link.read > 0)
                if link.read:
                    compared[link.backward] += 1
                    assert (found - expected).abs().max() < 1e-5
    assert min(compared[False], compared[True]) > 3


def test_memories_do_not_depend_on_micro_batches(models, xlnet, source):
    _, ours = models
    found = []
    for tokens in (1, 1000):
        objective = objective_of(ours, xlnet, source, tokens=tokens)
        losses, sizes = [], set()
        for update in objective.updates(0, 0):
            sizes.add(len(update.micro_batches))
            with torch.no_grad():
                losses.append(sum(float(objective.loss(each.payload)) for each in update.micro_batches))
        found.append((losses, dict(objective.carried())))
        assert sizes == {1} if tokens == 1000 else min(sizes) > 1, sizes
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[0][1].keys() == found[1][1].keys() != set()
    for name, memory in found[0][1].items():
        torch.testing.assert_close(memory, found[1][1][name], rtol=0, atol=1e-5)


def test_a_memory_is_no_longer_than_asked_for_and_has_no_gradient(models, xlnet, source):
    _, ours = models
    objective = objective_of(ours, xlnet, source)
    lengths = set()
    for update in objective.updates(0, 0):
        for batch in batches(update):
            ours(batch)
        for memory in objective.carried().values():
            assert not memory.requires_grad
            assert memory.shape[0] == ours.encoder.config.layers
            lengths.add(memory.shape[1])
    assert max(lengths) == MEMORY > LENGTH
    assert min(lengths) < MEMORY


def test_updates_must_be_read_in_order(models, xlnet, source):
    objective = objective_of(models[1], xlnet, source)
    with pytest.raises(InvalidInput, match=r"lane \d has no memory .* in order"):
        for batch in batches(next(objective.updates(0, 1))):
            models[1](batch)


def test_states_that_are_not_finite_are_forgotten(models, xlnet, source):
    _, ours = models
    objective = objective_of(ours, xlnet, source)
    first, second = ([*batches(update)] for update in islice(objective.updates(0, 0), 2))
    weights = ours.encoder.embedding.tokens.weight.data
    before = weights.clone()
    weights.fill_(float("nan"))
    for batch in first:
        assert not ours(batch).isfinite().any()
    weights.copy_(before)
    for batch in second:
        assert ours(batch).isfinite().all()


def test_validation_leaves_memories_as_they_are(models, xlnet, corpus):
    source, held_out = SegmentPairs.of(corpus, xlnet, LENGTH, EitherDocument(), 0).hold_out(0.3, 0)
    objective = objective_of(models[1], xlnet, source, validation=held_out)
    with torch.no_grad():
        expected = objective.validate()
        for batch in batches(next(objective.updates(0, 0))):
            models[1](batch)
        carried = objective.carried()
        assert objective.validate() == expected
    after = objective.carried()
    assert carried.keys() == after.keys() != set()
    assert all(torch.equal(after[name], memory) for name, memory in carried.items())


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 60, 10_000])
def test_a_lane_stays_with_its_process(source, processes, tokens):
    lanes = Lanes(source, 7, MEMORY, 0)
    for update in range(12):
        sequences = [each for part in lanes.read(update) for each in part.sequences]
        found = micro_batches(sequences, tokens, processes)
        assert sorted(place for batch in found for place in batch) == list(range(len(sequences)))
        assert len(found) % processes == 0
        for number, batch in enumerate(found):
            assert {sequences[place].link.lane % processes for place in batch} == {number % processes}
        for batch in found:  # what reads a memory, and what leaves one
            lone = {each.link.lane for each in map(sequences.__getitem__, batch) if each.link.read}
            left = {each.link.lane for each in map(sequences.__getitem__, batch) if each.link.kept}
            others = {each.link.lane for at, each in enumerate(sequences) if each.link.kept and at not in batch}
            assert not lone & others - left
    with pytest.raises(InvalidInput, match="got 7 sequences for 8 processes"):
        micro_batches(sequences, tokens, 8)


def test_memories_go_on_in_another_number_of_processes(models, xlnet, source, monkeypatch):
    _, ours = models

    def process(rank, count):
        return objective_of(PermutationLM(ours.encoder, ours.head).eval(), xlnet, source), SimpleNamespace(
            rank=rank, count=count
        )

    def losses(processes, updates):
        """Loss of each update, as processes with parts of the micro-batches compute it."""
        found = np.zeros(len(updates))
        for objective, workers in processes:
            for module in ("permutation_lm", "pretraining"):
                monkeypatch.setattr(f"bothways.objectives.{module}.current_workers", lambda workers=workers: workers)
            for number, update in enumerate(islice(objective.updates(0, updates[0]), len(updates))):
                own = update.micro_batches[workers.rank :: workers.count]
                with torch.no_grad():
                    found[number] += sum(float(objective.loss(each.payload)) for each in own)
        return found

    def carried(processes):
        return {name: each for objective, _ in processes for name, each in objective.carried().items()}

    alone = [process(0, 1)]
    expected = losses(alone, range(STEPS))
    found, left = [], {}
    for count, updates in ((2, range(2)), (3, range(2, 4)), (1, range(4, STEPS))):
        processes = [process(rank, count) for rank in range(count)]
        for objective, workers in processes:
            monkeypatch.setattr("bothways.objectives.permutation_lm.current_workers", lambda workers=workers: workers)
            objective.carry(left)
        found += losses(processes, updates).tolist()
        left = carried(processes)
        assert sum(len(objective.carried()) for objective, _ in processes) == len(left)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert left.keys() == carried(alone).keys() != set()


def test_one_lane_of_a_source_without_documents_is_refused():
    class Numbers:
        digest = "numbers"

        def __len__(self):
            return 3

    with pytest.raises(InvalidInput, match="expected document pieces, such as CorpusPieces, got Numbers"):
        PhasedStream([StreamPhase(Numbers(), 1, 1, memory=4)], 0)
