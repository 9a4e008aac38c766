"""Pairs of texts: entailment, paraphrase, similarity, relevance; a label, several, or a number for each pair."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Unpack, overload

from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.evaluation import Report
from bothways.tasks.columns import PairColumns, with_names
from bothways.tasks.fitting import FitOptions, fit_plan
from bothways.tasks.labelling.sequence import SequenceTask
from bothways.tasks.predictions import Prediction
from bothways.tasks.targets import Logits, TargetKind, Truth
from bothways.tasks.twos import PAIR, OneOfMany, checked_two, given_twos
from bothways.training.record import TrainingRecord

Pair = tuple[str, str]


class PairClassifier(SequenceTask[PairColumns]):
    """Fine-tunes an encoder to say how two texts stand to each other; it reads both at once.

    With numbers as labels it is a cross-encoder: how alike two texts are, or how well a passage answers a query. Of a
    pair that is too long, the second text is cut into windows and the first is repeated in each.

    >>> pairs = PairClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> pairs.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> pairs.predict(("A man sleeps.", "Nobody is awake.")).label  # doctest: +SKIP
    'neutral'
    """

    task: ClassVar[str] = "pairs"
    usual_columns = PairColumns()

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        text_a: str = "text_a",
        text_b: str = "text_b",
        label: str | None = None,
        score: str | None = None,
        target: TargetKind = "single",
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on labelled pairs, keep a good epoch, and calibrate on the validation data.

        Kept is the latest epoch whose validation score is within a standard error of the best.

        Args:
            train_data: A file, or a list of mappings.
            validation: Held-out data; when left out, about a tenth of the training data, drawn with ``seed``, pairs
                with the same first text together.
            text_a: Column of the first texts.
            text_b: Column of the second texts.
            label: Column of the labels; ``"label"`` unless there is a ``score``.
            score: Column of numbers to predict, instead of labels: the target is then ``"regression"``.
            target: ``"single"`` label, ``"multi"`` (lists of labels), or ``"regression"`` (numbers).
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        if score is not None and (label is not None or target == "multi"):
            raise InvalidInput("score predicts a number, so it goes neither with label nor with the target 'multi'.")
        columns = PairColumns(text_a, text_b, score or label or "label")
        kind = target if score is None else "regression"
        return self._fit(train_data, validation, columns, kind, fit_plan(self, options))

    @overload
    def predict(
        self,
        pairs: Pair,
        *,
        calibrated: bool | None = ...,
        coverage: float | None = ...,
        show_progress: bool | None = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        pairs: Sequence[OneOfMany],
        *,
        calibrated: bool | None = ...,
        coverage: float | None = ...,
        show_progress: bool | None = ...,
    ) -> list[Prediction]: ...

    def predict(
        self,
        pairs: Pair | Sequence[OneOfMany],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        show_progress: bool | None = None,
    ) -> Prediction | list[Prediction]:
        """Predictions for pairs, in order; one prediction for a single pair.

        Args:
            pairs: A tuple of two texts, or many pairs, each a tuple or a list.
            calibrated: True insists on calibrated probabilities, False wants those of the head as it is; when left
                out they are calibrated where the model is.
            coverage: Also give a set of labels (or an interval around a number) that holds the truth for this share of
                texts, such as 0.9.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: Calibrated probabilities were insisted on and the model has no calibration, or a coverage was
                and it can promise none.
            InvalidInput: A text is empty, or something is no pair.
            TextTooLong: A pair is too long and the policy is ``"error"``, or its first text leaves no room.
        """
        listed, alone = self.given(pairs)
        stream = self.predict_stream(
            listed, calibrated=calibrated, coverage=coverage, total=len(listed), show_progress=show_progress
        )
        answers = list(stream)
        return answers[0] if alone else answers

    def given(self, pairs: object) -> tuple[list[Pair], bool]:
        """The pairs that `predict` was given, checked, and whether it was one alone."""
        return given_twos(pairs, PAIR)

    def predict_stream(
        self,
        pairs: Iterable[OneOfMany],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        checked = (checked_two(index, pair, PAIR) for index, pair in enumerate(pairs))
        return self._predicted(
            checked, calibrated=calibrated, coverage=coverage, total=total, show_progress=show_progress
        )

    def evaluate(
        self,
        data: Source,
        *,
        text_a: str | None = None,
        text_b: str | None = None,
        label: str | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Metrics on labelled pairs, with 95 % bootstrap intervals; probabilities are calibrated where the model is.

        Args:
            data: A file, or a list of mappings.
            text_a: Column of the first texts; the one that it was trained on when left out, as for the others.
            text_b: Column of the second texts.
            label: Column of the labels.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        columns = with_names(self.columns, text_a=text_a, text_b=text_b, label=label)
        return self._evaluated(data, columns, resamples=resamples, seed=seed, show_progress=show_progress)

    def logits(
        self,
        data: Source,
        *,
        text_a: str | None = None,
        text_b: str | None = None,
        label: str | None = None,
        show_progress: bool | None = None,
    ) -> tuple[Logits, Truth]:
        """Uncalibrated logits (N, C) of labelled pairs, and their encoded labels."""
        columns = with_names(self.columns, text_a=text_a, text_b=text_b, label=label)
        return self._logits(data, columns, show_progress)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """One row, as it would stand in a file, of two texts.

        Raises:
            InvalidInput: They are not two.
        """
        if len(texts) != 2:
            raise InvalidInput(f"this model reads pairs, so it wants two texts, but got {len(texts)}.")
        return [{self.columns.text_a: texts[0], self.columns.text_b: texts[1]}]
