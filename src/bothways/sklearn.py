"""Estimators with the interface of scikit-learn: for pipelines, cross-validation and grid searches.

Each is a thin layer above the task of the same name (regressors: above the classifier). ``fit`` opens the checkpoint
``model`` and trains a copy of it; the fitted task is the attribute ``model_``, with all its methods.

>>> from sklearn.model_selection import cross_val_score
>>> cross_val_score(TextClassifier(epochs=2), texts, labels)  # doctest: +SKIP
array([0.91, 0.93, 0.9 , 0.92, 0.94])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways import tasks
from bothways.choices import ClassWeights, Pooling
from bothways.data import as_batch, class_label
from bothways.errors import InvalidInput, shown
from bothways.lazy import missing
from bothways.tasks.columns import is_two_texts
from bothways.tasks.task import AnyTask
from bothways.text import Overflow

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise missing(error, "bothways.sklearn") from error

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from bothways.evaluation.report import Report
    from bothways.tasks.embedding.trained import Vectors

__all__ = ["Estimator", "PairClassifier", "PairRegressor", "SentenceEmbedder", "TextClassifier", "TextRegressor"]

Values: TypeAlias = NDArray[np.generic]
"""An array of labels, or of numbers."""


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):
    """The parameters of all estimators.

    Texts are a list, an array, a Series, or a table with one column. Pairs of texts are a list of tuples, an array
    (N, 2), or a table with two columns.

    Attributes:
        model: A folder or a name, see `bothways.load`.
        epochs: Passes over the training data; see `bothways.training.options.TrainingOptions`, also for the next three.
        learning_rate: Peak learning rate.
        layer_decay: Factor by which the learning rate falls from each layer to the one below it.
        batch_size: Rows per update.
        max_length: Maximum tokens per window. Default: as trained, else the model's limit.
        on_overflow: Treatment of longer texts: ``"window"`` (the default), ``"error"``, ``"truncate"`` or
            ``"truncate_left"``.
        device: Device of the model; ``"auto"`` takes a GPU if there is one.
        random_state: Seed of the training. A RandomState, or None for NumPy's own, draws a seed at each fit.
        fit_options: More options of the task's ``fit``, such as ``{"warmup_fraction": 0.2, "show_progress": False}``.
        open_options: More options of the task's ``from_pretrained``, such as ``{"dtype": "float64"}``.
    """

    model: str | Path = "sentence-transformers/all-MiniLM-L6-v2"
    _: KW_ONLY
    epochs: int | None = None
    learning_rate: float | None = None
    layer_decay: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    on_overflow: Overflow | None = None
    device: str = "auto"
    random_state: int | np.random.RandomState | None = 0
    fit_options: Mapping[str, object] | None = None
    open_options: Mapping[str, object] | None = None

    task: ClassVar[type[AnyTask]]
    texts_per_input: ClassVar[int] = 1

    def _opening(self, **own: object) -> dict[str, Any]:
        """Return the options of ``from_pretrained``."""
        reading = {"max_length": self.max_length, "on_overflow": self.on_overflow, "device": self.device}
        return {**reading, **own, **(self.open_options or {})}

    def _training(self, **own: object) -> dict[str, Any]:
        """Return the options of the task's ``fit``."""
        state = self.random_state
        seed = int(state) if isinstance(state, Integral) else check_random_state(state).randint(2**31)
        usual = {name: getattr(self, name) for name in ("epochs", "learning_rate", "layer_decay", "batch_size")}
        return {**usual, "seed": seed, **own, **(self.fit_options or {})}

    def _inputs(self, X: object, y: object = "no_validation", *, fitting: bool = False) -> list[Any]:
        """Return texts or pairs of texts as a list, after the checks of scikit-learn."""
        if not fitting:
            check_is_fitted(self)
        pairs = self.texts_per_input > 1
        one, many = ("a pair of texts", "pairs of texts") if pairs else ("a text", "texts")
        listed, alone = as_batch(X, one, many)
        if alone or (pairs and is_two_texts(X)):
            raise InvalidInput(f"expected a list of {many}, got {one} alone: put it into a list.")
        # The number of columns is checked for pairs: texts are a list or a table with one column.
        validate_data(self, X, y, skip_check_array=True, reset=fitting, ensure_2d=pairs)
        return [self._input(each) for each in listed]

    def _input(self, row: object) -> object:
        """Return the text or the pair in a row of an array or a table."""
        cells = list(row.values()) if isinstance(row, Mapping) else row
        if not isinstance(cells, list | tuple):
            return row
        if len(cells) != self.texts_per_input:
            expected = "two texts" if self.texts_per_input > 1 else "one text"
            raise InvalidInput(
                f"expected {expected} in each row, got {len(cells)} values: {shown(row)}. Select columns."
            )
        return tuple(cells) if self.texts_per_input > 1 else cells[0]

    def _trained(self, inputs: Sequence[object], labels: Sequence[object], **options: object) -> AnyTask:
        """Open the checkpoint, train it on inputs with labels in the form of the task, and return it."""
        model = self.task.from_pretrained(self.model, **self._opening())
        model.fit(inputs, labels, **self._training(**options))
        return model

    def _report(self, inputs: Sequence[object], labels: Sequence[object], resamples: int) -> Report:
        check_consistent_length(inputs, labels)
        columns = self.model_.columns
        rows = [columns.labelled_row(each, label) for each, label in zip(inputs, labels, strict=True)]
        report: Report = self.model_.evaluate(rows, resamples=resamples)
        return report

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # which would mean that numbers can be read
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class _Classification(ClassifierMixin):
    """The methods of a classifier of one label, or of several labels as columns of 0 and 1."""

    class_weights: ClassWeights | None = None

    def fit(self, X: object, y: object) -> Self:
        """Open the checkpoint, train it on inputs with their labels, and calibrate it.

        Args:
            X: Texts, or pairs of texts.
            y: A label for each: a string, an integer or a boolean. For several labels, an array or a table (N, C) with
                a column of 0 and 1 for each label.
        """
        inputs = self._inputs(X, y, fitting=True)
        check_classification_targets(y)
        check_consistent_length(inputs, y)
        self._several = type_of_target(y) == "multilabel-indicator"
        if self._several:
            self.classes_: Values = np.arange(_indicators(y).shape[1])
            self._names = [f"class_{each}" for each in self.classes_]
        else:
            self.classes_ = np.unique(column_or_1d(np.asarray(y), warn=True))  # alone it makes floats of pandas' Int64
            self._names = [class_label(each) for each in self.classes_.tolist()]
            if len(self._names) < 2:
                raise ValueError(f"expected labels of at least two classes, got the one class {self._names[0]!r}.")
        target = "multi" if self._several else "single"
        self.model_ = self._trained(inputs, self._labels(y), target=target, class_weights=self.class_weights)
        return self

    def predict(self, X: object) -> Values:
        """Return the most probable label of each input (N), or 1 for each of its labels, else 0 (N, C)."""
        inputs, places = self._inputs(X), {name: place for place, name in enumerate(self._names)}
        predictions = self.model_.predict(inputs)
        if not self._several:
            numbers_N = np.array([places[class_label(each.label)] for each in predictions], np.int64)
            return self.classes_[numbers_N]
        truth_NC = np.zeros((len(predictions), len(places)), np.int64)
        for row, each in enumerate(predictions):
            truth_NC[row, [places[class_label(label)] for label in each.labels]] = 1
        return truth_NC

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """Return the calibrated probability of each label (N, C), in the order of ``classes_``."""
        inputs = self._inputs(X)
        found_NC = self.model_.predict_proba(inputs)
        columns = {class_label(label): found_NC[:, column] for column, label in enumerate(self.model_.labels)}
        # A label that no training row has is unknown to the model.
        listed = [columns.get(name, np.zeros(len(found_NC))) for name in self._names]
        return np.stack(listed, axis=1)

    def evaluate(self, X: object, y: object, *, resamples: int = 1000) -> Report:
        """Return the task's metrics on labelled inputs, with 95 % bootstrap intervals; ``score`` is the accuracy."""
        report: Report = self._report(self._inputs(X), self._labels(y), resamples)
        return report

    def _labels(self, y: object) -> list[object]:
        """Return labels in the form of the task."""
        if self._several:
            return [[self._names[place] for place in np.flatnonzero(row_C)] for row_C in _indicators(y)]
        return list(np.ravel(np.asarray(y)).tolist())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class _Regression(RegressorMixin):
    """The methods of a regression model."""

    def fit(self, X: object, y: object) -> Self:
        """Open the checkpoint, and train it on inputs with a number for each."""
        inputs = self._inputs(X, y, fitting=True)
        check_consistent_length(inputs, y)
        self.model_ = self._trained(inputs, _numbers(column_or_1d(y, warn=True)), target="regression")
        return self

    def predict(self, X: object) -> NDArray[np.float64]:
        """Return the predicted number of each input (N)."""
        inputs = self._inputs(X)
        return np.array([each.value for each in self.model_.predict(inputs)], np.float64)

    def evaluate(self, X: object, y: object, *, resamples: int = 1000) -> Report:
        """Return the task's metrics on inputs with numbers, with 95 % bootstrap intervals; ``score`` is R2."""
        report: Report = self._report(self._inputs(X), _numbers(y), resamples)
        return report


