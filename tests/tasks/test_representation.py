"""Representations of texts as values: validated, sliced and joined by text."""

import subprocess
import sys

import numpy as np
import pytest

from bothways import SentenceEmbedder
from bothways.errors import InvalidInput
from bothways.tasks.embedding.representation import DenseVectors
from tiny_models import write_checkpoint

DENSE = DenseVectors(np.arange(8, dtype=np.float32).reshape(4, 2))


@pytest.mark.parametrize("rows", [slice(1, 3), slice(0, 0), slice(None, None, 2), np.array([3, 0, 0]), np.array([1])])
def test_a_selection_holds_the_selected_texts_in_their_order(rows):
    assert len(DENSE) == 4
    assert DENSE[rows].vectors_ND.tolist() == [DENSE.vectors_ND[each].tolist() for each in np.arange(4)[rows]]


def test_parts_of_one_width_join_to_the_whole():
    np.testing.assert_array_equal(DenseVectors.joined([DENSE[:1], DENSE[1:3], DENSE[3:]]).vectors_ND, DENSE.vectors_ND)
    for parts, widths in (([], r"\[\]"), ([DENSE, DenseVectors(np.ones((1, 3)))], r"\[2, 3\]")):
        with pytest.raises(InvalidInput, match=f"the same width to join, got {widths}"):
            DenseVectors.joined(parts)


@pytest.mark.parametrize("vectors", [np.ones(3), np.ones((2, 2, 2)), np.ones((2, 2), dtype=np.int64)])
def test_vectors_of_another_shape_or_type_are_refused(vectors):
    with pytest.raises(InvalidInput, match="must be a floating-point array of 2 dimensions, got"):
        DenseVectors(vectors)


def test_an_embedder_represents_texts_by_the_vectors_that_users_get(tmp_path):
    write_checkpoint(tmp_path / "tiny")
    embedder = SentenceEmbedder.from_pretrained(tmp_path / "tiny", device="cpu")
    texts = ["w5 w6", "w7", "w8 w9 w10"]
    vectors = embedder.encode(texts)
    np.testing.assert_array_equal(embedder.fitted.represent(texts).vectors_ND, vectors)
    blocks = list(embedder.fitted.represent_stream(iter(texts), block=2))
    assert list(map(len, blocks)) == [2, 1]
    np.testing.assert_array_equal(DenseVectors.joined(blocks).vectors_ND, vectors)


def test_representations_import_no_torch():
    code = "import sys, bothways.tasks.embedding.representation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
