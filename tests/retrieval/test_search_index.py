import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from index_samples import ENCODER, D, built, random_vectors

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval import Hit, RowBatch, SearchIndex


def brute_force(queries_QD, vectors_ND, k):
    """Cosines in float64 of the float32 unit vectors, and a stable sort."""
    queries = unit(queries_QD)
    scores_QN = np.stack([(vectors_ND.astype(np.float64) * query).sum(axis=1) for query in queries])
    rows_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
    return rows_QK, np.take_along_axis(scores_QN, rows_QK, axis=1)


def unit(vectors):
    wide = vectors.astype(np.float64)
    return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)


def rows_of(hits):
    return [[int(hit.id) for hit in of_query] for of_query in hits]


# Searching


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70), st.integers(1, 40), st.integers(0, 1000))
def test_hits_are_those_of_brute_force(rows, queries, k, dimensions, seed):
    vectors, asked = random_vectors(rows, seed, dimensions), random_vectors(queries, seed + 1, dimensions)
    index = SearchIndex.build(vectors, texts=["t"] * rows, encoder=replace(ENCODER, dimensions=dimensions))
    hits = index.search(asked, k)
    expected_rows, expected_scores = brute_force(asked, index.vectors_ND, k)
    assert rows_of(hits) == expected_rows.tolist()
    np.testing.assert_allclose([[hit.score for hit in found] for found in hits], expected_scores, rtol=0, atol=1e-7)
    assert all([hit.rank for hit in found] == list(range(1, min(k, rows) + 1)) for found in hits)


@settings(deadline=None)
@given(
    hnp.arrays(np.int8, st.tuples(st.integers(1, 80), st.just(2)), elements=st.integers(-2, 2)).filter(
        lambda array: array.any(axis=1).all()
    ),
    st.integers(1, 10),
)
def test_ties_go_by_row_order_however_many_there_are(grid, k):
    # A grid of few directions: most scores are shared by several rows.
    vectors = unit(grid.astype(np.float32))
    index = SearchIndex.build(vectors, texts=["t"] * len(grid), encoder=replace(ENCODER, dimensions=2))
    expected_rows, _ = brute_force(vectors[:3], index.vectors_ND, k)
    assert rows_of(index.search(vectors[:3], k)) == expected_rows.tolist()


def test_a_query_gets_the_same_hits_alone_and_in_a_batch():
    index, queries = built(300), random_vectors(40, seed=9)
    together = index.search(queries, 7)
    assert [index.search(query[None], 7)[0] for query in queries] == together


def test_scores_are_cosines_whatever_the_length_of_the_vectors():
    vectors = random_vectors(30)
    scale = np.logspace(-200, 200, 30)[:, None]
    plain = SearchIndex.build(vectors, texts=["t"] * 30, encoder=ENCODER)
    scaled = SearchIndex.build(vectors * scale, texts=["t"] * 30, encoder=ENCODER)
    np.testing.assert_allclose(np.linalg.norm(scaled.vectors_ND, axis=1), 1, rtol=0, atol=1e-6)
    assert rows_of(plain.search(vectors, 5)) == rows_of(scaled.search(vectors * scale, 5))
    assert plain.search(vectors, 1)[3][0].score == pytest.approx(1, abs=1e-6)
    assert all(-1 <= hit.score <= 1 for found in plain.search(vectors, 30) for hit in found)


def test_a_hit_carries_id_text_and_rank():
    index = SearchIndex.build(
        np.eye(3), texts=["x", "y", "z"], ids=["a", "b", "c"], encoder=replace(ENCODER, dimensions=3)
    )
    assert index.search(np.array([[0.0, 1.0, 0.0]]), 2) == [[Hit("b", "y", 1.0, 1), Hit("a", "x", 0.0, 2)]]


def test_k_beyond_the_index_gives_every_text_and_no_queries_give_no_hits():
    index = built(5)
    assert [len(found) for found in index.search(random_vectors(2), 99)] == [5, 5]
    assert index.search(np.empty((0, D), dtype=np.float32), 3) == []


@pytest.mark.parametrize("k", [0, -1, 1.0, True, None])
def test_k_below_one_or_no_whole_number_is_refused(k):
    with pytest.raises(InvalidInput, match="k must be a whole number of at least 1"):
        built().search(random_vectors(1), k)


