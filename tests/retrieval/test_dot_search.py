"""Search by the inner product of vectors of any length."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_samples import ENCODER, random_vectors

from bothways.errors import InvalidInput
from bothways.retrieval import Hybrid, SearchIndex, Weighted
from bothways.retrieval.contents import IndexVectorOptions

DOT = replace(ENCODER, similarity="dot")


def built(vectors, **settings):
    encoder = replace(DOT, dimensions=vectors.shape[1])
    return SearchIndex.build(vectors, texts=[f"t{row}" for row in range(len(vectors))], encoder=encoder, **settings)


def brute_force(queries_QD, vectors_ND, k):
    """Products in float64, and a stable sort."""
    scores_QN = np.stack([(vectors_ND.astype(np.float64) * query).sum(axis=1) for query in queries_QD])
    rows_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
    return rows_QK.tolist(), np.take_along_axis(scores_QN, rows_QK, axis=1)


def rows_of(hits):
    return [[int(hit.id) for hit in of_query] for of_query in hits]


def scores_of(hits):
    return np.array([[hit.score for hit in of_query] for of_query in hits])


@settings(deadline=None)
@given(
    rows=st.integers(1, 60),
    k=st.integers(1, 70),
    dimensions=st.integers(1, 40),
    exponents=st.tuples(st.integers(-30, 36), st.integers(-30, 36)),
    spread=st.sampled_from([0, 1, 6]),
    seed=st.integers(0, 1000),
)
def test_hits_are_those_of_brute_force_at_any_length(rows, k, dimensions, exponents, spread, seed):
    generator = np.random.default_rng(seed)
    powers = generator.uniform(exponents[0] - spread, exponents[0], (rows, 1))
    vectors = (random_vectors(rows, seed, dimensions) * 10.0**powers).astype(np.float32)
    queries = (random_vectors(4, seed + 1, dimensions) * 10.0 ** exponents[1]).astype(np.float32)
    hits = built(vectors).search(queries, k)
    expected_rows, expected_scores = brute_force(queries, vectors, k)
    assert rows_of(hits) == expected_rows
    assert (scores_of(hits) == expected_scores).all()


def test_scores_that_float32_confuses_are_ranked_by_float64():
    # The products differ by little more than float32 rounds sums of this size: many of the best are not proposed first.
    generator = np.random.default_rng(3)
    base = generator.standard_normal(300) * 1e4
    vectors = (base + generator.standard_normal((3000, 300)) * 0.03).astype(np.float32)
    queries = np.stack([base, base * 0.3, base * 1e-9]).astype(np.float32)
    expected_rows, _ = brute_force(queries, vectors, 9)
    assert rows_of(built(vectors).search(queries, 9)) == expected_rows


def test_ties_and_rows_of_zeros_go_by_row_order():
    vectors = np.repeat(np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0], [6.0, 0.0]]), 30, axis=0)
    queries = np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 2.0]])
    expected_rows, expected_scores = brute_force(queries, vectors, 50)
    hits = built(vectors).search(queries, 50)
    assert rows_of(hits) == expected_rows
    assert (scores_of(hits) == expected_scores).all()
    assert rows_of(hits)[1] == [*range(50)]
    assert scores_of(hits)[0, 0] == 6


def test_a_long_vector_ranks_above_a_nearer_one_which_a_cosine_puts_first():
    vectors, query = np.array([[1.0, 0.0], [9.0, 9.0]]), np.array([[1.0, 0.1]])
    assert rows_of(built(vectors).search(query, 2)) == [[1, 0]]
    cosine = SearchIndex.build(vectors, texts=["a", "b"], encoder=replace(ENCODER, dimensions=2))
    assert rows_of(cosine.search(query, 2)) == [[0, 1]]


def test_vectors_keep_their_length_when_they_are_saved_and_added_to(tmp_path):
    vectors, queries = random_vectors(20) * 7, random_vectors(3, seed=1)
    built(vectors[:12]).save(tmp_path / "index")
    opened = SearchIndex.open(tmp_path / "index")
    assert opened.encoder.similarity == "dot"
    assert rows_of(opened.search(queries, 5)) == brute_force(queries, vectors[:12], 5)[0]
    longest = vectors[12:].copy()
    longest[0] *= 50  # the bound on the error of the first twelve rows is too low for this one
    opened.add(longest, texts=["more"] * 8)
    everything = np.concatenate([vectors[:12], longest])
    np.testing.assert_array_equal(opened.vectors_ND, everything)
    assert rows_of(opened.search(queries, 20)) == brute_force(queries, everything, 20)[0]
    opened.delete(["0"])
    assert opened.search(queries, 1)[0][0].id != "0"


def test_filters_and_hybrid_search_rank_by_the_product():
    vectors = random_vectors(40) * np.linspace(1, 30, 40)[:, None]
    index, query = built(vectors), random_vectors(1, seed=5)
    best = index.search(query, 1)[0][0]
    hybrid = index.search_hybrid(["unheard"], query, 3, mode=Hybrid(Weighted(1.0)))[0]
    assert hybrid[0].id == best.id


@pytest.mark.parametrize(
    ("number", "problem"), [(np.inf, "holds NaN or infinity"), (np.nan, "NaN"), (1e39, r"has 1e\+39, which is beyond")]
)
def test_numbers_beyond_float32_are_refused(number, problem):
    vectors = random_vectors(3).astype(np.float64)
    vectors[1, 2] = number
    with pytest.raises(InvalidInput, match=f"vector 1 .*{problem}"):
        built(vectors)
    with pytest.raises(InvalidInput, match=f"query 1 .*{problem}"):
        built(random_vectors(3)).search(vectors, 1)


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_other_similarities_are_refused_by_name(similarity):
    with pytest.raises(InvalidInput, match=f"whose similarity is cosine or dot .* is '{similarity}'"):
        SearchIndex.build(random_vectors(2), texts=["a", "b"], encoder=replace(ENCODER, similarity=similarity))


def test_the_scaling_of_vectors_matters_for_the_product_alone():
    one = replace(DOT, vectors=IndexVectorOptions(True, None))
    one.check_same(replace(one, vectors=None))
    other = replace(one, vectors=IndexVectorOptions(False, None))
    with pytest.raises(InvalidInput, match=r"vector options is .*unit_length=False.* instead of .*unit_length=True"):
        one.check_same(other)
    replace(one, similarity="cosine").check_same(other)
