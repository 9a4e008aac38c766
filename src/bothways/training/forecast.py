"""The duration of a training, estimated from its first updates on this machine, and options that make it shorter."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bothways.data.windows import WindowStore
from bothways.progress import Progress, duration, elapsed, phase

# Seconds of a training that is announced; seconds, minimum and maximum number of the updates that are measured.
_LONG, _MEASURED, _FEWEST, _MOST = 60.0, 2.0, 3, 20

# Time to read a token without gradients, as a part of that in an update, whose backward pass takes twice the forward's.
_READ = 1 / 3

WARM_UP = "contrastive warm-up"
"""Name of the stage that a cross-validation repeats."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The tokens that a training reads besides those of its updates.

    Attributes:
        validation: Tokens of a validation.
        afterwards: Tokens read after the last epoch.
        folds: Number of times that warm-up and updates are repeated, for a cross-validation.
        passes: Passes over the texts in an epoch of default length; an epoch has one if its number is given.
        texts: Number of training texts.
        split: Number of training texts that are read in several windows.
        first: Share of the tokens in the first windows of the texts.
    """

    validation: int = 0
    afterwards: int = 0
    folds: int = 0
    passes: int = 1
    texts: int = 0
    split: int = 0
    first: float = 1.0

    @classmethod
    def of(
        cls, store: WindowStore, held: WindowStore | None, *, again: float = 0.0, folds: int = 0, passes: int = 1
    ) -> "Reads":
        """Count the tokens that a training on stored texts reads; ``again`` is the share read again afterwards."""
        tokens, validation = int(store.lengths.sum()), 0 if held is None else int(held.lengths.sum())
        windows = store.windows_of_texts
        first = int(store.lengths[[each.start for each in windows]].sum()) / max(tokens, 1)
        split = sum(len(each) > 1 for each in windows)
        return cls(validation, validation + round(again * tokens), folds, passes, store.texts, split, first)

    def __add__(self, other: "Reads") -> "Reads":
        texts = self.texts + other.texts
        first = (self.first * self.texts + other.first * other.texts) / max(texts, 1)
        validation, afterwards = self.validation + other.validation, self.afterwards + other.afterwards
        passes = max(self.passes, other.passes)
        return Reads(validation, afterwards, 0, passes, texts, self.split + other.split, first)


@dataclass(slots=True)
class Forecast:
    """Measures the first updates of a run of ``epochs`` epochs of ``per_epoch`` updates, ``total`` in all."""

    reads: Reads
    epochs: int
    per_epoch: int
    total: int
    updates: int = -1  # measured so far, after the first, which also allocates memory
    tokens: int = 0
    began: float = 0.0

    def after(self, done: int, tokens: int, bar: Progress) -> "Forecast | None":
        """Measure update number ``done``, of so many tokens; return None after enough were measured.

        Then the bar shows the duration of the whole and shorter options, unless it is short.
        """
        self.updates += 1
        if self.updates == 0:
            self.began = time.perf_counter()
            return self
        self.tokens += tokens
        passed = time.perf_counter() - self.began
        if self.updates < _FEWEST or (passed < _MEASURED and self.updates < _MOST):
            return self
        for line in self._lines(passed / self.updates, done):
            bar.say(line)
        return None

    def before(self, read: float, tokens: int) -> None:
        """Show the estimate before the first stage, given the seconds to read a token and the tokens of an update."""
        self.updates, self.tokens = 1, tokens
        for line in self._lines(read / _READ * tokens, 0):
            phase(line)

    def _lines(self, seconds: float, done: int) -> Iterator[str]:
        left = self._left(seconds, self.total - done, self.epochs - done // self.per_epoch, done)
        before, whole = elapsed(), elapsed() + left
        if left < _LONG:
            return
        split = f"; {self.reads.split:,} of {self.reads.texts:,} texts are read in several windows"
        so_far = f"{duration(before)} of it so far{split if self.reads.split else ''}"
        yield f"expected time: about {duration(whole)} in all, {so_far}"
        shorter = ", ".join(
            f"{option} ({_flag(option)}) about {duration(max(before, each))}" for option, each in self._shorter(seconds)
        )
        if shorter:
            yield f"shorter: {shorter}"

    def _left(self, seconds: float, updates: int, validations: int, done: int = 0) -> float:
        reads, whole = self.reads, done + updates
        read = _READ * seconds * self.updates / max(self.tokens, 1)
        folds = reads.folds * (elapsed(WARM_UP) + seconds * whole)
        return seconds * updates + read * (reads.validation * validations + reads.afterwards) + folds

    def _shorter(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Yield options, and the seconds of a training with each."""
        before, reads = elapsed(), self.reads
        one = -(-self.per_epoch // reads.passes)
        if self.epochs > 1 and one < self.total:
            yield "epochs=1", before + self._left(seconds, one, 1)
        elif self.total > 1:
            yield f"updates={self.total // 2}", before + self._left(seconds, self.total // 2, -(-self.epochs // 2))
        if reads.split:
            yield 'on_overflow="truncate"', reads.first * (before + self._left(seconds, self.total, self.epochs))


def _flag(option: str) -> str:
    name, _, value = option.partition("=")
    return f"--{name.replace('_', '-')} {value.strip(chr(34))}"
