"""What all tasks share that learn on held-out rows how far their answers can be trusted.

Shapes: N texts, C outputs, K numbers that the model gives for a text: C, and the features that its detector reads.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from bothways.data import Row, Source, read_rows
from bothways.evaluation import Evidence, Report, TextsRead
from bothways.tasks.labelling.trust import Trust, card_told_from
from bothways.tasks.labelling.trusted import Trusted
from bothways.tasks.predictions import Prediction, Reading, warn_of_cut
from bothways.tasks.targets import Logits, Truth
from bothways.text.texts import Text


class TrustingTask(ABC):
    """A task that answers each text, or pair of texts, with a label, several labels, or a number, and knows how surely.

    Attributes:
        columns: Where texts and labels stand in a row.
        card: What the model says of its making.
    """

    columns: Any
    card: dict[str, Any]

    @property
    @abstractmethod
    def trusted(self) -> Trusted:
        """What is predicted, and how far to trust it.

        Raises:
            NotFitted: There is no trained head yet.
        """

    @abstractmethod
    def predict_rows(
        self, rows: Iterable[Row], *, coverage: float | None = None, show_progress: bool | None = None
    ) -> Iterator[Prediction]:
        """A prediction for each row, in order and in flat memory; columns as in training, coverage as in `predict`."""

    @abstractmethod
    def said(
        self, texts: Iterable[Any], description: str, total: int | None, show: bool | None
    ) -> Iterator[tuple[Logits, Reading]]:
        """Of each text, or pair: uncalibrated logits and what the detector reads, (K,), and how much of it was read.

        In order and in flat memory.

        Args:
            texts: What the model reads.
            description: Of the progress bar.
            total: How many texts there are, where that is known.
            show: Force the progress bar on or off.
        """

    @abstractmethod
    def evidence(self, data: Source, *, show_progress: bool | None = None) -> tuple[Evidence, Truth, TextsRead]:
        """Of labelled rows: uncalibrated logits and what the detector reads, the encoded labels, how texts were read.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """

    @abstractmethod
    def _evidence_of(self, texts: list[Text], show_progress: bool | None) -> tuple[Evidence, TextsRead]:
        """What the detector reads of texts, and how they were read."""

    @abstractmethod
    def _set_trust(self, trust: Trust) -> None:
        """Answer from now on with this."""

    def inputs(self, rows: Source) -> list[Text]:
        """The texts, or pairs of texts, of rows; columns as in training, unless others were set.

        Raises:
            InvalidInput: One is missing or empty; the message names the row.
        """
        return [self.columns.inputs.read(row) for row in read_rows(rows)]

    def report(
        self,
        logits_NC: Logits,
        truth: Truth,
        *,
        calibrated: bool | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Report:
        """Metrics of logits that `evidence` gave, with this model's calibration or without."""
        return self.trusted.report(logits_NC, truth, calibrated=calibrated, resamples=resamples, seed=seed)

    def tell_from(self, others: Source, *, show_progress: bool | None = None) -> None:
        """Move the border of the domain to where it tells held-out texts of it best from these others.

        Args:
            others: Rows from elsewhere, in the columns of the training; their labels are not read.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        elsewhere, read = self._elsewhere(others, show_progress)
        warn_of_cut(read)
        trust = self.trusted.told_from(elsewhere)
        self._set_trust(trust)
        if "trust" in self.card:
            self.card = card_told_from(self.card, trust, len(elsewhere.logits_NC))

    def out_of_domain(
        self,
        inside: Evidence,
        others: Source,
        *,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """How well the model tells texts of its domain from others.

        Args:
            inside: What `evidence` gave for texts of the domain.
            others: Rows from elsewhere; their labels are not read.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.
        """
        outside, read = self._elsewhere(others, show_progress)
        return replace(self.trusted.out_of_domain(inside, outside, resamples=resamples, seed=seed), tokens_read=read)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        return self.trusted.facts()

    def _elsewhere(self, others: Source, show_progress: bool | None) -> tuple[Evidence, TextsRead]:
        self.trusted.border()  # before the texts are read, and not after
        return self._evidence_of(self.inputs(others), show_progress)
