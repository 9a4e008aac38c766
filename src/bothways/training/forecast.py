"""The duration of a training, estimated from its first updates on this machine, and options that make it shorter."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bothways.data.windows import WindowStore
from bothways.progress import Progress, duration, elapsed, phase

# Seconds of a training that is announced; seconds, minimum and maximum number of the updates that are measured.
_LONG, _MEASURED, _FEWEST, _MOST = 60.0, 2.0, 3, 20

# Relative error, and seconds left, of an estimate that is corrected after an epoch.
_WRONG, _SOON = 0.15, 20.0


READ = 1 / 3
"""Usual time to read a token, as a part of that in an update, whose backward pass takes twice the forward's."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The tokens that a training reads besides those of its updates.

    Attributes:
        validation: Tokens of a validation.
        afterwards: Tokens read after the last epoch.
        folds: Number of times that all is repeated, for a cross-validation.
        passes: Passes over the texts in an epoch of default length; an epoch has one if its number is given.
        texts: Number of training texts.
        split: Number of training texts that are read in several windows.
        first: Share of the tokens in the first windows of the texts.
        start: Tokens that a linear start reads.
        warm_up: Tokens of the updates of a warm-up, after which the linear start is repeated.
        cost: Time to read a token, as a part of that in an update.
    """

    validation: int = 0
    afterwards: int = 0
    folds: int = 0
    passes: int = 1
    texts: int = 0
    split: int = 0
    first: float = 1.0
    start: int = 0
    warm_up: int = 0
    cost: float = READ

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

    @property
    def starts(self) -> int:
        """The number of linear starts."""
        return 2 if self.warm_up else 1

    def __add__(self, other: "Reads") -> "Reads":
        texts = self.texts + other.texts
        first = (self.first * self.texts + other.first * other.texts) / max(texts, 1)
        validation, afterwards = self.validation + other.validation, self.afterwards + other.afterwards
        passes = max(self.passes, other.passes)
        return Reads(validation, afterwards, 0, passes, texts, self.split + other.split, first)


@dataclass(slots=True)
class Forecast:
    """Measures a run of ``epochs`` epochs of ``per_epoch`` updates, ``total`` in all.

    The first updates are measured, then each epoch, in seconds per token of an update.
    """

    reads: Reads
    epochs: int
    per_epoch: int
    total: int
    measuring: bool = True
    """True until the first updates are measured; each then ends with a synchronisation."""
    updates: int = -1  # measured so far
    tokens: int = 0
    work: float = 0.0  # tokens of updates, and tokens of validations times their cost
    began: float = 0.0
    estimate: float = 0.0  # the last one shown, in seconds

    def before(self, seconds: float, tokens: float, besides: float = 0.0) -> None:
        """Show the estimate before the first stage.

        Args:
            seconds: Seconds per token of an update.
            tokens: Tokens of an update.
            besides: Seconds of a teacher that reads the texts, and of fitting linear models.
        """
        reads = self.reads
        read = reads.start * reads.starts + reads.validation
        for line in self._lines(seconds, tokens, 0, besides + seconds * (reads.warm_up + reads.cost * read)):
            phase(line)

    def update(self, done: int, tokens: int, bar: Progress) -> None:
        """Measure update number ``done``, of so many tokens.

        After enough of them, the bar shows the duration of the whole and shorter options, unless it is short.
        """
        self.updates += 1
        if self.updates == 0:
            self.began = time.perf_counter()
            return
        self.tokens += tokens
        self.work += tokens
        passed = time.perf_counter() - self.began
        if self.measuring and self.updates >= _FEWEST and (passed >= _MEASURED or self.updates >= _MOST):
            self.measuring = False
            for line in self._lines(passed / self.work, self.tokens / self.updates, done):
                bar.say(line)

    def epoch(self, done: int, bar: Progress) -> None:
        """Measure an epoch that ended with update ``done``; the bar shows the new estimate if the last was wrong."""
        self.work += self.reads.cost * self.reads.validation
        if self.measuring:
            return
        if self.updates > 0:
            seconds = (time.perf_counter() - self.began) / self.work
            left = self._left(seconds, self.tokens / self.updates, self.total - done, done)
            whole = elapsed() + left
            if left > (_SOON if self.estimate else _LONG) and abs(whole - self.estimate) > _WRONG * whole:
                self.estimate = whole
                bar.say(f"expected time: now about {duration(whole)} in all, {duration(elapsed())} of it so far")
        self.updates, self.tokens, self.work, self.began = 0, 0, 0.0, time.perf_counter()

    def _lines(self, seconds: float, tokens: float, done: int, early: float = 0.0) -> Iterator[str]:
        left = early + self._left(seconds, tokens, self.total - done, done)
        before, whole = elapsed(), elapsed() + left
        if left < _LONG:
            return
        self.estimate = whole
        split = f"; {self.reads.split:,} of {self.reads.texts:,} texts are read in several windows"
        so_far = f"{duration(before)} of it so far{split if self.reads.split else ''}"
        yield f"expected time: about {duration(whole)} in all, {so_far}"
        shorter = ", ".join(
            f"{option} ({_flag(option)}) about {duration(max(before, each))}"
            for option, each in self._shorter(seconds, tokens, early)
        )
        if shorter:
            yield f"shorter: {shorter}"

    def _left(self, seconds: float, tokens: float, updates: int, done: int = 0) -> float:
        """Return the seconds of ``updates`` updates, their validations, and everything afterwards."""
        reads, validations = self.reads, -(-(done + updates) // self.per_epoch) - done // self.per_epoch
        read = validations * reads.validation + reads.afterwards
        fold = reads.warm_up + tokens * (done + updates) + reads.cost * reads.start
        return seconds * (tokens * updates + reads.cost * read + reads.folds * fold)

    def _shorter(self, seconds: float, tokens: float, early: float) -> Iterator[tuple[str, float]]:
        """Yield options, and the seconds of a training with each."""
        before, reads = elapsed() + early, self.reads
        one = -(-self.per_epoch // reads.passes)
        if self.epochs > 1 and one < self.total:
            yield "epochs=1", before + self._left(seconds, tokens, one)
        elif self.total > 1:
            yield f"updates={self.total // 2}", before + self._left(seconds, tokens, self.total // 2)
        if reads.split:
            whole = before + self._left(seconds, tokens, self.total)
            yield 'on_overflow="truncate"', reads.first * whole


def _flag(option: str) -> str:
    name, _, value = option.partition("=")
    return f"--{name.replace('_', '-')} {value.strip(chr(34))}"
