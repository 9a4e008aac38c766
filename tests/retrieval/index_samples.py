"""Small indexes without a model."""

import numpy as np

from bothways.retrieval import EncoderIdentity, SearchIndex

D = 8
ENCODER = EncoderIdentity("some/model", "ab" * 32, "mean", D)


def random_vectors(rows, seed=0, dimensions=D):
    return np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)


def built(rows=20, seed=0, **settings):
    texts = [f"text {row}" for row in range(rows)]
    return SearchIndex.build(random_vectors(rows, seed), texts=texts, encoder=ENCODER, **settings)
