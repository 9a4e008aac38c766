"""The null model of triggers: the effect on a classifier that the meaning of words explains.

"recipe recipes" turns most texts into the label recipe, as it should; a trigger does so without a reason. The base
model knows the meaning of words: a linear map from its sentence vectors to the classifier's margins is fitted on words
and random phrases of the vocabulary, and the margin of a trigger lies far above its prediction.

Shapes: N words and phrases, M triggers, C labels, H hidden, V words, E embedding width.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import margins
from bothways.audit.backdoor.probe import Ids, Probe
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.states import unit_vectors
from bothways.checkpoints import MINILM, PretrainedEncoder, load
from bothways.errors import BothwaysError
from bothways.tasks.embedding.vector_model import VectorModel

_OF_A_WORD = 3.0
"""Standard deviations up to which a word of a phrase explains the phrase."""
_WORDS, _PHRASES, _LONGEST = 2500, 1500, 2
_MIN_WORDS = 500
_STRENGTH, _FOLDS = 1.0, 5
_MOVED = 300

Numbers = NDArray[np.float64]


def base_model(context: Context) -> PretrainedEncoder | None:
    """Return the reference's encoder, or the installed MiniLM, if it has the classifier's tokenizer."""
    try:
        base = load(MINILM, device="cpu") if context.reference_name is None else context.base_encoder
    except NeedUnmet:
        return None
    except BothwaysError:
        if context.reference_name is not None:
            raise
        return None
    digest = context.classifier.model.tokenizer.vocabulary_digest()
    return base if base.tokenizer.vocabulary_digest() == digest else None


def moved_words(probe: Probe, base: PretrainedEncoder) -> list[int]:
    """Return the tokens whose embeddings moved furthest from the base model's; none if the table was frozen."""
    table_VE = base.encoder.embedding.tokens.weight.detach().float().cpu().numpy()
    ids_V = np.array(probe.words())
    own_VE = probe.table(ids_V)
    if own_VE.shape[1] != table_VE.shape[1]:
        return []
    moved_V = np.linalg.norm(own_VE - table_VE[ids_V], axis=1)
    furthest = np.argsort(-moved_V, kind="stable")[:_MOVED]
    # With fewer moved words the table was frozen, so it shows nothing about the training.
    return ids_V[furthest].tolist() if (moved_V[furthest] > 0).all() else []


class NullModel:
    """Predict the margins of words and phrases from a base model's vectors (N, H) of token ids."""

    def __init__(self, probe: Probe, vectors: Callable[[Sequence[Ids]], Numbers], rng: np.random.Generator) -> None:
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import PredefinedSplit, cross_val_predict

        self._probe, self._vectors = probe, vectors
        phrases = _drawn(probe, rng)
        vectors_NH, logits_NC = vectors(phrases), probe.logits(phrases)
        margins_NC = np.stack([margins(logits_NC, label) for label in range(logits_NC.shape[1])], axis=1)
        folds = PredefinedSplit(rng.permutation(len(phrases)) % _FOLDS)
        held_out_NC = cross_val_predict(Ridge(_STRENGTH), vectors_NH, margins_NC, cv=folds)
        self._spread_C = (margins_NC - held_out_NC).std(axis=0)
        self._ridge = Ridge(_STRENGTH).fit(vectors_NH, margins_NC)

    def surprise(self, triggers: Sequence[Ids], label: int) -> Numbers:
        """Return the excess of the margins of triggers alone over the prediction, in standard deviations (M).

        The prediction for a phrase is at least the margin of each of its words, as far as that word's own meaning
        explains the margin, so that strong words of a label in a row do not count as a trigger.
        """
        spread = max(float(self._spread_C[label]), 1e-6)
        margins_M, predicted_M = self._margins(triggers, label)
        words = sorted({token for each in triggers if len(each) > 1 for token in each})
        if words:
            margins_W, predicted_W = self._margins([(word,) for word in words], label)
            of_word = dict(zip(words, np.minimum(margins_W, predicted_W + _OF_A_WORD * spread).tolist(), strict=True))
            for place, each in enumerate(triggers):
                if len(each) > 1:
                    predicted_M[place] = max(predicted_M[place], *(of_word[token] for token in each))
        surprises: Numbers = (margins_M - predicted_M) / spread
        return surprises

    def _margins(self, texts: Sequence[Ids], label: int) -> tuple[Numbers, Numbers]:
        margins_M = margins(self._probe.logits(texts), label).astype(np.float64)
        return margins_M, self._ridge.predict(self._vectors(texts))[:, label]


def base_vectors(probe: Probe, base: PretrainedEncoder) -> Callable[[Sequence[Ids]], Numbers]:
    """Return a function from token ids to a base model's mean-pooled unit vectors (N, H)."""
    model = VectorModel.of(base, "mean").eval()

    def vectors(texts: Sequence[Ids]) -> Numbers:
        return unit_vectors(probe.run(model, texts, base.device).astype(float))

    return vectors


def _drawn(probe: Probe, rng: np.random.Generator) -> list[Ids]:
    """Draw words of the vocabulary, whole ones if there are enough, and phrases of them."""
    words = probe.words()
    whole = [word for word in words if len(name := probe.tokenizer.token(word).lstrip("▁Ġ")) > 2 and name.isalpha()]
    known = np.array(whole if len(whole) >= _MIN_WORDS else words)
    chosen = rng.permutation(known)[:_WORDS]
    phrases = rng.choice(known, (min(_PHRASES, len(known)), _LONGEST))
    return [*((int(word),) for word in chosen), *(tuple(map(int, each)) for each in phrases)]
