"""The tags of a tagger, and the best tag sequence that is valid in their scheme.

Shapes: W words of one text, M words of several texts, C tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Scheme
from bothways.data import Example
from bothways.data.label_rows import near_label, spelled
from bothways.data.labels import naming_of_numbers
from bothways.errors import InvalidInput
from bothways.evaluation.tag_schemes import (
    OUTSIDE,
    TagSpan,
    bare_spelling,
    check_tags,
    complete,
    converted,
    follows_its_own,
    goes_on,
    must_go_on,
    parted,
    scheme_of,
    scheme_of_names,
    spans_of,
    tag_of,
    unwritten,
)
from bothways.evaluation.temperature import Temperature, apply_temperature

# Far below any relevant difference between scores.
_BREAKS_TIES = 1e-6


@dataclass(frozen=True)
class TagSet:
    """Tags in the order of the model's outputs, and their scheme."""

    labels: tuple[str, ...]
    scheme: Scheme

    def __post_init__(self) -> None:
        if self.scheme != "plain" and OUTSIDE not in self.labels:
            raise InvalidInput(
                f"the scheme {self.scheme} needs the tag {OUTSIDE!r} among the labels, got {list(self.labels)}. "
                "Choose the scheme 'plain' if the labels do not encode spans."
            )
        never = unwritten(self.labels, self.scheme)
        if never:
            raise InvalidInput(
                f"with the tags {list(self.labels)} of this model, no valid {self.scheme} sequence contains "
                f"{', '.join(map(repr, never))}. Choose the scheme of the tags, or 'plain' if they encode no spans."
            )

    @classmethod
    def of_rows(
        cls, rows: Sequence[Example[tuple[str, ...]]], scheme: Scheme, categories: Sequence[str] = ()
    ) -> "TagSet":
        """Return the tags in training rows, at least two; a span scheme adds its other tags of the same labels.

        Tags of ``categories`` keep the order of these.
        """
        found = sorted({tag for row in rows for tag in row.label})
        labels = found if scheme == "plain" else complete({parted(tag)[1] for tag in found if tag != OUTSIDE}, scheme)
        if len(labels) < 2:
            raise InvalidInput(
                f"a tagger needs at least two tags, but every word of the training data has {labels[0]!r}. "
                "Check the column of the tags."
            )
        if set(labels) <= set(categories):
            labels = [name for name in categories if name in labels]
        return cls(tuple(labels), scheme)

    @classmethod
    def declared(cls, names: Sequence[str], scheme: Scheme | None) -> "TagSet":
        """Return the tags that a user declares, with the other tags of the same spans; plain if ``scheme`` says so."""
        own: Scheme = "plain" if scheme == "plain" else scheme_of_names(names)
        spans = {parted(tag)[1] for tag in names if tag != OUTSIDE}
        others = () if own == "plain" else (tag for tag in complete(spans, own) if tag not in names)
        return cls((*names, *others), own)

    def continued(self, before: "TagSet | None") -> "TagSet":
        """Return the tag set ``before`` if it has the same tags and scheme, to keep their order; else this tag set."""
        if before is not None and before.scheme == self.scheme and set(before.labels) == set(self.labels):
            return before
        return self

    @cached_property
    def span_labels(self) -> tuple[str, ...]:
        """The labels of spans; empty for plain tags."""
        if self.scheme == "plain":
            return ()
        return tuple(sorted({parted(label)[1] for label in self.labels if label != OUTSIDE}))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The tags, also in all other schemes."""
        if self.scheme == "plain":
            return self.labels
        return tuple(
            dict.fromkeys((*self.labels, *(tag_of(kind, each) for each in self.span_labels for kind in "BIESLU")))
        )

    @cached_property
    def unseen_C(self) -> NDArray[np.float64]:
        """Scores of a word without tokens: all nearly equal, so that the tags of its neighbours decide.

        In a tie, the word is outside of spans, or else continues a span.
        """
        if self.scheme == "plain":
            return np.zeros(len(self.labels))
        ranks = [2 if label == OUTSIDE else int(parted(label)[0] == "I") for label in self.labels]
        return np.array(ranks) * _BREAKS_TIES

    def encode(self, rows: Sequence[Example[tuple[str, ...]]]) -> list[NDArray[np.int64]]:
        """Return the tag indices of each row; raise `InvalidInput` for an unknown tag."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for row in rows:
            for place, tag in enumerate(row.label, start=1):
                if tag not in numbers:
                    raise InvalidInput(
                        f"{row.where} has the tag {spelled(tag, self.labels)} at word {place}, which this tagger does "
                        f"not know. It knows {', '.join(spelled(each, [tag]) for each in self.labels)}."
                        f"{naming_of_numbers(tag, self.labels) or near_label(tag, self.labels)}"
                    )
        return [np.array([numbers[tag] for tag in row.label], dtype=np.int64) for row in rows]

    def spans(self, tags: Sequence[str]) -> list[TagSpan]:
        """Return the spans that tags encode."""
        return spans_of(tags, self.scheme)

    def spans_of_texts(self, tags_M: NDArray[np.int64], lengths: Sequence[int]) -> list[list[TagSpan]]:
        """Return the spans of concatenated texts, given the tag indices of their words."""
        tags, ends = [self.labels[number] for number in tags_M.tolist()], np.cumsum(lengths).tolist()
        return [self.spans(tags[end - length : end]) for end, length in zip(ends, lengths, strict=True)]

    def best(
        self, scores_MC: NDArray[np.float64], lengths: Sequence[int], temperature: Temperature | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the best tags of concatenated texts (see `decode`) and their probabilities, word by word."""
        best_M = self.decode(scores_MC, lengths)
        probabilities_MC = apply_temperature(scores_MC, temperature or 1.0)
        return best_M, probabilities_MC[np.arange(len(best_M)), best_M]

    def decode(self, scores_MC: NDArray[np.float64], lengths: Sequence[int]) -> NDArray[np.int64]:
        """Return the tag indices (M) of concatenated texts with the highest sum of scores in each text.

        Only sequences that are valid in the scheme are considered, so that spans are complete (Viterbi 1967, without
        transition scores). The result is the best tag of each word if these tags are valid together. Scores are
        log-probabilities or logits.
        """
        best_M: NDArray[np.int64] = scores_MC.argmax(axis=1)
        if self._free:
            return best_M
        ends = np.cumsum(lengths)
        before_M, at_end = np.roll(best_M, 1), len(self.labels)
        before_M[ends[:-1]] = at_end
        before_M[:1] = at_end
        broken_M = ~self._allowed[before_M, best_M]
        broken_M[ends - 1] |= ~self._allowed[best_M[ends - 1], at_end]
        starts = ends - np.asarray(lengths)
        for text in np.flatnonzero(np.add.reduceat(broken_M, starts)):
            words = slice(starts[text], ends[text])
            best_M[words] = self._best_path(scores_MC[words])
        return best_M

    @cached_property
    def _free(self) -> bool:
        return bool(self._allowed.all())

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        """True if a column's tag may follow a row's tag (C + 1, C + 1); last row: text start, last column: end."""
        borders = [*self.labels, OUTSIDE]
        known = set(self.labels)
        return np.array([[self._follows(left, right, known) for right in borders] for left in borders])

    def _follows(self, left: str, right: str, known: set[str]) -> bool:
        label = parted(right)[1]
        same = left != OUTSIDE and parted(left)[1] == label
        open_ = same and parted(left)[0] in ("B", "I")
        if follows_its_own(right, self.scheme) and not same:
            return False
        # If a checkpoint has no tag for the first word of a span, the tag of later words may begin a span.
        if goes_on(right, self.scheme) and not open_ and not (self.scheme == "BIO" and tag_of("B", label) not in known):
            return False
        return not must_go_on(left, self.scheme) or (open_ and goes_on(right, self.scheme))

    def _best_path(self, scores_WC: NDArray[np.float64]) -> NDArray[np.int64]:
        words, tags = scores_WC.shape
        allowed, border = np.where(self._allowed, 0.0, -np.inf), tags
        behind_CC = allowed[:border, :border]
        origin_WC = np.zeros((words, tags), dtype=np.int64)
        total_C = scores_WC[0] + allowed[border, :border]
        for word in range(1, words):
            reached_CC = total_C[:, None] + behind_CC
            origin_WC[word] = reached_CC.argmax(axis=0)
            total_C = reached_CC.max(axis=0) + scores_WC[word]
        path_W = np.empty(words, dtype=np.int64)
        path_W[-1] = (total_C + allowed[:border, border]).argmax()
        for word in range(words - 1, 0, -1):
            path_W[word - 1] = origin_WC[word, path_W[word]]
        return path_W


def tagged_in(
    rows: Sequence[Example[tuple[str, ...]]], scheme: Scheme, wanted: Scheme
) -> list[Example[tuple[str, ...]]]:
    """Convert the tags of rows to the scheme ``wanted``; raise `InvalidInput` for an invalid sequence of tags."""
    if scheme != "plain" and (bare := bare_spelling({tag for row in rows for tag in row.label}, scheme)):
        rows = [replace(row, label=tuple(bare[tag] for tag in row.label)) for row in rows]
    check_tags([(row.label, row.where) for row in rows], scheme)
    if scheme == wanted:
        return list(rows)
    return [replace(row, label=tuple(converted(row.label, scheme, wanted))) for row in rows]


def data_scheme(rows: Sequence[Example[tuple[str, ...]]], scheme: Scheme | None, known: Scheme | None = None) -> Scheme:
    """Return the given scheme, or one that fits the tags in the rows, preferably ``known`` (the model's)."""
    if scheme is not None:
        return scheme
    if known == "plain":
        return known
    return scheme_of(((row.label, row.where) for row in rows), known)
