"""Text classification: one label, several labels, or a number for each text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Unpack, overload

from bothways.data import Source
from bothways.evaluation import Report
from bothways.tasks.columns import TextColumns, typed_texts, with_names
from bothways.tasks.fitting import FitOptions, fit_plan
from bothways.tasks.given import given_many
from bothways.tasks.labelling.sequence import SequenceTask
from bothways.tasks.predictions import Prediction
from bothways.tasks.targets import Logits, TargetKind, Truth
from bothways.training.record import TrainingRecord


class TextClassifier(SequenceTask[TextColumns]):
    """Fine-tunes an encoder to label texts, and labels them.

    >>> classifier = TextClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> classifier.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> classifier.predict("Lakers win in overtime").label  # doctest: +SKIP
    'sports'
    """

    task: ClassVar[str] = "classification"
    usual_columns = TextColumns()

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        text: str | tuple[str, ...] = "text",
        label: str = "label",
        target: TargetKind = "single",
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on labelled texts, keep a good epoch, and calibrate on the validation data.

        Kept is the latest epoch whose validation score is within a standard error of the best.

        Args:
            train_data: A file, or a list of mappings.
            validation: Held-out data; a tenth of the training data, drawn with ``seed``, when left out.
            text: Column of the texts; several are joined by a space.
            label: Column of the labels.
            target: ``"single"`` label, ``"multi"`` (lists of labels), or ``"regression"`` (numbers).
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        columns = TextColumns(_names(text) or TextColumns().text, label)
        return self._fit(train_data, validation, columns, target, fit_plan(self, options))

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        calibrated: bool | None = ...,
        coverage: float | None = ...,
        show_progress: bool | None = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        texts: Sequence[str],
        *,
        calibrated: bool | None = ...,
        coverage: float | None = ...,
        show_progress: bool | None = ...,
    ) -> list[Prediction]: ...

    def predict(
        self,
        texts: str | Sequence[str],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        show_progress: bool | None = None,
    ) -> Prediction | list[Prediction]:
        """Predictions for texts, in order; one prediction for a single string.

        Args:
            texts: One text or many.
            calibrated: True insists on calibrated probabilities, False wants those of the head as it is; when left
                out they are calibrated where the model is.
            coverage: Also give a set of labels (or an interval around a number) that holds the truth for this share of
                texts, such as 0.9.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: Calibrated probabilities were insisted on and the model has no calibration, or a coverage was
                and it can promise none.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = self.given(texts)
        stream = self.predict_stream(
            listed, calibrated=calibrated, coverage=coverage, total=len(listed), show_progress=show_progress
        )
        answers = list(stream)
        return answers[0] if alone else answers

    def given(self, texts: str | Sequence[str]) -> tuple[list[str], bool]:
        """The texts that `predict` was given, and whether it was one alone.

        Raises:
            InvalidInput: It is neither a string nor many.
        """
        return given_many(texts)

    def predict_stream(
        self,
        texts: Iterable[str],
        *,
        calibrated: bool | None = None,
        coverage: float | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for an iterable of any length, in order and in flat memory."""
        return self._predicted(
            texts, calibrated=calibrated, coverage=coverage, total=total, show_progress=show_progress
        )

    def evaluate(
        self,
        data: Source,
        *,
        text: str | tuple[str, ...] | None = None,
        label: str | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Metrics on labelled texts, with 95 % bootstrap intervals; probabilities are calibrated where the model is.

        Args:
            data: A file, or a list of mappings.
            text: Column of the texts, or several; those that it was trained on when left out.
            label: Column of the labels; the one that it was trained on when left out.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        columns = with_names(self.columns, text=_names(text), label=label)
        return self._evaluated(data, columns, resamples=resamples, seed=seed, show_progress=show_progress)

    def logits(
        self,
        data: Source,
        *,
        text: str | tuple[str, ...] | None = None,
        label: str | None = None,
        show_progress: bool | None = None,
    ) -> tuple[Logits, Truth]:
        """Uncalibrated logits (N, C) of labelled texts, and their encoded labels."""
        return self._logits(data, with_names(self.columns, text=_names(text), label=label), show_progress)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)


def _names(columns: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (columns,) if isinstance(columns, str) else columns
