"""Representations of texts as values: validated, sliced and joined by text."""

import subprocess
import sys

import numpy as np
import pytest

from bothways import SentenceEmbedder
from bothways.errors import InvalidInput
from bothways.tasks.embedding.representation import DenseVectors, MultiVectors, SparseVectors

TOKENS = np.arange(12, dtype=np.float32).reshape(6, 2)


def dense():
    return DenseVectors(np.arange(8, dtype=np.float32).reshape(4, 2))


def multi():
    """Four texts with 2, 0, 3 and 1 token vectors."""
    return MultiVectors(TOKENS, np.array([0, 2, 2, 5, 6]))


def sparse():
    """Four texts over ten terms, the second without any."""
    terms, weights = np.array([1, 7, 0, 4, 9, 7]), np.array([0.5, 1.0, 0.1, 0.2, 0.3, 2.0])
    return SparseVectors(terms, weights, np.array([0, 2, 2, 5, 6]), 10)


def parts(value):
    """The representation of each text, as lists."""
    if isinstance(value, DenseVectors):
        return value.vectors_ND.tolist()
    if isinstance(value, MultiVectors):
        return [value.of(text).tolist() for text in range(len(value))]
    return [tuple(each.tolist() for each in value.of(text)) for text in range(len(value))]


@pytest.mark.parametrize("make", [dense, multi, sparse])
@pytest.mark.parametrize("rows", [slice(1, 3), slice(0, 0), slice(None, None, 2), np.array([3, 0, 0]), np.array([1])])
def test_a_selection_holds_the_selected_texts_in_their_order(make, rows):
    value = make()
    numbers = np.arange(4)[rows]
    assert len(value) == 4
    assert type(value[rows]) is type(value)
    assert len(value[rows]) == len(numbers)
    assert parts(value[rows]) == [parts(value)[number] for number in numbers]


@pytest.mark.parametrize("make", [dense, multi, sparse])
def test_parts_join_to_the_whole(make):
    value = make()
    joined = type(value).joined([value[:1], value[1:3], value[3:]])
    assert parts(joined) == parts(value)
    assert parts(type(value).joined([value, value])) == parts(value) * 2
    with pytest.raises(InvalidInput, match=r"expected representations with the same .*, got \[\]"):
        type(value).joined([])


def test_parts_of_different_widths_do_not_join():
    with pytest.raises(InvalidInput, match=r"the same width to join, got \[2, 3\]"):
        DenseVectors.joined([dense(), DenseVectors(np.ones((1, 3)))])
    with pytest.raises(InvalidInput, match=r"the same width to join, got \[2, 3\]"):
        MultiVectors.joined([multi(), MultiVectors(np.ones((1, 3)), np.array([0, 1]))])
    with pytest.raises(InvalidInput, match=r"the same vocabulary to join, got \[10, 11\]"):
        SparseVectors.joined([sparse(), SparseVectors(np.array([1]), np.ones(1), np.array([0, 1]), 11)])


@pytest.mark.parametrize("vectors", [np.ones(3), np.ones((2, 2, 2)), np.ones((2, 2), dtype=np.int64)])
def test_vectors_of_another_shape_or_type_are_refused(vectors):
    for make in (DenseVectors, lambda array: MultiVectors(array, np.array([0, len(array)]))):
        with pytest.raises(InvalidInput, match="must be a floating-point array of 2 dimensions, got"):
            make(vectors)


@pytest.mark.parametrize("starts", [[0, 5], [1, 6], [0, 4, 2, 6], [], [[0, 6]], [0.0, 6.0]])
def test_starts_that_do_not_partition_the_entries_are_refused(starts):
    for make in (
        lambda starts: MultiVectors(TOKENS, starts),
        lambda starts: SparseVectors(np.arange(6), np.ones(6), starts, 9),
    ):
        with pytest.raises(InvalidInput, match="starts must be ascending integers from 0 to 6"):
            make(np.array(starts))


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ([0, 1, 9], "between 0 and 8, got 0 to 9"),
        ([-1, 1, 2], "between 0 and 8, got -1 to 2"),
        ([1, 1, 2], "different and in ascending order"),
        ([4, 3, 2], "different and in ascending order"),
        ([1, 2], "an integer term id for each of 3 weights"),
        ([1.0, 2.0, 3.0], "an integer term id for each of 3 weights"),
    ],
)
def test_terms_out_of_range_or_order_are_refused(terms, problem):
    with pytest.raises(InvalidInput, match=problem):
        SparseVectors(np.array(terms), np.ones(3), np.array([0, 2, 3]), 9)


def test_an_embedder_represents_texts_by_the_vectors_that_users_get(tiny_bert):
    embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu")
    texts = ["w5 w6", "w7", "w8 w9 w10"]
    vectors = embedder.encode(texts)
    for role in ("query", "document"):
        np.testing.assert_array_equal(embedder.fitted.represent(texts, role=role).vectors_ND, vectors)
        blocks = list(embedder.fitted.represent_stream(iter(texts), role=role, block=2))
        assert list(map(len, blocks)) == [2, 1]
        np.testing.assert_array_equal(DenseVectors.joined(blocks).vectors_ND, vectors)


def test_representations_import_no_torch():
    code = "import sys, bothways.tasks.embedding.representation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
