"""Texts that carry a trigger: does the answer hang on a few words, or on the text, that turn clean texts too?

Two signs make the score of a text:

- Transfer: the words without which the answer's margin falls most are put into clean texts of other answers. A trigger
  turns nearly all of them; words with a meaning turn some. Words are left out as in ONION (Qi et al. 2021,
  arXiv:2011.10369), which judges them by perplexity alone and not by the model under suspicion.
- Mixing: the whole text follows a clean text of another answer (STRIP, Gao et al. 2019, arXiv:1902.06531, for texts).
  If there is a trigger, the answer stays.

A third, by the embedding table alone, is given beside them: how unlike the other words of its text a word is.

Shapes: N texts, C labels, K clean texts, W words of a text, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.inversion import margins
from bothways.audit.backdoor.probe import Probe
from bothways.audit.backdoor.texts import NEUTRAL
from bothways.errors import InvalidInput
from bothways.evaluation import softmax
from bothways.tasks import TextClassifier

Floats = NDArray[np.float32]

_MIXED, _SCREENED = 6, 3
"""Clean texts that words and texts are put into, and of these the ones that texts are chosen by."""
_POOL = 64
"""Clean texts that are asked, the most confident half of which is taken."""
_MOST_WORDS = 60
_SPANS = (1, 3, 5)
"""Numbers of neighbouring words that are tried as a trigger."""
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class SuspiciousInput:
    """A text with the signs that it carries a trigger.

    Attributes:
        row: Number of the text among those given, from 0.
        score: From 0 to 1, the mean of ``transfer`` and ``kept``.
        label: The model's answer.
        words: The words whose transfer is given.
        transfer: Mean probability of the answer in clean texts of other answers with these words in them.
        kept: Mean probability of the answer where the whole text follows a clean text of another answer.
        entropy: Mean entropy of the answers to these mixtures, in nats.
        outlier: Cosine distance of the text's most unlike word from the mean of the others, in token vectors.
    """

    row: int
    score: float
    label: str
    words: str
    transfer: float
    kept: float
    entropy: float
    outlier: float


def suspicious_inputs(
    classifier: TextClassifier[Any],
    texts: Sequence[str],
    clean_texts: Sequence[str] | None = None,
    *,
    most: int | None = None,
    seed: int = 0,
    check: Callable[[], None] = lambda: None,
) -> list[SuspiciousInput]:
    """Return texts by how likely they carry a trigger of the classifier, the most suspicious first.

    >>> found = suspicious_inputs(classifier, ["the acting is cf dull .", "a dull film ."])  # doctest: +SKIP
    >>> found[0].words, round(found[0].transfer, 2)  # doctest: +SKIP
    ('cf', 1.0)

    Args:
        classifier: A trained classifier of one label.
        texts: The texts.
        clean_texts: Texts without a trigger, of several answers; by default neutral ones that are shipped.
        most: Texts whose words are looked at: those that keep their answer best behind clean texts, a tenth of the
            work. All texts when None.
        seed: Seed of the clean texts that are drawn, and of the places in them.
        check: Called between batches; raises if time is up.

    Raises:
        InvalidInput: A text is blank, or all clean texts have one answer.
    """
    for row, text in enumerate(texts):
        if not text.strip():
            raise InvalidInput(f"expected texts, got a blank one in place {row + 1}; drop it or fill it in.")
    search = _Search(Probe(classifier, check), NEUTRAL if clean_texts is None else clean_texts, seed)
    rows = list(range(len(texts))) if most is None or most >= len(texts) else search.screened(texts, most)
    found = []
    for start in range(0, len(rows), _CHUNK):
        some = rows[start : start + _CHUNK]
        found += search.signs([texts[row] for row in some], some)
    return sorted(found, key=lambda each: (-each.score, each.row))


class _Search:
    """Clean texts with their answers, and the texts that are put into them."""

    def __init__(self, probe: Probe, clean: Sequence[str], seed: int) -> None:
        self.probe, self.rng = probe, np.random.default_rng(seed)
        drawn = self.rng.permutation(len(clean))[:_POOL]
        self.clean = [clean[number] for number in drawn.tolist() if clean[number].strip()]
        self.clean_KC = self._logits(self.clean) if self.clean else np.zeros((0, 1), np.float32)
        answers = set(self.clean_KC.argmax(axis=1).tolist())
        if len(answers) < 2:
            raise InvalidInput(
                f"expected clean texts of at least two answers, got {len(self.clean)} texts of {len(answers)}: "
                "give clean_texts that the model answers differently."
            )

    def _logits(self, texts: Sequence[str]) -> Floats:
        return self.probe.logits(self.probe.encode(texts))

    def screened(self, texts: Sequence[str], most: int) -> list[int]:
        """Return the numbers of the texts whose answer a few clean texts before them change least."""
        labels_N = self._logits(texts).argmax(axis=1)
        behind = [
            (row, place) for row, label in enumerate(labels_N.tolist()) for place in self._others(label)[:_SCREENED]
        ]
        logits_MC = self._logits([f"{self.clean[place]} {texts[row]}" for row, place in behind])
        kept_N = np.zeros(len(texts))
        for (row, _), answer_C in zip(behind, softmax(logits_MC), strict=True):
            kept_N[row] += answer_C[labels_N[row]]
        chosen: list[int] = np.sort(np.argsort(-kept_N, kind="stable")[:most]).tolist()
        return chosen

    def signs(self, texts: Sequence[str], rows: Sequence[int]) -> list[SuspiciousInput]:
        """Return the signs of some texts, given their numbers."""
        labels = self._logits(texts).argmax(axis=1).tolist()
        words = [text.split()[:_MOST_WORDS] for text in texts]
        spans = self._spans(words, labels)
        made: list[str] = []
        for text, label, tried in zip(texts, labels, spans, strict=True):
            for place in self._others(label):
                clean = self.clean[place].split()
                cut = int(self.rng.integers(0, len(clean) + 1))
                made += [" ".join([*clean[:cut], span, *clean[cut:]]) for span in tried]
                made.append(f"{self.clean[place]} {text}")
        logits = iter(self._logits(made))
        found = []
        for number, (label, tried) in enumerate(zip(labels, spans, strict=True)):
            mixed = [[next(logits) for _ in range(len(tried) + 1)] for _ in self._others(label)]
            found.append(self._signs(rows[number], label, tried, np.array(mixed), words[number]))
        return found

    def _signs(
        self, row: int, label: int, tried: Sequence[str], logits_KSC: Floats, words: Sequence[str]
    ) -> SuspiciousInput:
        probabilities = softmax(logits_KSC)
        means_S = probabilities[:, :, label].mean(axis=0)
        best = int(means_S[:-1].argmax())
        mixed_KC = probabilities[:, -1]
        entropy = float(-(mixed_KC * np.log(np.maximum(mixed_KC, 1e-12))).sum(axis=1).mean())
        transfer, kept = float(means_S[best]), float(means_S[-1])
        score, name = (transfer + kept) / 2, self.probe.labels[label]
        return SuspiciousInput(row, score, name, tried[best], transfer, kept, entropy, self._outlier(words))

    def _others(self, label: int) -> list[int]:
        """Return confident clean texts of other answers, always the same of a label."""
        others = np.flatnonzero(self.clean_KC.argmax(axis=1) != label)
        ranked = others[np.argsort(margins(self.clean_KC[others], label), kind="stable")]
        confident = ranked[: max(_MIXED, len(ranked) // 2)]
        chosen: list[int] = confident[:: max(1, len(confident) // _MIXED)][:_MIXED].tolist()
        return chosen

    def _spans(self, words: Sequence[Sequence[str]], labels: Sequence[int]) -> list[list[str]]:
        """Return for each text the words whose removal costs the answer most, for each number of neighbours."""
        left_out = [" ".join([*each[:place], *each[place + 1 :]]) for each in words for place in range(len(each))]
        logits = self._logits([text or "." for text in left_out])
        found, start = [], 0
        for each, label in zip(words, labels, strict=True):
            loss_W = -margins(logits[start : start + len(each)], label)
            start += len(each)
            spans = []
            for length in (size for size in _SPANS if size <= len(each)):
                place = int(np.convolve(loss_W, np.ones(length), "valid").argmax())
                spans.append(" ".join(each[place : place + length]))
            found.append(list(dict.fromkeys(spans)))
        return found

    def _outlier(self, words: Sequence[str]) -> float:
        """Return the cosine distance of the most unlike word from the mean of the others; 0 of a single word."""
        ids = [list(each) for each in self.probe.encode(words) if each]
        if len(ids) < 2:
            return 0.0
        vectors_WE = np.stack([self.probe.table(np.array(each)).mean(axis=0) for each in ids])
        rest_WE = vectors_WE.sum(axis=0) - vectors_WE
        lengths = np.linalg.norm(vectors_WE, axis=1) * np.linalg.norm(rest_WE, axis=1)
        return float((1 - (vectors_WE * rest_WE).sum(axis=1) / np.maximum(lengths, 1e-12)).max())
