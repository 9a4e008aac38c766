"""The losses of sentence embedders: equal to those of sentence-transformers, and to what their formulas say."""

import itertools

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
from bothways.tasks.embedding.training import check_loss, usual_loss

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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("matryoshka", [None, ((12, 7, 3), None), ((5,), None), ((8, 4), (1.0, 0.25))], ids=str)
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


@pytest.mark.parametrize("symmetric", [False, True])
def test_texts_that_belong_to_a_row_are_no_negatives_of_it(symmetric):
    vectors = columns_of_vectors(3)
    identity_NK = np.arange(3 * ROWS).reshape(3, ROWS).T.copy()
    identity_NK[1, 1] = identity_NK[0, 1]  # the positive of row 0 is also that of row 1
    identity_NK[3, 0] = identity_NK[2, 0]  # rows 2 and 3 have the same anchor
    identity_NK[5, 2] = identity_NK[4, 1]  # the negative of row 5 is the positive of row 4
    loss = MultipleNegativesRanking(symmetric=symmetric)
    found = loss.value(batch_of(vectors, identity=identity_NK)).item()

    with torch.no_grad():
        anchors, positives, negatives = (each.numpy() for each in vectors)
    candidates = np.concatenate([positives, negatives])
    hidden = {(0, 1), (1, 0), (2, 3), (3, 2), (4, ROWS + 5)}

    def mean_loss(from_, to, left_out):
        total = 0.0
        for row in range(ROWS):
            scores = [20 * from_[row] @ to[each] for each in range(len(to)) if (row, each) not in left_out]
            total += np.log(np.exp(scores).sum()) - 20 * from_[row] @ to[row]
        return total / ROWS

    expected = mean_loss(anchors, candidates, hidden)
    if symmetric:
        expected = (expected + mean_loss(positives, anchors, hidden)) / 2
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_positive_of_an_equal_anchor_is_no_negative_in_whatever_row_it_stands(symmetric):
    vectors = [each[:4].detach() for each in columns_of_vectors(3)]
    # q finds p1 and p2; p2 also stands as the positive of z, and p1 as a negative of y.
    q, p1, p2, z, y, p3, *others = range(20, 30)
    identity_NK = np.array([[q, p1, others[0]], [q, p2, others[1]], [z, p2, others[2]], [y, p3, p1]])
    found = MultipleNegativesRanking(symmetric=symmetric).value(batch_of(vectors, identity=identity_NK)).item()
    anchors, positives, negatives = vectors
    candidates = torch.cat([positives, negatives])
    # In the order of the candidates: the positives of all rows, then their negatives.
    counted = {0: [0, 3, 4, 5, 6], 1: [1, 3, 4, 5, 6], 2: [2, 0, 3, 4, 5, 6, 7], 3: [3, 0, 1, 2, 4, 5, 6, 7]}
    losses = []
    for row, others in counted.items():
        scores = 20 * candidates[others] @ anchors[row]
        losses.append(torch.logsumexp(scores, 0) - 20 * candidates[row] @ anchors[row])
    expected = torch.stack(losses).mean()
    if symmetric:
        # Which anchors each positive does not belong to: p1 that of z and y, p2 that of y, p3 the others.
        anchors_of = {0: [0, 2, 3], 1: [1, 3], 2: [2, 3], 3: [3, 0, 1, 2]}
        back = []
        for row, others in anchors_of.items():
            scores = 20 * anchors[others] @ positives[row]
            back.append(torch.logsumexp(scores, 0) - 20 * anchors[row] @ positives[row])
        expected = (expected + torch.stack(back).mean()) / 2
    assert found == pytest.approx(expected.item(), abs=1e-5)


def test_texts_of_one_label_are_no_negatives_of_each_other():
    anchors, positives = columns_of_vectors(2)
    labels_N = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    found = MultipleNegativesRanking().value(batch_of([anchors, positives], labels_N)).item()
    scores = 20 * anchors @ positives.T
    losses = []
    for row in range(ROWS):
        counted = [each for each in range(ROWS) if each == row or labels_N[each] != labels_N[row]]
        losses.append(torch.logsumexp(scores[row, counted], 0) - scores[row, row])
    assert found == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)


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
            with pytest.raises(InvalidInput, match=f"the {loss.name} loss learns from .*, but the columns are of"):
                check_loss(each, KINDS[kind], width=WIDTH)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (MultipleNegativesRanking(scale=0.0), "scale must be a finite number above 0, got 0.0"),
        (MultipleNegativesRanking(scale=float("nan")), "scale must be"),
        (Triplet(margin=-1.0), "margin must be"),
        (Triplet(distance="manhattan"), "distance must be one of euclidean, cosine"),
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


def test_texts_alone_have_no_usual_loss():
    with pytest.raises(InvalidInput, match="give a teacher"):
        usual_loss(PlainTexts())


def test_a_loss_is_told_from_another_by_its_settings():
    one, other = MultipleNegativesRanking(), MultipleNegativesRanking(scale=7.0)
    assert loss_settings(one) != loss_settings(other)
    assert loss_settings(one) != loss_settings(Matryoshka(one, (4,)))
    assert loss_settings(Matryoshka(one, (4,))) == loss_settings(Matryoshka(MultipleNegativesRanking(), (4,)))
