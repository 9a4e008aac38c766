"""Measurements that detectors share: predictions, the share of them that changes, hidden states, text vectors.

Shapes: N texts, C labels, n tokens of a text, L layers and the embedding before them, H hidden, E embedding width.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.audit.context import Context, NeedUnmet, options_for
from bothways.audit.finding import POWER
from bothways.checkpoints import PretrainedEncoder
from bothways.encoder import Recorder
from bothways.encoder.heads import means
from bothways.evaluation.intervals import Estimate, bootstrap_estimates
from bothways.inference import TextOptions, TextRows, text_runner
from bothways.packing import Packed, pack
from bothways.tasks import FillMask, TextClassifier
from bothways.tasks.evaluate import stated_probabilities
from bothways.tasks.outputs import score_inputs
from bothways.tasks.scores import Scores

Numbers = NDArray[np.float64]

# Texts in one call of the model; the time limit is checked between calls.
_CHUNK = 64
# Minimum mean cosine between a word and the nearest words of its label; chosen on half of the zoo's data sets.
_SIMILAR, _NEAREST = 0.45, 3
# Maximum number of characters of a text in a report.
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierAnswers:
    """A classifier's predictions for N texts."""

    scores: tuple[Scores[object], ...]  # scores of the head for each text
    probabilities_NC: Numbers  # probabilities of the labels, calibrated if the model is

    @property
    def labels_N(self) -> NDArray[np.int64]:
        """Index of the most probable label."""
        best_N: NDArray[np.int64] = self.probabilities_NC.argmax(axis=1)
        return best_N

    @property
    def confidence_N(self) -> Numbers:
        """Probability of the most probable label."""
        best_N: Numbers = self.probabilities_NC.max(axis=1)
        return best_N


def answers(context: Context, classifier: TextClassifier, texts: Sequence[str]) -> ClassifierAnswers:
    """Return a classifier's predictions for texts, none of which may be blank."""
    scores: list[Scores[object]] = []
    for start in range(0, len(texts), _CHUNK):
        context.check_time()
        scores += score_inputs(classifier.fitted, texts[start : start + _CHUNK], show_progress=False)
    labels = len(classifier.labels)
    probabilities_NC = stated_probabilities(classifier.fitted.outputs, scores) if scores else np.zeros((0, labels))
    return ClassifierAnswers(tuple(scores), np.asarray(probabilities_NC, dtype=np.float64))


def changed_share(changed_N: NDArray[np.bool_]) -> Estimate:
    """Return the share of changed predictions, with its 95 % interval."""
    return share(int(changed_N.sum()), len(changed_N))


def mean_changed_share(changed_N: NDArray[np.bool_], originals_N: NDArray[np.int64]) -> Estimate:
    """Return the mean over original texts of the share of their edits that change the prediction, with its interval.

    ``originals_N`` is the index of the original of each edit. The bootstrap resamples originals, not edits.
    """
    _, groups_N = np.unique(originals_N, return_inverse=True)
    rates_M = np.bincount(groups_N, changed_N) / np.bincount(groups_N)
    m = len(rates_M)
    (rate,) = bootstrap_estimates(lambda counts_RM: (counts_RM @ rates_M / m)[:, None], rows=m, of_rows=m)
    return rate


def share(count: int, of: int) -> Estimate:
    """Return a share with its 95 % interval (Wilson 1927); the interval is 0 to 1 if ``of`` is 0."""
    from scipy.stats import binomtest

    if not of:
        return Estimate(0.0, 0.0, 1.0)
    interval = binomtest(count, of).proportion_ci(method="wilson")
    return Estimate(count / of, float(interval.low), float(interval.high))


def detectable_share(n: int, threshold: float) -> float | None:
    """Return the smallest true share whose interval lies above a threshold, on ``n`` texts, with probability `POWER`.

    The interval is that of `share`. None if not even a share of 1 has such an interval.
    """
    from scipy.stats import beta, norm

    if not n:
        return None
    z, counts_K = float(norm.ppf(0.975)), np.arange(n + 1)
    centre_K = counts_K + z**2 / 2
    low_K = (centre_K - z * np.sqrt(counts_K * (n - counts_K) / n + z**2 / 4)) / (n + z**2)
    enough = np.flatnonzero(low_K > threshold)
    return float(beta.ppf(POWER, enough[0], n - enough[0] + 1)) if len(enough) else None


