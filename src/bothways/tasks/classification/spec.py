"""Declarations of text and pair classification, and their options. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from bothways.choices import ClassWeights, LabelValue, Merge, Shared, TargetKind, Unlabelled
from bothways.confidence.confidence import ConfidenceOptions
from bothways.errors import InvalidInput
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.spec import Hub, NamedLabelData, PairInput, PredictOptions, TaskSpec, TextInput, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOpening:
    """Options for opening a trained head.

    Attributes:
        labels: The labels, as ``["a", "b"]`` or ``"a,b"``, in the order of the outputs and of numbers in data: places,
            from 0, and one-hot or multi-hot vectors. They name the outputs of a trained head without names; for `fit`
            they are the only labels.
        merge: How to merge the logits of a long text's windows: their mean weighted by length
            (``"weighted_mean"``, the default), their plain ``"mean"``, the ``"max"`` of each output, those of the
            window where the last label is most probable (``"maxp"``), or those of the ``"first"`` window.
        target: Kind of prediction: ``"single"`` (one label), ``"multi"`` (any number of labels) or ``"regression"`` (a
            number). A trained model of another kind is refused.
        threshold: Minimum probability for predicting a label of a multi-label model, instead of the fitted thresholds;
            in question answering, minimum log odds of an answer against no answer.
    """

    labels: Sequence[LabelValue] | None = None
    merge: Merge | None = None
    target: TargetKind | None = None
    threshold: Annotated[float | None, Ge(0), Le(1)] = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFitting(ConfidenceOptions):
    """Options for fitting on labelled texts or pairs.

    Attributes:
        target: ``"single"`` label, ``"multi"`` (lists of labels), or ``"regression"`` (numbers). Default: the target
            that the model was opened with, else a single label.
        class_weights: ``"balanced"`` weights each row in the loss by the inverse frequency of its label, rows /
            (labels * rows of the label), or for multi-label data for each label separately. A single-label training
            then selects the epoch by balanced accuracy. Default: all rows have the same weight.
        score: Column of numeric values to predict, instead of labels.
        unlabelled: What to do with rows that have no label (empty, null, or a class ``-`` or ``-1`` that stands for no
            label): ``"error"`` refuses the data, ``"drop"`` leaves such rows out.
        normalise_labels: Take labels that look alike, such as ``sport``, ``SPORT`` and ``sport`` with a space, as one
            label, named as most rows name it; the model then reads all labels so. Default: they are different labels,
            and a note names them.
        shared: Validation rows that are training rows: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    target: TargetKind | None = None
    class_weights: ClassWeights | None = None
    score: str | None = None
    unlabelled: Unlabelled = "error"
    normalise_labels: bool | None = None
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        ConfidenceOptions.__post_init__(self)
        check_options(self)
        if self.score is not None and self.target == "multi":
            raise InvalidInput(
                "score predicts a number, so it cannot be combined with label or the target 'multi': drop one."
            )

    @property
    def detects(self) -> bool:
        """True if an out-of-domain detector is fitted, which needs a single-label target."""
        return self.detector is not None and self.target in (None, "single") and self.score is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPrediction(PredictOptions):
    """Options of a prediction.

    Attributes:
        calibrated: True requires calibrated probabilities; False returns uncalibrated ones. Default: calibrated if the
            model is calibrated.
        coverage: Also return a set of labels, or an interval of values, that contains the true one with this
            probability. It is approximate, since the held-out rows also decided the epoch and the calibration.
        top: Maximum number of labels, answers or fillings, best first.
        threshold: Minimum probability for predicting a label of a multi-label model, or minimum log odds of an answer
            against no answer (``-inf`` always answers). Default: as fitted on held-out rows.
    """

    calibrated: bool | None = None
    coverage: Annotated[float | None, Gt(0), Lt(1)] = None
    top: Annotated[int | None, Ge(1)] = None
    threshold: Annotated[float | None, Ge(0), Le(1)] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.coverage is not None and self.calibrated is False:
            raise InvalidInput("coverage needs calibrated probabilities: leave out calibrated=False.")


CLASSIFICATION = TaskSpec(
    name="classification",
    home="bothways.tasks.classification.classifiers:TextClassifier",
    columns=TextColumns(),
    input=TextInput,
    prediction="bothways.tasks.heads.targets:Prediction",
    summary="Classify texts: one label, several labels or a number.",
    hub=Hub(
        "text-classification",
        '"Lakers win in overtime"',
        "AutoModelForSequenceClassification",
        '"Lakers win in overtime"',
    ),
    example={"text": "Lakers win in overtime", "label": "sports"},
    notes="""\
with --target multi a list of labels; with --score score, a number to predict:
  {"text": "Lakers win in overtime", "score": 4.5}""",
    open_options=LabelOpening,
    fit_options=LabelFitting,
    data_options=NamedLabelData,
    predict_options=LabelPrediction,
    number_column="score",
    head="sequence",
    outputs="bothways.tasks.classification.outputs:LabelOutputs",
    learner="bothways.tasks.classification.learner:LabelLearner",
    combiner="bothways.tasks.classification.combination:LabelCombiner",
    does="classify texts",
    held_out="a tenth of the training rows, drawn with the seed (none for a sentence embedder and up to 100 "
    "texts: the model is evaluated by cross-validation)",
)

PAIRS = replace(
    CLASSIFICATION,
    name="pairs",
    home="bothways.tasks.classification.classifiers:PairClassifier",
    columns=PairColumns(),
    input=PairInput,
    summary="Classify pairs of texts: entailment, paraphrase, similarity, relevance.",
    hub=Hub(
        "text-classification",
        '("A man sleeps.", "It is night.")',
        "AutoModelForSequenceClassification",
        '"A man sleeps.", "It is night."',
    ),
    example={"text_a": "A man sleeps.", "text_b": "It is night.", "label": "neutral"},
    notes="""\
or, with --score score, a number to predict:
  {"text_a": "A man sleeps.", "text_b": "Someone is asleep.", "score": 4.6}""",
    head=None,
    does="classify pairs of texts",
    held_out="about a tenth of the training rows, drawn with the seed; rows with the same first text stay together",
)
