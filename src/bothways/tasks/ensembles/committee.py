"""What an ensemble asks of its members, the same of those that label texts, tag words and answer questions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.data import Row, Source
from bothways.data.windows import digest_of_texts
from bothways.errors import InvalidInput, NotCalibrated
from bothways.evaluation import Outcomes, Temperature
from bothways.tasks.ensembles.combining import Combination, Disagreement, Method, Spread
from bothways.tasks.ensembles.results import Together
from bothways.tasks.predictions import Reading
from bothways.tasks.stored import Extras
from bothways.tasks.task import Task

ItemT = TypeVar("ItemT")
SaidT = TypeVar("SaidT")
TruthT = TypeVar("TruthT")


class Committee(Protocol[ItemT, SaidT, TruthT]):
    """Several models of one task, how their answers become one, and what was learnt about that.

    ``ItemT`` is what a member reads at once: a text, the words of a text, a question and its context. ``SaidT`` is what
    a member says of it, with its own calibration in it, and also what the members say together, before the calibration
    of that. ``TruthT`` is what the items of labelled data are to be answered with.
    """

    @property
    def models(self) -> Sequence[Task]:
        """The members."""

    @property
    def combination(self) -> Combination:
        """How their answers become one."""

    @property
    def temperature(self) -> Temperature | None:
        """What calibrates the result; None without."""

    @property
    def knows_its_domain(self) -> bool:
        """Whether it notices texts that are unlike those of its training."""

    def check_method(self, method: str) -> None:
        """Refuse a way to combine that such answers do not have.

        Raises:
            InvalidInput: There is no such way, or it does not fit.
        """

    def columns_of(self, member: int) -> Any:  # noqa: ANN401 (the column names of the task)
        """Where what a member reads stands in a row."""

    def asked(self, row: Row, columns: Any) -> ItemT:  # noqa: ANN401 (the column names of the task)
        """What a row asks.

        Raises:
            InvalidInput: It lacks something, or that is not usable.
        """

    def given(self, what: Any) -> tuple[Sequence[ItemT], bool]:  # noqa: ANN401 (what `predict` of the members takes)
        """What ``predict`` was given, and whether it was one alone.

        Raises:
            InvalidInput: It is not what such models read.
        """

    def labelled(self, data: Source, columns: Any) -> tuple[Sequence[ItemT], TruthT]:  # noqa: ANN401 (as above)
        """What labelled data ask, and what is right.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """

    def part(self, items: Sequence[ItemT], truth: TruthT) -> dict[str, object]:
        """What a card says of labelled items: how many, and SHA-256 of their texts and of what is right."""

    def said(
        self, member: int, items: Iterable[ItemT], description: str, total: int | None, show: bool | None
    ) -> Iterator[SaidT]:
        """What one member says of items, in order and in flat memory."""

    def combined(self, said: Sequence[SaidT]) -> SaidT:
        """What all members say of one item together, given what each of them does."""

    def promise(self, coverage: float | None) -> Callable[[Together], Together]:
        """What adds to an answer of `predicted` what holds the truth this often; nothing without a coverage.

        Raises:
            NotCalibrated: It can promise none.
            InvalidInput: So few held-out items cannot promise this one.
        """

    def predicted(self, combined: SaidT) -> Together:
        """What that is to whoever asked."""

    def disagreement(self, said: Sequence[SaidT], combined: SaidT) -> Disagreement | Spread:
        """How far the members are apart on one item."""

    def fitted(self, method: Method, said: Sequence[Sequence[SaidT]], truth: TruthT) -> tuple[Self, dict[str, Any]]:
        """The same members, combined and calibrated as held-out items teach it, and what the card says of that.

        Args:
            method: How their answers are to become one.
            said: For each item what each member says.
            truth: Of the items.

        Raises:
            InvalidInput: The items are too few.
        """

    def outcomes(self, combined: Sequence[SaidT], truth: TruthT) -> Outcomes:
        """Return the results of the members together, which reports and comparisons are computed from."""

    def alone(self, said: Sequence[SaidT], truth: TruthT) -> Mapping[str, float]:
        """Metrics of what one member says."""

    def facts(self) -> dict[str, object]:
        """What `stored` says, and names of what can be answered, as JSON values."""

    def stored(self) -> dict[str, object]:
        """What was learnt, for ``bothways.json``."""

    def restored(self, stored: Extras) -> Self:
        """The same members with what was stored.

        Raises:
            CorruptCheckpoint: That is damaged.
        """


def no_promise(coverage: float | None, answers: str) -> Callable[[Together], Together]:
    """That of members of whose answers no coverage can be promised.

    Raises:
        NotCalibrated: One is asked for.
    """
    if coverage is not None:
        raise NotCalibrated(
            f"a coverage was asked for, but it is promised of labels and of numbers for whole texts, not of {answers}."
        )
    return lambda answer: answer


def texts_part(texts: Sequence[str | Sequence[str]]) -> dict[str, object]:
    """What every card of an ensemble says of texts, pairs or lists of words: how many, and SHA-256 of them.

    Not of their tokens, which each member has others of.
    """
    return {"rows": len(texts), "texts_sha256": digest_of_texts(texts)}


def places_of(ours: Sequence[str], first: str, theirs: Sequence[str], folder: Path) -> NDArray[np.int64]:
    """Where a member has the labels of the first one.

    Args:
        ours: Labels of the first member.
        first: Its name.
        theirs: Labels of the member.
        folder: Where it is.

    Raises:
        InvalidInput: It has other labels.
    """
    lacking, more = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if lacking or more:
        differences = [f"lacks {', '.join(map(repr, lacking))}"] * bool(lacking)
        differences += [f"has {', '.join(map(repr, more))} besides"] * bool(more)
        raise InvalidInput(
            f"members of an ensemble have the same labels, but {str(folder)!r} {' and '.join(differences)}, against "
            f"those of {first!r}."
        )
    return np.array([list(theirs).index(label) for label in ours], dtype=np.int64)


def most(readings: Sequence[Reading]) -> Reading:
    """That of the member that needed most windows, or dropped most tokens."""
    return Reading(max(each.windows for each in readings), max(each.dropped_tokens for each in readings))
