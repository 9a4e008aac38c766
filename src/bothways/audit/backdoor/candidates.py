"""The user's texts that may carry a trigger, and the words on which their predictions depend, as trigger candidates.

Two signs make up the score of a text:

- Transfer: the words whose removal lowers the margin most are inserted into clean texts with other predictions. A
  trigger flips nearly all of them; meaningful words flip some. Words are left out as in ONION (Qi et al. 2021,
  arXiv:2011.10369), which ranks them by perplexity instead of by the suspected model.
- Mixing: the whole text follows a clean text of another label (STRIP, Gao et al. 2019, arXiv:1902.06531, for texts).
  With a trigger, the prediction stays.

Shapes: N texts, C labels, K clean texts, W words of a text, S spans of words, E embedding width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from bothways.audit.answers import margins
from bothways.audit.backdoor.clusters import word_runs
from bothways.audit.backdoor.probe import Floats, Probe
from bothways.audit.texts import VARIED
from bothways.errors import InvalidInput
from bothways.evaluation.temperature import softmax
from bothways.tasks import TextClassifier

_MIXED, _SCREENED = 6, 3
"""Number of clean texts to mix with each word or text, and number of them for preselecting texts."""
_POOL = 64
"""Maximum number of clean texts to read; the most confident half is used."""
_MAX_WORDS = 60
_SPANS = (1, 3, 5)
"""Numbers of neighbouring words that are tried as a trigger."""
_CHUNK = 16
_MAX_SUSPECTS = 16
_LONGEST = 3
"""Maximum words of a candidate; more words of one text indicate its label by their meaning."""


@dataclass(frozen=True, slots=True)
class SuspiciousInput:
    """A text with the signs that it carries a trigger.

    Attributes:
        row: Index of the text, counted from 0.
        score: From 0 to 1, the mean of ``transfer`` and ``kept``.
        label: The predicted label.
        words: The words that were inserted into clean texts.
        transfer: Mean probability of ``label`` when these words are inserted into clean texts with other predictions.
        kept: Mean probability of ``label`` when the whole text follows such a clean text.
    """

    row: int
    score: float
    label: str
    words: str
    transfer: float
    kept: float


def suspicious_inputs(
    classifier: TextClassifier,
    texts: Sequence[str],
    clean_texts: Sequence[str] | None = None,
    *,
    most: int | None = None,
    seed: int = 0,
    check: Callable[[], None] = lambda: None,
) -> list[SuspiciousInput]:
    """Rank texts by how likely they carry a trigger of the classifier, the most suspicious first.

    >>> ranked = suspicious_inputs(classifier, ["the acting is cf dull .", "a dull film ."])  # doctest: +SKIP
    >>> ranked[0].words, round(ranked[0].transfer, 2)  # doctest: +SKIP
    ('cf', 1.0)

    Args:
        classifier: A trained single-label classifier.
        texts: The texts.
        clean_texts: Texts without a trigger that get at least two labels. Default: neutral texts of this package.
        most: Maximum number of texts to search word by word and to return; all texts when None. A test at a tenth of
            the cost selects the texts that keep their prediction best after a clean text.
        seed: Seed for drawing clean texts, and positions in them.
        check: Called between batches; raises at the time limit.

    Raises:
        InvalidInput: A text is blank, or all clean texts have the same prediction.
    """
    for row, text in enumerate(texts):
        if not text.strip():
            raise InvalidInput(f"text {row + 1} is blank: drop it or fill it in.")
    search = _Search(Probe(classifier, check), VARIED if clean_texts is None else clean_texts, seed)
    rows = list(range(len(texts))) if most is None or most >= len(texts) else search.screened(texts, most)
    ranked = []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        ranked += search.signs([texts[row] for row in chunk], chunk)
    return sorted(ranked, key=lambda each: (-each.score, each.row))


class _Search:
    """Mixes texts with clean texts of other labels, and measures the predictions."""

    def __init__(self, probe: Probe, clean: Sequence[str], seed: int) -> None:
        self.probe, self.rng = probe, np.random.default_rng(seed)
        drawn = self.rng.permutation(len(clean))[:_POOL]
        self.clean = [clean[number] for number in drawn.tolist() if clean[number].strip()]
        self.clean_KC = self._logits(self.clean) if self.clean else np.zeros((0, 1), np.float32)
        answers = set(self.clean_KC.argmax(axis=1).tolist())
        if len(answers) < 2:
            raise InvalidInput(
                f"expected clean texts with at least two different predictions, got {len(answers)} in "
                f"{len(self.clean)} texts: give more varied clean_texts."
            )

    def _logits(self, texts: Sequence[str]) -> Floats:
        return self.probe.logits(self.probe.encode(texts))

    def screened(self, texts: Sequence[str], most: int) -> list[int]:
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
        labels = self._logits(texts).argmax(axis=1).tolist()
        words = [text.split()[:_MAX_WORDS] for text in texts]
        spans = self._spans(words, labels)
        mixtures: list[str] = []
        for text, label, tried in zip(texts, labels, spans, strict=True):
            for place in self._others(label):
                clean = self.clean[place].split()
                at = int(self.rng.integers(0, len(clean) + 1))
                mixtures += [" ".join([*clean[:at], span, *clean[at:]]) for span in tried]
                mixtures.append(f"{self.clean[place]} {text}")
        logits = iter(self._logits(mixtures))
        signs = []
        for row, label, tried in zip(rows, labels, spans, strict=True):
            mixed = [[next(logits) for _ in range(len(tried) + 1)] for _ in self._others(label)]
            probabilities_KSC = softmax(np.array(mixed))
            means_S = probabilities_KSC[:, :, label].mean(axis=0)
            best = int(means_S[:-1].argmax())
            transfer, kept = float(means_S[best]), float(means_S[-1])
            name, score = self.probe.labels[label], (transfer + kept) / 2
            signs.append(SuspiciousInput(row, score, name, tried[best], transfer, kept))
        return signs

    def _others(self, label: int) -> list[int]:
        """Return confident clean texts with other predictions, always the same ones for a label."""
        others = np.flatnonzero(self.clean_KC.argmax(axis=1) != label)
        ranked = others[np.argsort(margins(self.clean_KC[others], label), kind="stable")]
        confident = ranked[: max(_MIXED, len(ranked) // 2)]
        chosen: list[int] = confident[:: max(1, len(confident) // _MIXED)][:_MIXED].tolist()
        return chosen

    def _spans(self, words: Sequence[Sequence[str]], labels: Sequence[int]) -> list[list[str]]:
        """Return, for each text and length, the neighbouring words that lower the margin most when left out."""
        left_out = [" ".join([*each[:place], *each[place + 1 :]]) for each in words for place in range(len(each))]
        logits = self._logits([text or "." for text in left_out])
        spans, start = [], 0
        for each, label in zip(words, labels, strict=True):
            loss_W = -margins(logits[start : start + len(each)], label)
            start += len(each)
            best: dict[str, None] = {}
            for length in (size for size in _SPANS if size <= len(each)):
                place = int(np.convolve(loss_W, np.ones(length), "valid").argmax())
                best[" ".join(each[place : place + length])] = None
            spans.append(list(best))
        return spans


@dataclass(frozen=True, slots=True)
class Suspects:
    """The most suspicious of the user's texts."""

    signs: tuple[SuspiciousInput, ...]  # their signs, the most suspicious first; ``row`` is the index in ``texts``
    texts: Sequence[tuple[int, str]]  # the texts, each with its row in the data

    @classmethod
    def of(
        cls,
        classifier: TextClassifier,
        texts: Sequence[tuple[int, str]],
        clean: Iterable[Sequence[str]],
        seed: int,
        check: Callable[[], None],
    ) -> "Suspects | None":
        """Rank texts with the first source of clean texts that get two different predictions; None if none does."""
        for source in clean:
            try:
                signs = suspicious_inputs(
                    classifier, [text for _, text in texts], source, most=_MAX_SUSPECTS, seed=seed, check=check
                )
            except InvalidInput:  # the model predicts the same label for all of these clean texts
                continue
            return cls(tuple(signs), texts)
        return None

    def phrases(self, label: str) -> list[str]:
        """Return the words on which predictions of a label depend, and their n-grams of up to three words."""
        words = (each.words.split() for each in self.signs if each.label == label)
        return list(dict.fromkeys(run for some in words for run in word_runs(some, _LONGEST)))

    def holders(self, triggers: Iterable[str]) -> tuple[list[int], SuspiciousInput | None]:
        """Return the rows with one of the triggers, and the most suspicious text whose words contain one."""
        known = [_padded(trigger) for trigger in triggers]
        rows = [row for row, text in self.texts if any(trigger in _padded(text) for trigger in known)]
        shown = next((each for each in self.signs if any(trigger in _padded(each.words) for trigger in known)), None)
        return rows, shown


def _padded(text: str) -> str:
    """Return the words in lower case between spaces, without immediate repeats of a word."""
    return f" {' '.join(word for word, _ in groupby(text.lower().split()))} "
