"""The losses of sentence embedders: equal to those of sentence-transformers, and to what their formulas say."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from bothways.errors import InvalidInput
from bothways.tasks.embedding.losses import (
    CoSENT,
    Distillation,
    Matryoshka,
    MultipleNegativesRanking,
    Triplet,
    VectorBatch,
    loss_settings,
    unit,
)
from bothways.tasks.embedding.spec import LabelledTexts, Pairs, PlainTexts, ScoredPairs, Triplets
from bothways.tasks.embedding.training import check_loss

ROWS, WIDTH = 9, 12


def columns_of_vectors(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # In float64: the gradients of some losses are around 20, where float32 rounds by more than the tolerance.
    drawn = [torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [unit(each).requires_grad_() for each in drawn]


def batch_of(vectors, truth=None, identity=None):
    different = np.arange(ROWS * len(vectors)).reshape(len(vectors), ROWS).T
    return VectorBatch(tuple(vectors), different if identity is None else identity, truth, unit_length=True)


class GivenVectors(nn.Module):
    """What sentence-transformers takes for a model: it has a vector ready for each batch of texts."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return WIDTH


def theirs(loss_name, vectors, labels=None, matryoshka=None, **options):
    losses = pytest.importorskip("sentence_transformers.losses", reason="the oracle is not installed")
    model = GivenVectors()
    if "distance_metric" in options:
        options["distance_metric"] = getattr(losses.TripletDistanceMetric, options["distance_metric"])
    loss = getattr(losses, loss_name)(model, **options)
    if matryoshka is not None:
        dimensions, weights = matryoshka
        loss = losses.MatryoshkaLoss(model, loss, list(dimensions), matryoshka_weights=weights and list(weights))
    return loss([{"vectors": each} for each in vectors], labels)


SCORES = torch.tensor([0.0, 5.0, 2.5, 2.5, 1.0, 4.0, 3.0, 0.0, 2.0])

CASES = {
    "pairs": (MultipleNegativesRanking(), 2, None, ("MultipleNegativesRankingLoss", {})),
    "pairs at another scale": (
        MultipleNegativesRanking(scale=7.0),
        2,
        None,
        ("MultipleNegativesRankingLoss", {"scale": 7.0}),
    ),
    "both ways": (MultipleNegativesRanking(symmetric=True), 2, None, ("MultipleNegativesSymmetricRankingLoss", {})),
    "hard negatives": (MultipleNegativesRanking(), 4, None, ("MultipleNegativesRankingLoss", {})),
    "hard negatives both ways": (
        MultipleNegativesRanking(symmetric=True),
        3,
        None,
        ("MultipleNegativesSymmetricRankingLoss", {}),
    ),
    "scores": (CoSENT(), 2, SCORES, ("CoSENTLoss", {})),
    "scores at another scale": (CoSENT(scale=3.0), 2, SCORES, ("CoSENTLoss", {"scale": 3.0})),
    "triplets": (Triplet(), 3, None, ("TripletLoss", {"triplet_margin": 1.0})),
    "triplets by cosine": (
        Triplet(0.3, "cosine"),
        3,
        None,
        ("TripletLoss", {"triplet_margin": 0.3, "distance_metric": "COSINE"}),
    ),
}


CUTS = [((12, 7, 3), None), ((5,), None), ((8, 4), (1.0, 0.25))]


@pytest.mark.parametrize(
    ("case", "matryoshka"),
    [*((case, None) for case in CASES), *zip(CASES, itertools.cycle(CUTS), strict=False)],
    ids=str,
)
def test_loss_and_gradients_are_those_of_sentence_transformers(case, matryoshka):
    loss, count, truth, (name, options) = CASES[case]
    ours, reference = columns_of_vectors(count), columns_of_vectors(count)
    expected = theirs(name, reference, truth, matryoshka, **options)
    wrapped = loss if matryoshka is None else Matryoshka(loss, *matryoshka)
    found = wrapped.value(batch_of(ours, truth))
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    found.backward()
    for mine, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-5)


def numbered(*rows):
    """Numbers of the texts of all rows: equal names are equal texts."""
    names = sorted({name for row in rows for name in row})
    return np.array([[names.index(name) for name in row] for row in rows])


def omitting(labels):
    return {(row, each) for row, each in itertools.permutations(range(len(labels)), 2) if labels[row] == labels[each]}


# The texts of the rows, their labels, and by hand: the candidates that are no negatives of an anchor (the positives of
# all rows, then their negatives), and the anchors that are none of a positive.
BELONGING = {
    "the positive of two rows": (numbered(("a", "p", "n"), ("b", "p", "m")), None, {(0, 1), (1, 0)}, {(0, 1), (1, 0)}),
    "an anchor of two rows": (numbered(("a", "p", "n"), ("a", "q", "m")), None, {(0, 1), (1, 0)}, {(0, 1), (1, 0)}),
    "a negative that is the positive of another row": (
        numbered(("a", "p", "n"), ("b", "q", "p")),
        None,
        {(0, 3)},
        set(),
    ),
    # q finds p1 and p2; p2 also stands as the positive of z, and p1 as a negative of y.
    "positives of an equal anchor in whatever row": (
        numbered(("q", "p1", "n1"), ("q", "p2", "n2"), ("z", "p2", "n3"), ("y", "p3", "p1")),
        None,
        {(0, 1), (0, 2), (0, 7), (1, 0), (1, 2), (1, 7), (2, 1)},
        {(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)},
    ),
    "texts of one label": (
        np.arange(18).reshape(9, 2),
        torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]),
        omitting([0, 0, 0, 1, 1, 2, 2, 2, 2]),
        omitting([0, 0, 0, 1, 1, 2, 2, 2, 2]),
    ),
}


