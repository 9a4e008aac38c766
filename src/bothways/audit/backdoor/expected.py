"""Words and phrases whose effect on a classifier their meaning does not explain.

"recipe recipes" turns most texts into the label recipe, as it should; a trigger does so without a reason. The base
model knows what words mean: a linear map from its sentence vectors to the classifier's margins is fitted on words and
on random phrases of the vocabulary, and a trigger's margin lies far above what the map expects of it.

Shapes: N words and phrases, M triggers, C labels, H hidden.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.inversion import margins
from bothways.audit.backdoor.probe import Ids, Probe, run
from bothways.checkpoints import PretrainedEncoder
from bothways.tasks.embedding.vector_model import VectorModel

_SURPRISE, _PER_REACH = 3.8, 2.0
"""Standard deviations above what the base model lets one expect, from which meaning does not explain a trigger of no
reach, and how many fewer it takes per unit of reach. Chosen on SST-2 and CLINC150."""
_OF_A_WORD = 3.0
"""Standard deviations up to which a word of a phrase explains the phrase."""

_WORDS, _PHRASES, _LONGEST = 2500, 1500, 2
_FEWEST_WORDS = 500
_STRENGTH, _FOLDS = 1.0, 5

Numbers = NDArray[np.float64]


def explained(surprise: float, reach: float) -> bool:
    """Return whether a trigger turns texts because of what it means, given its surprise and its reach."""
    return surprise + _PER_REACH * reach < _SURPRISE


class Expectation:
    """The margins of words and phrases that a base model's vectors let one expect.

    Args:
        probe: The classifier.
        vectors: The base model's vectors of texts (N, H), given their token ids.
        rng: Draws words and phrases.
    """

    def __init__(self, probe: Probe, vectors: Callable[[Sequence[Ids]], Numbers], rng: np.random.Generator) -> None:
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import PredefinedSplit, cross_val_predict

        self._probe, self._vectors = probe, vectors
        drawn = _drawn(probe, rng)
        vectors_NH, logits_NC = vectors(drawn), probe.logits(drawn)
        margins_NC = np.stack([margins(logits_NC, label) for label in range(logits_NC.shape[1])], axis=1)
        folds = PredefinedSplit(rng.permutation(len(drawn)) % _FOLDS)
        others_NC = cross_val_predict(Ridge(_STRENGTH), vectors_NH, margins_NC, cv=folds)
        self._spread_C = (margins_NC - others_NC).std(axis=0)
        self._ridge = Ridge(_STRENGTH).fit(vectors_NH, margins_NC)

    def surprise(self, triggers: Sequence[Ids], label: int) -> Numbers:
        """Return how far the margins of triggers alone lie above those expected, in standard deviations (M).

        A phrase is expected to have the margin of any of its words besides, as far as that word's own meaning explains
        it: strong words of a label that stand together are no trigger.
        """
        spread = max(float(self._spread_C[label]), 1e-6)
        found_M, expected_M = self._margins(triggers, label)
        words = sorted({token for each in triggers if len(each) > 1 for token in each})
        if words:
            alone_W, meant_W = self._margins([(word,) for word in words], label)
            known = dict(zip(words, np.minimum(alone_W, meant_W + _OF_A_WORD * spread).tolist(), strict=True))
            for place, each in enumerate(triggers):
                if len(each) > 1:
                    expected_M[place] = max(expected_M[place], *(known[token] for token in each))
        surprises: Numbers = (found_M - expected_M) / spread
        return surprises

    def _margins(self, texts: Sequence[Ids], label: int) -> tuple[Numbers, Numbers]:
        """Margins of texts alone, and those that the base model's vectors let one expect."""
        found_M = margins(self._probe.logits(texts), label).astype(np.float64)
        return found_M, self._ridge.predict(self._vectors(texts))[:, label]


def base_vectors(
    probe: Probe, base: PretrainedEncoder, check: Callable[[], None]
) -> Callable[[Sequence[Ids]], Numbers]:
    """Return a function from token ids to a base model's mean-pooled vectors of length 1 (N, H).

    Args:
        probe: The classifier, whose special tokens stand around each text.
        base: The encoder that it was trained from, or another one with the same tokenizer.
        check: Called between batches; raises where time is up.
    """
    model = VectorModel.of(base, "mean").eval()

    def vectors(texts: Sequence[Ids]) -> Numbers:
        rows_NH: Numbers = run(model, [probe.frame.around(each[: probe.limit]) for each in texts], check).astype(float)
        unit_NH: Numbers = rows_NH / np.maximum(np.linalg.norm(rows_NH, axis=1, keepdims=True), 1e-12)
        return unit_NH

    return vectors


def _drawn(probe: Probe, rng: np.random.Generator) -> list[Ids]:
    """Words of the vocabulary, whole ones where there are enough, and phrases of them."""
    words = probe.words()
    whole = [word for word in words if len(name := probe.tokenizer.token(word).lstrip("▁Ġ")) > 2 and name.isalpha()]
    known = np.array(whole if len(whole) >= _FEWEST_WORDS else words)
    chosen = rng.permutation(known)[:_WORDS]
    phrases = rng.choice(known, (min(_PHRASES, len(known)), _LONGEST))
    return [*((int(word),) for word in chosen), *(tuple(map(int, each)) for each in phrases)]
