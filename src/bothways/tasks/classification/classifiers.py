"""Text classification and classification of pairs of texts."""

from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Unpack, overload

from typing_extensions import TypeVar

from bothways.choices import TargetKind
from bothways.tasks.classification.outputs import LabelOutputs
from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.heads.targets import Classification, MultiLabelPrediction, Prediction, RegressionPrediction
from bothways.tasks.opening import LabelArguments
from bothways.tasks.outputs import TrainedHead, with_threshold
from bothways.tasks.task import Task

if TYPE_CHECKING:
    from bothways.data import Source

LabelT = TypeVar("LabelT", covariant=True, default=Classification)


class TextClassifier(Task[str, LabelT, TrainedHead[LabelOutputs]], Generic[LabelT]):
    """A single-label or multi-label text classifier with calibrated probabilities, or a regression model.

    >>> classifier = TextClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> classifier.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> classifier.predict("Lakers win in overtime").label  # doctest: +SKIP
    'sports'
    """

    spec = CLASSIFICATION

    def fit_threshold(self, others: "Source", *, show_progress: bool | None = None) -> None:
        """Set the out-of-domain threshold to the value that best separates held-out rows from out-of-domain rows.

        Args:
            others: Out-of-domain rows, in the columns of the training; their labels are not read.
            show_progress: Force the progress bar on or off.

        Raises:
            NotCalibrated: The model has no detector.
            InvalidInput: The data are not usable.

        Warns:
            TextsTruncated: Texts were truncated (only if ``on_overflow`` truncates).
        """
        self._fitted = with_threshold(self.fitted, self.name, others, show_progress)

    if TYPE_CHECKING:  # the target with which a model is opened determines the type of its predictions

        @overload  # type: ignore[override]  # narrower than `Task.from_pretrained`: options of other tasks are refused
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["single"] | None = ..., **options: Unpack[LabelArguments]
        ) -> "TextClassifier[Classification]": ...

        @overload
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["multi"], **options: Unpack[LabelArguments]
        ) -> "TextClassifier[MultiLabelPrediction]": ...

        @overload
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["regression"], **options: Unpack[LabelArguments]
        ) -> "TextClassifier[RegressionPrediction]": ...

        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: TargetKind | None = None, **options: Unpack[LabelArguments]
        ) -> "TextClassifier[Prediction]":
            """Open an encoder to fine-tune, or a trained model to use; see `bothways.tasks.task.Task`."""


class PairClassifier(Task[tuple[str, str], LabelT, TrainedHead[LabelOutputs]], Generic[LabelT]):
    """A cross-encoder for text pairs: entailment, paraphrase, similarity, relevance.

    The encoder reads both texts together. Trained on numeric labels, the model scores the similarity of two texts, or
    the relevance of a passage to a query. If a pair is too long, the longer text is split into windows and the other is
    repeated in each window.

    >>> pairs = PairClassifier.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> pairs.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> pairs.predict(("A man sleeps.", "Nobody is awake.")).label  # doctest: +SKIP
    'neutral'
    """

    spec = PAIRS

    def fit_threshold(self, others: "Source", *, show_progress: bool | None = None) -> None:
        """Set the out-of-domain threshold; see `TextClassifier.fit_threshold`."""
        self._fitted = with_threshold(self.fitted, self.name, others, show_progress)

    if TYPE_CHECKING:  # the target with which a model is opened determines the type of its predictions

        @overload  # type: ignore[override]  # narrower than `Task.from_pretrained`: options of other tasks are refused
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["single"] | None = ..., **options: Unpack[LabelArguments]
        ) -> "PairClassifier[Classification]": ...

        @overload
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["multi"], **options: Unpack[LabelArguments]
        ) -> "PairClassifier[MultiLabelPrediction]": ...

        @overload
        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: Literal["regression"], **options: Unpack[LabelArguments]
        ) -> "PairClassifier[RegressionPrediction]": ...

        @classmethod
        def from_pretrained(
            cls, name_or_path: str | Path, *, target: TargetKind | None = None, **options: Unpack[LabelArguments]
        ) -> "PairClassifier[Prediction]":
            """Open an encoder to fine-tune, or a trained model to use; see `bothways.tasks.task.Task`."""