def ranking_without(omitted, queries_NH, candidates_CH):
    scores_NC = 20 * queries_NH @ candidates_CH.T
    for pair in omitted:
        scores_NC[pair] = -math.inf
    return nn.functional.cross_entropy(scores_NC, torch.arange(len(queries_NH)))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("case", BELONGING)
def test_texts_that_belong_to_a_row_are_no_negatives_of_it(case, symmetric):
    identity_NK, labels_N, omitted, omitted_back = BELONGING[case]
    rows, texts = identity_NK.shape
    anchors, *candidates = vectors = [each[:rows].detach() for each in columns_of_vectors(texts)]
    found = MultipleNegativesRanking(symmetric=symmetric).value(batch_of(vectors, labels_N, identity_NK))
    expected = ranking_without(omitted, anchors, torch.cat(candidates))
    if symmetric:
        expected = (expected + ranking_without(omitted_back, candidates[0], anchors)) / 2
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


def test_a_model_that_agrees_with_its_teacher_has_nothing_to_learn():
    (vectors_NH,) = columns_of_vectors(1)
    loss = Distillation(teacher=None)
    turned_ND = vectors_NH.detach() @ torch.linalg.qr(vectors_NH.detach().T @ vectors_NH.detach())[0]
    assert loss.value(batch_of([vectors_NH], turned_ND)).item() == pytest.approx(0.0, abs=1e-5)
    other_ND = torch.randn(ROWS, 31, generator=torch.Generator().manual_seed(5))
    assert loss.value(batch_of([vectors_NH], other_ND)).item() > 0.1


def test_distillation_is_the_divergence_of_the_neighbours():
    (vectors_NH,) = columns_of_vectors(1)
    teacher_ND = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(5)).double()
    found = Distillation(teacher=None, scale=4.0).value(batch_of([vectors_NH], teacher_ND)).item()

    def neighbours(vectors, row):
        scores = [4.0 * torch.cosine_similarity(vectors[row], vectors[each], 0) for each in range(ROWS) if each != row]
        return torch.stack(scores).softmax(0)

    mine = vectors_NH.detach()
    divergences = [
        (neighbours(teacher_ND, row) * (neighbours(teacher_ND, row) / neighbours(mine, row)).log()).sum()
        for row in range(ROWS)
    ]
    assert found == pytest.approx(torch.stack(divergences).mean().item(), abs=1e-5)


def test_a_text_alone_teaches_nothing_by_distillation():
    vectors_NH = torch.ones(1, 4, requires_grad=True)
    batch = VectorBatch((vectors_NH,), torch.zeros(1, 1), torch.ones(1, 3), unit_length=True)
    loss = Distillation(teacher=None).value(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert vectors_NH.grad.abs().sum() == 0.0


def test_only_the_order_of_scores_counts_for_cosent():
    vectors = columns_of_vectors(2)
    expected = CoSENT().value(batch_of(vectors, SCORES)).item()
    assert CoSENT().value(batch_of(vectors, SCORES * 100 - 1e6)).item() == expected
    assert CoSENT().value(batch_of(vectors, torch.ones(ROWS))).item() == 0.0


KINDS = {kind: kind() for kind in (ScoredPairs, Pairs, Triplets, LabelledTexts, PlainTexts)}
FITTING = {
    MultipleNegativesRanking(): (Pairs, Triplets, LabelledTexts),
    CoSENT(): (ScoredPairs,),
    Triplet(): (Triplets, LabelledTexts),
    Distillation(teacher=None): (PlainTexts,),
}


@pytest.mark.parametrize(("loss", "kind"), list(itertools.product(FITTING, KINDS)))
def test_a_loss_is_refused_where_the_data_cannot_teach_it(loss, kind):
    for each in (loss, Matryoshka(loss, (4,))):
        if kind in FITTING[loss]:
            check_loss(each, KINDS[kind], width=WIDTH)
        else:
            with pytest.raises(InvalidInput, match=f"the {loss.name} loss needs .*, but the data are"):
                check_loss(each, KINDS[kind], width=WIDTH)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (MultipleNegativesRanking(scale=0.0), "scale must be a finite number above 0, got 0.0"),
        (MultipleNegativesRanking(scale=float("nan")), "scale must be"),
        (Triplet(margin=-1.0), "margin must be"),
        (Triplet(distance="manhattan"), "distance must be one of 'euclidean', 'cosine'"),
        (Matryoshka(MultipleNegativesRanking(), (13,)), "must be between 1 and 12, got 13"),
        (Matryoshka(MultipleNegativesRanking(), (12, 0)), "must be between 1 and 12, got 0"),
        (Matryoshka(MultipleNegativesRanking(), ()), "must be different numbers"),
        (Matryoshka(MultipleNegativesRanking(), (4, 4)), "must be different numbers"),
        (Matryoshka(MultipleNegativesRanking(), (8, 4), (1.0,)), "a Matryoshka weight for each of 2 dimensions"),
        (Matryoshka(MultipleNegativesRanking(), (8, 4), (1.0, 0.0)), "weight must be a finite number above 0"),
        (Matryoshka(Triplet(margin=0), (8, 4)), "margin must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_of_a_loss_out_of_range_is_refused(loss, words):
    with pytest.raises(InvalidInput, match=words):
        check_loss(loss, Triplets(), width=WIDTH)


def test_a_loss_is_told_from_another_by_its_settings():
    one, other = MultipleNegativesRanking(), MultipleNegativesRanking(scale=7.0)
    assert loss_settings(one) != loss_settings(other)
    assert loss_settings(one) != loss_settings(Matryoshka(one, (4,)))
    assert loss_settings(Matryoshka(one, (4,))) == loss_settings(Matryoshka(MultipleNegativesRanking(), (4,)))
