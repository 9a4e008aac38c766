"""Declaration of text and pair classification. Loads no torch."""

from bothways.tasks.classification.options import LabelFitting, LabelOpening, LabelPrediction
from bothways.tasks.columns import PairColumns, PairInput, TextColumns, TextInput
from bothways.tasks.spec import Hub, TaskSpec

CLASSIFICATION = TaskSpec(
    name="classification",
    home="bothways.tasks.classification.classifiers:TextClassifier",
    columns=TextColumns(),
    input=TextInput,
    prediction="bothways.tasks.heads.predictions:Prediction",
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
    predict_options=LabelPrediction,
    number_column="score",
    head="sequence",
    outputs="bothways.tasks.classification.outputs:LabelOutputs",
    learner="bothways.tasks.classification.learner:LabelLearner",
    combiner="bothways.tasks.classification.combination:LabelCombiner",
    does="classify texts",
    held_out="a tenth of the rows to learn from, drawn with the seed (of up to 100 texts above a sentence embedder "
    "none: cross-validation measures those)",
)

PAIRS = TaskSpec(
    name="pairs",
    home="bothways.tasks.classification.classifiers:PairClassifier",
    columns=PairColumns(),
    input=PairInput,
    prediction="bothways.tasks.heads.predictions:Prediction",
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
    open_options=LabelOpening,
    fit_options=LabelFitting,
    predict_options=LabelPrediction,
    number_column="score",
    outputs="bothways.tasks.classification.outputs:LabelOutputs",
    learner="bothways.tasks.classification.learner:LabelLearner",
    combiner="bothways.tasks.classification.combination:LabelCombiner",
    does="classify pairs of texts",
    held_out="about a tenth of the rows to learn from, drawn with the seed, those with the same first text together",
)