@dataclass(eq=False, repr=False)
class TextClassifier(_Classification, Estimator):
    """A text classifier with calibrated probabilities, see `bothways.TextClassifier`.

    >>> classifier = TextClassifier().fit(["Lakers win", "Rates rise"] * 8, [1, 0] * 8)  # doctest: +SKIP
    >>> classifier.predict(["Bulls lose in overtime"])  # doctest: +SKIP
    array([1])

    Attributes:
        class_weights: ``"balanced"`` weights each row in the loss by the inverse frequency of its label.
    """

    task: ClassVar = tasks.TextClassifier


@dataclass(eq=False, repr=False)
class PairClassifier(_Classification, Estimator):
    """A classifier of pairs of texts, see `bothways.PairClassifier`.

    Attributes:
        class_weights: ``"balanced"`` weights each row in the loss by the inverse frequency of its label.
    """

    task: ClassVar = tasks.PairClassifier
    texts_per_input: ClassVar = 2


class TextRegressor(_Regression, Estimator):
    """A model that predicts a number for each text; see `bothways.TextClassifier`, target ``"regression"``."""

    task: ClassVar = tasks.TextClassifier


class PairRegressor(_Regression, Estimator):
    """A model that predicts a number for each pair of texts, such as their similarity."""

    task: ClassVar = tasks.PairClassifier
    texts_per_input: ClassVar = 2