_Scores = TypeVar("_Scores", NDArray[np.float32], Numbers)


def margins(scores_NC: _Scores, label: int) -> _Scores:
    """Return the score of a label minus the largest other score (N)."""
    margins_N: _Scores = scores_NC[..., label] - np.delete(scores_NC, label, axis=-1).max(axis=-1)
    return margins_N


def reference_classifier(context: Context) -> TextClassifier | None:
    """Return the reference if it is a classifier with the labels of the model, in any order."""
    reference = None if context.reference_name is None else context.reference
    if not isinstance(reference, TextClassifier):
        return None
    ours, theirs = (set(each.fitted.outputs.labels) for each in (context.classifier, reference))
    return reference if ours == theirs else None


def reference_masked_lm(context: Context) -> FillMask | None:
    """Return the reference as a masked language model, if it has such a head."""
    if context.reference_name is None or "masked_lm" not in context.base_encoder.family.heads:
        return None
    model = FillMask.from_pretrained(context.reference_name, **options_for(context, context.reference_name))
    return model if model.has_head else None


def shown(text: str) -> str:
    """Return the beginning of a text, for a report."""
    return text[:_SHOWN_CHARACTERS]


def drawn(rows: int, limit: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices of at most ``limit`` rows drawn at random, in ascending order."""
    return np.sort(rng.permutation(rows)[:limit])


def drawn_texts(context: Context, limit: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw at most ``limit`` of the user's texts, without blank ones."""
    return tuple(text for _, text in drawn_rows(context, limit, rng))


def drawn_rows(context: Context, limit: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Draw at most ``limit`` of the user's texts, without blank ones; return row numbers (from 1) and texts."""
    numbers = [row.number for row in context.rows or ()]
    rows = [(number, text) for number, text in zip(numbers, context.texts, strict=True) if text.strip()]
    if not rows:
        raise NeedUnmet("texts, but all texts of --data are blank.", given=True)
    return [rows[place] for place in drawn(len(rows), limit, rng)]


def drawn_labelled(
    context: Context, limit: int, rng: np.random.Generator
) -> tuple[tuple[str, ...], NDArray[np.int64] | None, str]:
    """Draw at most ``limit`` texts; return them, their label indices or None, and the reason for missing labels."""
    try:
        labelled = context.labelled
    except NeedUnmet as error:
        return drawn_texts(context, limit, rng), None, str(error)
    kept = drawn(len(labelled.texts), limit, rng)
    return tuple(labelled.texts[number] for number in kept), labelled.labels_N[kept], ""


def clean_texts(context: Context) -> tuple[str, ...] | None:
    """Return the user's clean texts, without blank ones; None if none were given."""
    given = context.settings.get("clean_texts")
    if given is None:
        return None
    read = context.read_texts(given, "clean texts in the columns that the model reads")
    return tuple(text for text in read if text.strip())


Vectors = Callable[[Sequence[str]], Numbers]
"""A function from texts to unit vectors (N, H)."""

MAX_TOKENS = 256  # longer texts are truncated
_STATES_AT_ONCE = 32
# Window length for models that have no limit of their own.
_DEFAULT_LENGTH = 512


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The hidden states of one text."""

    ids: tuple[int, ...]  # token ids
    begins_n: NDArray[np.int32]  # first character of each token; 0 for special tokens
    ends_n: NDArray[np.int32]  # end of each token, exclusive; 0 for special tokens
    hidden_LnH: NDArray[np.float32]  # outputs of the embedding and of each layer, as unit vectors
    sentence_LH: Numbers  # mean of these outputs over the tokens, as unit vectors


def states_of(
    encoder: PretrainedEncoder, texts: Sequence[str], check_time: Callable[[], None] = lambda: None
) -> Iterator[States]:
    """Yield the hidden states of texts, in order; long texts are truncated."""
    limit = min(MAX_TOKENS, encoder.config.max_length or MAX_TOKENS)
    for start in range(0, len(texts), _STATES_AT_ONCE):
        check_time()
        some = list(texts[start : start + _STATES_AT_ONCE])
        encoded = encoder.tokenizer.encode(some, max_length=limit, on_overflow="truncate", offsets=True)
        windows = [each.windows[0] for each in encoded]
        packed = pack([each.ids for each in windows], [each.types for each in windows], encoder.device)
        record = Recorder()
        with torch.inference_mode():
            encoder.encoder(packed, record=record)
        hidden_LTH = np.stack([each.float().cpu().numpy() for each in record.hidden_states])
        end = 0
        for window in windows:
            begin, end = end, end + len(window.ids)
            offsets = np.array(window.offsets, dtype=np.int32).reshape(len(window.ids), 2)
            hidden_LnH = hidden_LTH[:, begin:end]
            sentence_LH = unit_vectors(hidden_LnH.mean(axis=1, dtype=np.float64))
            tokens_LnH = unit_vectors(hidden_LnH).astype(np.float32)
            yield States(tuple(window.ids), offsets[:, 0], offsets[:, 1], tokens_LnH, sentence_LH)


def unit_vectors(values: NDArray[np.floating]) -> Numbers:
    """Scale vectors to unit length along the last axis."""
    unit: Numbers = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
    return unit


def shared_tokens(before: States, after: States) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the tokens that two texts share, in the first and in the second text."""
    blocks = difflib.SequenceMatcher(None, before.ids, after.ids, autojunk=False).get_matching_blocks()
    first = [block.a + step for block in blocks for step in range(block.size)]
    second = [block.b + step for block in blocks for step in range(block.size)]
    return np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)


def token_shifts(before: States, after: States, first: NDArray[np.int64], second: NDArray[np.int64]) -> Numbers:
    """Return ``1 - cosine`` between tokens of two texts, given their positions, in each layer (L, n)."""
    cosines_Ln = np.einsum("lnh,lnh->ln", before.hidden_LnH[:, first], after.hidden_LnH[:, second], dtype=np.float64)
    shifts_Ln: Numbers = np.maximum(0.0, 1.0 - cosines_Ln)
    return shifts_Ln


def sentence_shifts(before: States, after: States) -> Numbers:
    """Return ``1 - cosine`` between the mean states of two texts in each layer (L,)."""
    shifts_L: Numbers = np.maximum(0.0, 1.0 - (before.sentence_LH * after.sentence_LH).sum(axis=1))
    return shifts_L


def similar(vector_E: Numbers, vectors_ME: Numbers) -> list[int]:
    """Return the places of the vectors nearest to a word's if they are similar, else none; all are unit vectors."""
    cosines_M = vectors_ME @ vector_E
    nearest = np.argsort(-cosines_M, kind="stable")[:_NEAREST]
    return nearest.tolist() if len(nearest) and cosines_M[nearest].mean() >= _SIMILAR else []


def sentence_vectors(encoder: PretrainedEncoder) -> Vectors:
    """Return a function from texts to the mean of their last hidden states, as unit vectors (N, H)."""
    return _mean_vectors(encoder, encoder.encoder)


def table_vectors(encoder: PretrainedEncoder) -> Vectors:
    """Return a function from texts to the mean of their tokens' rows in the embedding table, as unit vectors (N, E)."""
    return _mean_vectors(encoder, lambda packed: encoder.encoder.embedding.tokens(packed.ids_T))


def _mean_vectors(encoder: PretrainedEncoder, states: Callable[[Packed], Tensor]) -> Vectors:
    def forward(packed: Packed) -> Tensor:
        averages_BH: Tensor = means(states(packed), packed)
        return averages_BH

    options = TextOptions(encoder.config.max_length or _DEFAULT_LENGTH, on_overflow="truncate")
    runner = text_runner(encoder.tokenizer, forward, encoder.device, options)

    def vectors(texts: Sequence[str]) -> Numbers:
        read = runner.run(texts, show_progress=False)
        rows = [each.rows_WK[0] for each in read if isinstance(each, TextRows)]
        return unit_vectors(np.stack(rows).astype(np.float64))

    return vectors
