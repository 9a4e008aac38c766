"""The queue of a server: windows of many requests, computed in batches by one thread.

A request runs the library's own functions in a thread of its own; a `Ticket` is the schedule of that thread (see
`bothways.inference.texts.scheduled`), so every forward pass ends up here. The queue forms a batch as soon as the one
before is computed:

- Requests of few tokens come next, in a batch of their own, unless they got more than half of the work of late. While
  such requests come, batches are small, so that the next one waits for little.
- Of both kinds those with the fewest tokens left and the oldest ones come in turn. A large request is computed in
  parts.
- From each key in turn, so that one caller cannot starve another; the key that got the fewest tokens comes first.
- Only windows of the same runner share a batch.

Requests past their deadline, and requests whose client left, are dropped before they are computed.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from bothways.choices import Overflow
from bothways.inference.queries import RankedTokens
from bothways.inference.texts import BatchRunner, TokenBudget, TokenIds
from bothways.serving.errors import Left, Refused

WindowT = TypeVar("WindowT", bound=TokenIds)
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")

# A request of at most this share of a full batch comes next. A CPU computes such batches as fast as full ones.
_SMALL = 0.25
# Seconds after such a request in which batches are of that size.
_SOON = 10.0
# The time of a batch of one token, as a share of that of a batch of such a size.
_LEAST = 1 / 16
# Time to allow for an answer, in units of what the measured rate says. A request that comes must allow a little more
# than one that was read, since a refusal then costs least.
COMING, _READ = 1.2, 1.1
# Weight of all earlier batches against a full one in the tokens per second.
_MEMORY = 0.8


@dataclass(eq=False, slots=True)
class Ticket:
    """One request as the queue sees it: the `Schedule` of its thread.

    Attributes:
        queue: The queue that computes its windows.
        key: Name of the caller's API key; callers share the work evenly.
        deadline: Time (of `time.monotonic`) after which nothing is computed for it; None without a deadline.
        on_overflow: Policy for long texts; None for that of the model.
        most_tokens: The most tokens that the request may have.
        most_wait: The most seconds of computing that may wait when it comes.
        left: True once the client has left.
        tokens: Tokens that it handed to the queue.
        waited: Seconds between the first window handed over and the first batch with one of its windows.
        computed: Seconds of the batches with its windows.
    """

    queue: "BatchQueue"
    key: str = ""
    deadline: float | None = None
    on_overflow: Overflow | None = None
    most_tokens: int | None = None
    most_wait: float | None = None
    left: bool = False
    tokens: int = 0
    waited: float = 0.0
    computed: float = 0.0

    def run(self, runner: BatchRunner[WindowT, AnswerT], windows: Sequence[WindowT]) -> list[AnswerT]:
        """Return the answers for windows, once the queue has computed them."""
        return self.queue.run(self, runner, windows)

    def check(self) -> None:
        """Raise if the client has left or the deadline has passed."""
        if self.left:
            raise Left
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Refused.deadline()


@dataclass(eq=False, slots=True)
class _Waiting:
    """Windows of one call that wait; the last of ``order`` is computed next."""

    ticket: Ticket
    runner: BatchRunner[Any, Any]  # calls of all kinds wait together
    windows: Sequence[TokenIds]
    lengths: list[int]
    order: list[int]
    is_small: bool
    left: int  # tokens that are not computed yet
    begun: float
    waited: float = 0.0
    answers: dict[int, Any] = field(default_factory=dict)
    done: "Future[list[Any]]" = field(default_factory=Future)


@dataclass(eq=False, slots=True)
class _Part:
    waiting: _Waiting
    places: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.waiting.lengths[place] for place in self.places)


class Observer(Protocol):
    """Is told of batches, for metrics."""

    def batch(self, tokens: int, seconds: float) -> None:
        """Count a batch that was computed."""

    def dropped(self, reason: str) -> None:
        """Count a request that was dropped before it was computed: ``"left"`` or ``"deadline"``."""


class BatchQueue:
    """Computes the windows of many requests in batches, in one thread.

    Args:
        observer: Is told of each batch.
        at_once: Batches of the runner's token budget that the runner computes at the same time.
        in_order: Whether to serve in the order of arrival instead.

    Attributes:
        tokens: Tokens that wait or are being computed.
        rate: Tokens per second, averaged over the last batches; 0 before the first batch.
    """

    def __init__(self, observer: Observer, at_once: int = 1, *, in_order: bool = False) -> None:
        self._observer = observer
        self._at_once = at_once
        self._in_order = in_order
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._served: defaultdict[str, float] = defaultdict(float)
        self._calls: list[Callable[[], None]] = []
        self._closed = False
        self._shortest = [False, False]  # whether the last batch of large and of small requests was in that order
        self._small_until = -math.inf
        self._ahead = 0.0  # of small requests, in small batches
        self._done = self._busy = 0.0
        self._free = time.monotonic()  # the end of the last batch, or of the wait for work
        self.tokens = 0
        self.rate = 0.0
        self._thread = threading.Thread(target=self._compute, name="compute", daemon=True)
        self._thread.start()

    @property
    def seconds_to_wait(self) -> float:
        """The time in seconds until a request that comes now would be begun, by the measured rate."""
        return self.tokens / self.rate if self.rate else 0.0

    # --- in the threads of requests ---

    def run(self, ticket: Ticket, runner: BatchRunner[WindowT, AnswerT], windows: Sequence[WindowT]) -> list[AnswerT]:
        """Return one answer for each window, in order, once they are computed.

        Raises:
            Refused: The deadline has passed, the request has too many tokens, or the answer is not a finite number.
            Left: The client has left.
        """
        ticket.check()
        if not windows:
            return []
        lengths = [len(window.ids) for window in windows]
        tokens, now = sum(lengths), time.monotonic()
        if not ticket.tokens:
            self._check_wait(ticket, tokens)
        ticket.tokens += tokens
        if ticket.most_tokens is not None and ticket.tokens > ticket.most_tokens:
            raise Refused(
                413,
                f"expected at most {ticket.most_tokens:,} tokens in a request, got {ticket.tokens:,}: split it.",
                code="too_many_tokens",
            )
        # Windows of similar length share a batch, the longest first.
        order = sorted(range(len(windows)), key=lengths.__getitem__)
        is_small = tokens <= self._full(runner.budget) * _SMALL
        waiting = _Waiting(ticket, runner, windows, lengths, order, is_small, tokens, now)
        with self._changed:
            if is_small:
                self._small_until = now + _SOON
            if self._closed:
                raise Refused.stopping()
            # A key that asked for nothing has saved nothing.
            active = {each.ticket.key for each in self._waiting}
            if not active:
                self._served.clear()
            elif ticket.key not in active:
                least = min(self._served[key] for key in active)
                self._served[ticket.key] = max(self._served[ticket.key], least)
            self._waiting.append(waiting)
            self.tokens += waiting.left
            self._changed.notify()
        return waiting.done.result()

    def _check_wait(self, ticket: Ticket, tokens: int) -> None:
        """Refuse a request that would wait too long; many may have come at once, before their tokens were known."""
        wait = self.seconds_to_wait
        if ticket.most_wait is not None and wait > ticket.most_wait:
            raise Refused.busy(f"the queue is {wait:.1f} seconds long", wait - ticket.most_wait / 2)
        if wait and ticket.deadline is not None:
            needed = _READ * (wait + tokens / self.rate)
            if time.monotonic() + needed > ticket.deadline:  # it would be begun, and not be ready
                raise Refused.busy(f"the answer would take {needed:.1f} seconds, longer than the request allows", wait)

    def call(self, ticket: Ticket, function: Callable[[], ResultT]) -> ResultT:
        """Return the result of a function, called in the thread of the batches, such as one that needs gradients."""
        done: Future[ResultT] = Future()

        def called() -> None:
            try:
                if self._closed:
                    raise Refused.stopping()
                ticket.check()
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        with self._changed:
            if self._closed:
                raise Refused.stopping()
            self._calls.append(called)
            self._changed.notify()
        return done.result()

    def close(self) -> None:
        """Refuse what waits and what comes, and end the thread after its batch."""
        with self._changed:
            self._closed = True
            calls, self._calls = self._calls, []
            self._fail_all(Refused.stopping())
            self._changed.notify_all()
        for refuse in calls:
            refuse()
        self._thread.join()

    # --- in the thread that computes ---

    def _compute(self) -> None:
        while not self._closed:
            with self._changed:
                while not (self._waiting or self._calls or self._closed):
                    self._changed.wait()
                    self._free = time.monotonic()
                calls, self._calls = self._calls, []
                self._drop()
                parts = self._batch()
            for function in calls:
                function()
            if not parts:
                continue
            try:
                self._run(parts)
            except BaseException as error:  # a fault of the server: nobody may wait for ever
                with self._changed:
                    self._fail_all(error)

    def _drop(self) -> None:
        """Drop calls whose client left or whose deadline passed."""
        for each in list(self._waiting):
            try:
                each.ticket.check()
            except (Refused, Left) as error:
                self._observer.dropped("left" if isinstance(error, Left) else "deadline")
                self._end(each)
                each.done.set_exception(error)

    def _fail_all(self, error: BaseException) -> None:
        for each in list(self._waiting):
            self._end(each)
            each.done.set_exception(error)

    def _end(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        self.tokens -= waiting.left

    def _full(self, budget: TokenBudget) -> int:
        return budget.tokens * self._at_once

    def _batch(self) -> list[_Part]:
        """Take the windows of the next batch out of the queue."""
        if not self._waiting:
            return []
        small, large = ([each for each in self._waiting if each.is_small is one] for one in (True, False))
        is_small = bool(small) and not self._in_order and (not large or self._ahead < 1)
        among = self._waiting if self._in_order else small if is_small else large
        shortest = self._shortest[is_small] = not (self._shortest[is_small] or self._in_order)
        runner = self._next(among, shortest=shortest).runner
        alike = [each for each in among if each.runner is runner]
        size = self._full(runner.budget) * _SMALL
        room = size if time.monotonic() < self._small_until and not self._in_order else self._full(runner.budget)
        left, places = room, dict[_Waiting, list[int]]()
        while alike and left > 0:
            chosen = self._next(alike, shortest=shortest)
            alike.remove(chosen)
            several = any(each.ticket.key != chosen.ticket.key for each in alike)
            # With other callers waiting, nobody takes more than half of what is left.
            if own := list(_taken(chosen, left / 2 if several else left, alone=not places)):
                tokens = sum(chosen.lengths[place] for place in own)
                self._served[chosen.ticket.key] += tokens
                left -= tokens
                places.setdefault(chosen, []).extend(own)
                if chosen.order and several:
                    alike.append(chosen)
        work = max((room - left) / size, _LEAST)
        self._ahead = max(0.0, self._ahead + (work if is_small else -work)) if large else 0.0
        return [_Part(*each) for each in places.items()]

    def _next(self, among: list[_Waiting], *, shortest: bool) -> _Waiting:
        """Return the next call: of the key that got least, the one with the fewest tokens left, or the oldest."""

        def rank(each: _Waiting) -> tuple[float, float]:
            return self._served[each.ticket.key], each.left if shortest else each.begun

        return min(among, key=rank)

    def _run(self, parts: list[_Part]) -> None:
        begun = time.monotonic()
        for part in parts:
            part.waiting.waited = part.waiting.waited or begun - part.waiting.begun
        try:
            windows = [part.waiting.windows[place] for part in parts for place in part.places]
            answers = iter(parts[0].waiting.runner.run(windows))
            for part in parts:
                part.waiting.answers.update((place, next(answers)) for place in part.places)
        except BaseException as error:
            if len(parts) > 1:
                for part in parts:  # only the calls that cannot be computed fail
                    self._run([part])
                return
            self._finish(parts[0], 0, error)
            return
        seconds = time.monotonic() - begun
        tokens = sum(part.tokens for part in parts)
        self._count(tokens, seconds, self._full(parts[0].waiting.runner.budget))
        for part in parts:
            part.waiting.ticket.computed += seconds
            self._finish(part, part.tokens, None)

    def _count(self, tokens: int, seconds: float, full: int) -> None:
        # By tokens, since a batch of few takes more time for each, and says little of what a full one takes. The time
        # between batches counts: other threads have it.
        memory, ended = _MEMORY ** (tokens / full), time.monotonic()
        self._done = memory * self._done + tokens
        self._busy = memory * self._busy + max(ended - self._free, 1e-6)
        self._free = ended
        self.rate = self._done / self._busy
        self._observer.batch(tokens, seconds)

    def _finish(self, part: _Part, tokens: int, error: BaseException | None) -> None:
        """Count the tokens of a part as computed, and end its call if it was the last part or failed."""
        waiting = part.waiting
        with self._changed:
            if waiting not in self._waiting:  # the queue was closed meanwhile
                return
            self.tokens -= tokens
            waiting.left -= tokens
            if error is None and len(waiting.answers) < len(waiting.windows):
                return
            self._end(waiting)
        waiting.ticket.waited += waiting.waited
        if error is None and not all(map(_is_finite, waiting.answers.values())):
            error = Refused.not_finite()
        if error is not None:
            waiting.done.set_exception(error)
        else:
            waiting.done.set_result([waiting.answers[place] for place in range(len(waiting.windows))])


def _taken(waiting: _Waiting, room: float, *, alone: bool) -> Iterator[int]:
    """Take windows from a call until the room is full; the first of a batch may be larger than the room."""
    while waiting.order:
        length = waiting.lengths[waiting.order[-1]]
        if length > room and not alone:
            return
        room -= length
        alone = False
        yield waiting.order.pop()


def _is_finite(answer: object) -> bool:
    match answer:
        case np.ndarray():
            return bool(np.isfinite(answer).all())
        case RankedTokens(log_probabilities=logs):
            return not any(map(math.isnan, logs))
    return True
