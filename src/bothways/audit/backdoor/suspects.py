"""The user's texts that may carry a trigger, the words on which their answers hang, and the finding that lists them.

Those words are further candidates of the scanner, which judges them like all others: by the hard texts that they turn,
and by their meaning. `bothways.audit.backdoor.inputs` has the signs of a text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bothways.audit.backdoor.inputs import SuspiciousInput, suspicious_inputs
from bothways.audit.backdoor.phrases import runs_of
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.errors import InvalidInput
from bothways.tasks import TextClassifier

_MOST, _LISTED, _CHARACTERS = 16, 10, 300
"""Texts whose words are looked at, texts that are listed, and characters of a text that are shown."""
_LONGEST = 3
"""Words of a candidate: more words of one text speak for its label by what they mean."""

_REFERENCES = (
    "Qi et al. 2021, ONION, arXiv:2011.10369",
    "Gao et al. 2019, STRIP, arXiv:1902.06531",
)


@dataclass(frozen=True, slots=True)
class Suspects:
    """The most suspicious of the user's texts.

    Attributes:
        found: Their signs, the most suspicious first; ``row`` is the place among the texts.
        texts: The texts, each with the number of its row.
        total: Number of the user's texts, of which these were drawn.
    """

    found: tuple[SuspiciousInput, ...]
    texts: Sequence[tuple[int, str]]
    total: int

    def phrases(self, label: str) -> list[str]:
        """Return the words on which answers with this label hang, and runs of up to three of them."""
        words = (each.words.split() for each in self.found if each.label == label)
        return list(dict.fromkeys(run for some in words for run in runs_of(some, _LONGEST)))

    def finding(self, detector: str, triggers: Iterable[str]) -> Finding:
        """Return the list of texts, which is a fault where texts hold a trigger that was found."""
        known = [_padded(trigger) for trigger in triggers]
        holders = [number for number, text in self.texts if any(trigger in _padded(text) for trigger in known)]
        shown = next((each for each in self.found if any(trigger in _padded(each.words) for trigger in known)), None)
        first = shown or self.found[0]
        row = self.texts[first.row][0] if shown or not holders else holders[0]
        drawn = f"{len(self.texts):,}" if len(self.texts) == self.total else f"{len(self.texts):,} of {self.total:,}"
        return Finding(
            detector,
            Severity.HIGH if holders else Severity.INFO,
            f"{len(holders)} of {drawn} texts hold a trigger that was found, such as row {row}"
            if holders
            else f"the most suspicious of {drawn} texts is row {row}, by {first.words!r}",
            Evidence(
                "mean probability of the answer in clean texts with the words, and behind clean texts",
                first.score,
                None,
                "no threshold of its own: words are judged as triggers, by hard texts and by their meaning",
                len(self.texts),
                {
                    "texts": [self._listed(each) for each in self.found[:_LISTED]],
                    "searched_word_by_word": len(self.found),
                    "rows_with_a_trigger": holders,
                },
            ),
            "backdoor-inputs",
            location=f"row {row}",
            remedy="Do not trust the answers to these texts; ask where they come from." if holders else "",
            references=_REFERENCES,
        )

    def _listed(self, each: SuspiciousInput) -> dict[str, Any]:
        row, text = self.texts[each.row]
        return {
            "row": row,
            "text": text[:_CHARACTERS],
            "words": each.words,
            "label": each.label,
            "score": round(each.score, 4),
            "transfer": round(each.transfer, 4),
            "kept": round(each.kept, 4),
            "outlier": round(each.outlier, 4),
        }


def suspects(
    classifier: TextClassifier[Any],
    texts: Sequence[tuple[int, str]],
    total: int,
    clean: Iterable[Sequence[str]],
    *,
    seed: int,
    check: Callable[[], None],
) -> Suspects | None:
    """Return the most suspicious texts; None where no source of clean texts has two answers.

    Args:
        classifier: The classifier.
        texts: The user's texts, each with the number of its row.
        total: Number of the user's texts, of which these were drawn.
        clean: Sources of clean texts, the best first; the first that has texts of two answers is used.
        seed: Seed of the clean texts that are drawn.
        check: Called between batches; raises where time is up.
    """
    for source in clean:
        try:
            found = suspicious_inputs(
                classifier, [text for _, text in texts], source, most=_MOST, seed=seed, check=check
            )
        except InvalidInput:  # one answer to all of these
            continue
        return Suspects(tuple(found), texts, total)
    return None


def _padded(text: str) -> str:
    """Return the words between spaces; one that follows itself, as in triggers that the search piles up, once."""
    return f" {' '.join(word for word, _ in groupby(text.lower().split()))} "