@dataclass(eq=False, repr=False)
class SentenceEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """A transformer of texts to vectors (N, K), see `bothways.SentenceEmbedder`.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> pipeline = make_pipeline(SentenceEmbedder(), LogisticRegression())
    >>> pipeline.fit(["Lakers win", "Rates rise"], ["sports", "business"]).predict(["Bulls lose in overtime"])
    array(['sports'], dtype='<U8')

    Attributes:
        fine_tune: Train on texts with labels, such that texts of a label become similar. By default the checkpoint is
            used as it is, and the options of the training are not read.
        prompt: A text to prepend to each text. Default: the checkpoint's default prompt, if it has one.
        prompt_name: The name of one of the checkpoint's prompts.
        pooling: How the vectors of tokens become one vector. Default: as stored in the checkpoint.
        dimensions: Number of dimensions to keep. Default: all.
        unit_length: Whether vectors have unit length. Default: as stored in the checkpoint.
    """

    _: KW_ONLY
    fine_tune: bool = False
    prompt: str | None = None
    prompt_name: str | None = None
    pooling: Pooling | None = None
    dimensions: int | None = None
    unit_length: bool | None = None

    task: ClassVar = tasks.SentenceEmbedder

    def fit(self, X: object, y: object = None) -> Self:
        """Open the checkpoint, and with ``fine_tune`` train it on texts with their labels."""
        texts = self._inputs(X, y, fitting=True)
        own = {name: getattr(self, name) for name in ("pooling", "dimensions", "unit_length")}
        model = self.task.from_pretrained(self.model, **self._opening(**own))
        if self.fine_tune:
            labels = column_or_1d(np.asarray(y)).tolist()
            check_consistent_length(texts, labels)
            rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
            model.fit(rows, **self._training())
        self.model_ = model
        self._n_features_out = model.dimensions
        return self

    def transform(self, X: object) -> Vectors:
        """Return the vectors of texts (N, K)."""
        texts = self._inputs(X)
        vectors: Vectors = self.model_.encode(texts, prompt=self.prompt, prompt_name=self.prompt_name)
        return vectors

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.fine_tune
        tags.transformer_tags.preserves_dtype = []
        return tags


def _indicators(y: Any) -> Values:  # noqa: ANN401 (an array, a table or a sparse matrix)
    """Return an array of 0 and 1 for each label (N, C)."""
    return np.asarray(y.toarray() if hasattr(y, "toarray") else y)


def _numbers(y: object) -> list[float]:
    numbers: list[float] = check_array(column_or_1d(y), ensure_2d=False, dtype=np.float64, input_name="y").tolist()
    return numbers