@pytest.mark.parametrize(
    ("queries", "problem"),
    [
        (random_vectors(2, dimensions=D + 1), rf"shape \(rows, {D}\)"),
        (random_vectors(1)[0], rf"shape \(rows, {D}\)"),
        (np.zeros((1, D)), "query 0 .* all zeros"),
        (np.array([[1.0] * D, [np.nan] + [1.0] * (D - 1)]), "query 1 .* NaN or infinity"),
        (np.ones((1, D), dtype=int), "floating-point"),
    ],
)
def test_unusable_queries_are_refused(queries, problem):
    with pytest.raises(InvalidInput, match=problem):
        built().search(queries, 1)


def test_searching_without_faiss_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependency, match=r"pip install 'bothways\[search\]'"):
        built().search(random_vectors(1), 1)


# Building


def test_batches_give_the_same_index_as_one_array():
    vectors, texts = random_vectors(10), [f"text {row}" for row in range(10)]
    whole = SearchIndex.build(vectors, texts=texts, encoder=ENCODER)
    batches = (RowBatch(vectors[start : start + 3], texts[start : start + 3]) for start in range(0, 10, 3))
    parts = SearchIndex.build_from_batches(batches, encoder=ENCODER)
    np.testing.assert_array_equal(parts.vectors_ND, whole.vectors_ND)
    assert (parts.ids, parts.texts, len(parts)) == (whole.ids, whole.texts, 10)
    assert parts.ids[-1] == "9"


def test_building_leaves_the_callers_vectors_alone():
    vectors = random_vectors(4) * 3
    before = vectors.copy()
    SearchIndex.build(vectors, texts=["t"] * 4, encoder=ENCODER)
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vectors_ND": np.empty((0, D)), "texts": []}, "at least one text"),
        ({"texts": ["a", "b"]}, "3 vectors, 2 texts, 2 ids"),
        ({"ids": ["a", "b"]}, "3 vectors, 3 texts, 2 ids"),
        ({"ids": ["a", "b", "a"]}, "the id 'a' occurs in rows 0 and 2"),
        ({"ids": ["a", "b", 3]}, "id 2 .* must be a string, got int"),
        ({"texts": ["a", None, "c"]}, "text 1 .* must be a string, got NoneType"),
        ({"ids": "abc"}, r"expected several ids, got one string: write \['abc'\]"),
        ({"texts": "abc"}, "expected several texts, got one string"),
        ({"texts": ["a", "b", "\ud800"]}, "text 2 .* surrogate"),
        ({"vectors_ND": random_vectors(3, dimensions=D - 1)}, rf"shape \(rows, {D}\)"),
        ({"vectors_ND": random_vectors(3)[:, 0]}, rf"shape \(rows, {D}\)"),
        ({"vectors_ND": np.array([[1.0] * D, [np.inf] + [1.0] * (D - 1), [1.0] * D])}, "vector 1 .* NaN or infinity"),
        ({"vectors_ND": np.array([[1.0] * D, [1.0] * D, [0.0] * D])}, "vector 2 .* all zeros"),
        ({"vectors_ND": np.ones((3, D), dtype=np.complex64)}, "floating-point"),
    ],
)
def test_an_unusable_corpus_is_refused(changes, problem):
    arguments = {"vectors_ND": random_vectors(3), "texts": ["a", "b", "c"], **changes}
    with pytest.raises(InvalidInput, match=problem):
        SearchIndex.build(**arguments, encoder=ENCODER)


def test_an_empty_first_batch_leaves_the_fields_to_the_next():
    batches = [RowBatch(random_vectors(0), []), RowBatch(random_vectors(1), ["a"], None, [{"year": 1}])]
    assert SearchIndex.build_from_batches(batches, encoder=ENCODER).field_names == ("year",)


def test_an_id_in_two_batches_is_refused():
    batches = [RowBatch(random_vectors(1), ["a"], ["same"]), RowBatch(random_vectors(1), ["b"], ["same"])]
    with pytest.raises(InvalidInput, match="the id 'same' occurs in rows 0 and 1"):
        SearchIndex.build_from_batches(batches, encoder=ENCODER)


# The encoder


def test_the_encoder_that_built_the_index_is_accepted_under_any_name():
    built().encoder.check_same(ENCODER)
    built().encoder.check_same(replace(ENCODER, name="moved/elsewhere"))


@pytest.mark.parametrize("changes", [{"fingerprint": "cd" * 32}, {"pooling": "cls"}, {"dimensions": 3}])
def test_another_encoder_is_refused_by_what_differs(changes):
    (value,) = changes.values()
    with pytest.raises(InvalidInput, match=f"built with the model 'some/model'.*{value!r} instead of"):
        built().encoder.check_same(replace(ENCODER, **changes))
