"""Several trained models of one task that answer together, also such of different families."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, Unpack, overload

import numpy as np

from bothways.data import Row, Source, read_rows
from bothways.errors import InvalidInput, UnreadColumn
from bothways.evaluation import Outcomes, Report, Temperature
from bothways.tasks.answering.fitting import answering_limits
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, Part, Worth, flattered, unmeasured, worth_card
from bothways.tasks.columns import column_settings, stored_columns
from bothways.tasks.ensembles.combining import Combination, Mean, Method, Vote
from bothways.tasks.ensembles.committee import Committee
from bothways.tasks.ensembles.files import (
    asked_reading,
    member_fingerprint,
    read_ensemble,
    stored_reading,
    write_ensemble,
)
from bothways.tasks.ensembles.members import committee_of, open_member
from bothways.tasks.ensembles.results import EnsemblePrediction
from bothways.tasks.opening import OpenOptions
from bothways.tasks.stored import Extras, damaged, stored_card
from bothways.tasks.task import Task

# A text, its words, or two texts: what models of one task are asked at once.
Asked: TypeAlias = str | Sequence[str] | tuple[str, str]

# What a reader of the card of an ensemble has to know that was not calibrated.
UNCALIBRATED = (
    unmeasured("no rows were given to calibrate with"),
    "The combined probabilities are not calibrated, though those of the members may be.",
)


class Ensemble:
    """Several trained models of one task that answer together.

    >>> ensemble = Ensemble.of(["runs/a", "runs/b"], method="mean", calibrate="validation.jsonl")  # doctest: +SKIP
    >>> ensemble.predict("Lakers win in overtime").together.label  # doctest: +SKIP
    'sports'

    Attributes:
        folders: Where the members are.
        committee: The members, how their answers become one, and what calibrates the result.
        columns: Where the parts of a row stand for the first member; see `read_from`.
        card: What the ensemble says of its making.
    """

    task: ClassVar[str] = "ensemble"

    def __init__(self, folders: Sequence[Path], committee: Committee[Any, Any, Any]) -> None:
        self.folders = list(folders)
        self.committee = committee
        self.card: dict[str, Any] = {}
        # How all members were asked to read texts, where that was not to be their own way.
        self._asked_reading: OpenOptions = {}

    @classmethod
    def of(
        cls,
        members: Sequence[str | Path],
        *,
        method: Method = "mean",
        calibrate: Source | None = None,
        columns: Mapping[str, object] | None = None,
        show_progress: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Combine saved models.

        Args:
            members: Folders of two or more models of one task: `TextClassifier` and `FewShotClassifier`, or
                `PairClassifier`, `TextTagger` or `QuestionAnswerer`.
            method: ``"mean"`` of the probabilities (or numbers), ``"vote"``, or ``"stacked"``, which is fitted on the
                calibration data; numbers have the mean only, and answers to questions no stacking.
            calibrate: Held-out labelled rows that none of the members was trained on; a file, or a list of mappings.
            columns: Where parts of a row stand that all members are to read alike, as `read_from` takes them.
            show_progress: Force the progress bar on or off.
            options: Where the members run, and how they read texts, where that is not to be their own way; see
                `bothways.tasks.opening.OpenOptions`. How they read is saved with the ensemble.

        Raises:
            InvalidInput: The models do not belong together, the method does not fit them, or the data are not usable.
            UnreadColumn: The members read no part of a row that ``columns`` names.
            NotFitted: One is no trained model.
        """
        if len(members) < 2:
            raise InvalidInput(f"an ensemble has two members or more, but got {len(members)}.")
        opened = [open_member(folder, options) for folder in members]
        committee = committee_of(opened, Vote() if method == "vote" else Mean())
        committee.check_method(method)
        if method == "stacked" and calibrate is None:
            raise InvalidInput("stacking is fitted on held-out rows: give some to calibrate with.")
        made = cls([folder for folder, _ in opened], committee)
        made._asked_reading = asked_reading(options)
        made.read_from(**(columns or {}))
        if calibrate is None:
            worth = Worth(None, (*UNCALIBRATED, *made._blindness()))
            made.card = _card(method, [{"member": _shown(folder)} for folder in made.folders], worth)
        else:
            made._calibrate(calibrate, method, show_progress)
        return made

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Unpack[OpenOptions]) -> Self:
        """Open a saved ensemble.

        Raises:
            UnknownModel: A member is not where it was.
            CorruptCheckpoint: A member is no longer what it was, or the file is damaged.
        """
        stored, folders = read_ensemble(Path(folder))
        # What calibrates them was learnt of texts that were read so.
        asked: OpenOptions = {**stored_reading(stored), **asked_reading(options)}
        opened = [open_member(member, {**options, **asked}) for member in folders]
        made = cls(folders, committee_of(opened, Mean()).restored(stored))
        made._asked_reading = asked
        made._take_columns(stored)
        made.card = stored_card(stored)
        return made

    @property
    def members(self) -> Sequence[Task]:
        """The models; what they read and how is their own."""
        return self.committee.models

    @property
    def columns(self) -> Any:  # noqa: ANN401 (the column names of the task)
        """Where the parts of a row stand for the first member, which also says where the labels are."""
        return self.members[0].columns

    @columns.setter
    def columns(self, columns: Any) -> None:  # noqa: ANN401 (as above)
        self.read_from(**_names(columns))

    def read_from(self, **names: object) -> None:
        """Let all members read parts of a row from the same columns.

        Without this, members that label texts or pairs read each the columns of its own training. Those that tag words
        or answer questions read what the first one does.

        Args:
            names: Columns by what stands in them, such as ``text=("body",)`` or ``label="topic"``.

        Raises:
            UnreadColumn: The members read no such part.
        """
        known = [each.name for each in fields(self.columns)]
        for name in names:
            if name not in known:
                raise UnreadColumn(f"the members read no {name!r} of a row. They read: {', '.join(known)}.")
        for member in self.members:
            member.columns = replace(member.columns, **names)

    @property
    def combination(self) -> Combination:
        """How the answers of the members become one."""
        return self.committee.combination

    @property
    def temperature(self) -> Temperature | None:
        """What calibrates the result; None without."""
        return self.committee.temperature

    @overload  # two texts are also a sequence of texts, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self, what: str | tuple[str, str], *, coverage: float | None = ..., show_progress: bool | None = ...
    ) -> EnsemblePrediction: ...

    @overload
    def predict(
        self, what: Sequence[Asked], *, coverage: float | None = ..., show_progress: bool | None = ...
    ) -> list[EnsemblePrediction]: ...

    def predict(
        self, what: Asked | Sequence[Asked], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> EnsemblePrediction | list[EnsemblePrediction]:
        """What the members say together, in order; one prediction for one alone.

        Args:
            what: What ``predict`` of the members takes: a text, a pair of texts, a text or its words, or a question
                with its context; or a list of them.
            coverage: Also give a set of labels, or an interval around a number, that holds the truth for this share of
                texts; of members that label texts or pairs, in an ensemble that was calibrated.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: A coverage is asked for, and the ensemble can promise none.
            InvalidInput: It is not what the members read, or something is empty.
            TextTooLong: A text is too long for a member whose policy is ``"error"``.
        """
        items, alone = self.committee.given(what)
        each_member = [items] * len(self.members)
        answers = list(self._predicted(each_member, coverage, len(items), show_progress))
        return answers[0] if alone else answers

    def predict_rows(
        self, rows: Iterable[Row], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Iterator[EnsemblePrediction]:
        """What the members say together of each row, in order and in flat memory; coverage as in `predict`."""
        count = len(self.members)
        if self._alike:
            return self._predicted(itertools.tee(map(self._asked(0), rows), count), coverage, None, show_progress)
        asked = [map(self._asked(member), copy) for member, copy in enumerate(itertools.tee(rows, count))]
        return self._predicted(asked, coverage, None, show_progress)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Rows as they would stand in a file, of texts that were typed in; each member finds them in its columns.

        Raises:
            InvalidInput: There can be no such row, or it is not what the members read.
        """
        if self._alike:
            return self.members[0].rows_of(texts)
        own = [member.rows_of(texts) for member in self.members]
        rows = [_joined(same) for same in zip(*own, strict=True)]
        for member, expected in enumerate(own):
            asked = self._asked(member)
            if [asked(row) for row in read_rows(rows)] != [asked(row) for row in read_rows(expected)]:
                raise InvalidInput(
                    "no row can be read alike by these members, as they learnt from columns that overlap: name one "
                    "that all are to read, with read_from or an option such as --text."
                )
        return rows

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> Report:
        """Metrics on labelled data, of the ensemble with 95 % bootstrap intervals and of each member.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        committee = self.committee
        said, truth, _ = self._labelled(data, show_progress)
        combined = [committee.combined(each) for each in said]
        report = committee.outcomes(combined, truth).report(resamples=resamples, seed=seed)
        apart = [committee.disagreement(*each).to_dict() for each in zip(said, combined, strict=True)]
        means = {name: float(np.mean([each[name] for each in apart])) for name in apart[0]}
        return replace(report, disagreement=means, members=tuple(self._alone(said, truth)))

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the results of the members together on labelled rows, to compare with another model's."""
        said, truth, _ = self._labelled(data, show_progress)
        return self.committee.outcomes([self.committee.combined(each) for each in said], truth)

    def facts(self) -> dict[str, object]:
        """Members, method, calibration, and names of what can be answered, as JSON values."""
        return {"members": [_shown(folder) for folder in self.folders], **self.committee.facts()}

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a small folder that points to the members, whole or not at all; see `bothways.tasks.ensembles.files`.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        columns = [column_settings(member.columns) for member in self.members]
        learnt = {**self.committee.stored(), "columns": columns, "reading": self._asked_reading}
        extras = {"task": self.task, **learnt, "card": self.card}
        fingerprints = [member_fingerprint(member) for member in self.folders]
        write_ensemble(folder, self.folders, fingerprints, extras, overwrite=overwrite)

    def _take_columns(self, stored: Extras) -> None:
        """Let the members read what they did when they were combined.

        Raises:
            CorruptCheckpoint: Those are not names of columns, or not those of as many members.
        """
        listed = stored.get("columns")
        if listed is None:  # saved when all members read what the first one did
            self.read_from(**_names(self.columns))
            return
        if not isinstance(listed, list) or len(listed) != len(self.members):
            raise damaged("columns", f"names for each of {len(self.members)} members", listed)
        for member, names in zip(self.members, listed, strict=True):
            member.columns = stored_columns({"columns": names}, member.columns)

    def _calibrate(self, data: Source, method: Method, show_progress: bool | None) -> None:
        """Fit the stacking where one is wanted, and what calibrates the result; write the card."""
        said, truth, part = self._labelled(data, show_progress)
        self.committee, learnt = self.committee.fitted(method, said, truth)
        combined = [self.committee.combined(each) for each in said]
        metrics = self.committee.outcomes(combined, truth).report()
        members = [{"member": name, **alone} for name, alone in self._alone(said, truth)]
        self.card = _card(method, members, Worth(metrics, (*_limits(metrics), *self._blindness())), part) | learnt

    def _blindness(self) -> tuple[str, ...]:
        """The limit of an ensemble of which no member tells texts from elsewhere."""
        return () if self.committee.knows_its_domain else (NOTICES_NOTHING,)

    def _predicted(
        self, items: Sequence[Iterable[Any]], coverage: float | None, total: int | None, show_progress: bool | None
    ) -> Iterator[EnsemblePrediction]:
        committee = self.committee
        promise = committee.promise(coverage)
        for said in self._run(items, "predicting", total, show_progress):
            combined = committee.combined(said)
            answer = promise(committee.predicted(combined))
            yield EnsemblePrediction(answer, committee.disagreement(said, combined))

    @property
    def _alike(self) -> bool:
        """Whether all members read the same of a row, so that it is to be read once."""
        first, *others = map(self.committee.columns_of, range(len(self.members)))
        return all(columns == first for columns in others)

    def _asked(self, member: int) -> Callable[[Row], Any]:
        """What makes of a row what a member reads."""
        committee, columns = self.committee, self.committee.columns_of(member)

        def asked(row: Row) -> Any:  # noqa: ANN401 (of the task)
            try:
                return committee.asked(row, columns)
            except InvalidInput as error:
                if columns == self.columns:
                    raise
                raise InvalidInput(
                    f"{error} The member {_shown(self.folders[member])!r} learnt from that column: name one that all "
                    "members are to read, with read_from or an option such as --text."
                ) from error

        return asked

    def _labelled(self, data: Source, show_progress: bool | None) -> tuple[list[Sequence[Any]], Any, dict[str, object]]:
        """For each labelled item what each member says; what is right; and what a card says of the items."""
        rows = list(read_rows(data))
        items, truth = self.committee.labelled(rows, self.columns)
        others = range(1, len(self.members))
        read = [items, *(items if self._alike else list(map(self._asked(member), rows)) for member in others)]
        said = list(self._run(read, "evaluating", len(items), show_progress))
        return said, truth, self.committee.part(items, truth)

    def _alone(self, said: Sequence[Sequence[Any]], truth: Any) -> list[tuple[str, Mapping[str, float]]]:  # noqa: ANN401 (of the task)
        """Metrics of each member by its name."""
        alone = [self.committee.alone(member, truth) for member in zip(*said, strict=True)]
        return list(zip(map(_shown, self.folders), alone, strict=True))

    def _run(
        self, items: Sequence[Iterable[Any]], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[Sequence[Any]]:
        """For each item what each member says, given what each member reads."""
        streams = [
            self.committee.said(member, copy, f"{description} {member + 1}/{len(items)}", total, show_progress)
            for member, copy in enumerate(items)
        ]
        return zip(*streams, strict=True)


def _names(columns: Any) -> dict[str, object]:  # noqa: ANN401 (any dataclass of column names)
    """Columns by what stands in them."""
    return {each.name: getattr(columns, each.name) for each in fields(columns)}


def _joined(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """One row with what each of several has in its columns; something rather than nothing."""
    joined: dict[str, object] = {}
    for row in rows:
        joined |= {name: value for name, value in row.items() if value or name not in joined}
    return joined


def _shown(folder: Path) -> str:
    """A member's folder as its user would write it: by its path from where they are, if it lies below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _card(
    method: Method, members: Sequence[Mapping[str, object]], worth: Worth, calibration: Part | None = None
) -> dict[str, Any]:
    """What an ensemble says of its making; what its members were trained on, their own cards say."""
    return {
        "method": method,
        "members": [dict(member) for member in members],
        "calibration_rows": 0 if calibration is None else calibration["rows"],
        "data": {} if calibration is None else {"calibration": dict(calibration)},
        **worth_card(worth, "the calibration rows"),
    }


def _limits(metrics: Report) -> tuple[str, ...]:
    """What a reader of metrics on the calibration rows has to know."""
    chose = "how the ensemble is calibrated and, where it is stacked, weighed"
    if metrics.kind == "question answering":
        return answering_limits(metrics, f"the threshold, and {chose}")
    return flattered("rows", chose), LIKE_THESE
