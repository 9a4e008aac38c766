"""Declaration of question answering. Loads no torch."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from annotated_types import Ge, Le

from bothways.choices import Shared, Unlabelled
from bothways.confidence.confidence import TemperatureOptions
from bothways.tasks.columns import QUESTION, TwoTextColumns, TwoTexts
from bothways.tasks.spec import Hub, LabelData, NonBlank, PredictOptions, TaskSpec, check_options

LONGEST_ANSWER = 100_000
"""Upper limit of ``max_answer_tokens``; no model reads longer inputs."""

AnswerTokens: TypeAlias = Annotated[int | None, Ge(1), Le(LONGEST_ANSWER)]

ALWAYS_ANSWERS = (
    "No held-out question was without an answer, so the model cannot decline: it always gives one, and gives no "
    "probability that there is none."
)


@dataclass(frozen=True, slots=True)
class QuestionColumns(TwoTextColumns):
    """Columns of a question, its context and its answers.

    Attributes:
        question: Column of the question.
        context: Column of the context.
        answers: Column of the answers with their offsets in the context, as in SQuAD; see
            `bothways.tasks.question_answering.questions`.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"

    names: ClassVar[TwoTexts] = QUESTION
    one: ClassVar[str] = QUESTION.form


@dataclass(frozen=True, slots=True)
class QuestionInput:
    """A question and the context to search for its answer.

    Attributes:
        question: The question.
        context: The context.
    """

    question: NonBlank
    context: NonBlank


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOpening:
    """Options for opening a question answerer.

    Attributes:
        max_answer_tokens: Maximum tokens of an answer. Default: as saved, else 30.
        threshold: Return an answer if its log odds against no answer exceed this. Default: as saved. Use 0 for a model
            that another program trained on data with unanswerable questions.
    """

    max_answer_tokens: AnswerTokens = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFitting(TemperatureOptions):
    """Options for fitting on annotated questions.

    Attributes:
        unlabelled: What to do with questions that were not annotated (null or an empty cell; an empty list means that
            there is no answer): ``"error"`` refuses the data, ``"drop"`` leaves such rows out.
        shared: Validation rows that are training rows: ``"keep"`` them, with a note, or ``"drop"`` them.
    """

    unlabelled: Unlabelled = "error"
    shared: Shared = "keep"

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPrediction(PredictOptions):
    """Options for predicting the answer to a question.

    Attributes:
        calibrated: True requires calibrated probabilities, False returns the head's uncalibrated ones. Default:
            calibrated if the model is.
        top: Maximum number of answers to list, best first; they do not overlap.
        max_answer_tokens: Maximum tokens of an answer. Default: as the model was opened.
        threshold: Return an answer if its log odds against no answer exceed this; ``-inf`` always answers. Default:
            as the model was opened, else as fitted on held-out questions.
    """

    calibrated: bool | None = None
    top: Annotated[int | None, Ge(1)] = None
    max_answer_tokens: AnswerTokens = None
    threshold: float | None = None

    @property
    def nested(self) -> tuple[str, ...]:
        """Description of the list of answers, which does not fit into a table cell; empty for a single answer."""
        return ("several answers to a question",) if (self.top or 1) > 1 else ()

    @property
    def listed(self) -> str | None:
        """The name of the list whose items become table rows; None for a single answer."""
        return "answers" if (self.top or 1) > 1 else None


QUESTION_ANSWERING = TaskSpec(
    name="question-answering",
    home="bothways.tasks.question_answering.answerer:QuestionAnswerer",
    columns=QuestionColumns(),
    input=QuestionInput,
    prediction="bothways.tasks.question_answering.spans:QuestionAnswer",
    summary="Find the answer to a question in a context.",
    hub=Hub(
        "question-answering",
        '("Who won?", "In 2016 the Broncos won.")',
        "AutoModelForQuestionAnswering",
        '"Who won?", "In 2016 the Broncos won."',
    ),
    example={
        "question": "Who won?",
        "context": "In 2016 the Broncos won.",
        "answers": [{"text": "Broncos", "start": 12}],
    },
    open_options=AnswerOpening,
    fit_options=AnswerFitting,
    data_options=LabelData,
    predict_options=AnswerPrediction,
    head="span",
    outputs="bothways.tasks.question_answering.outputs:AnswerOutputs",
    learner="bothways.tasks.question_answering.learner:AnswerLearner",
    combiner="bothways.tasks.question_answering.combination:AnswerCombiner",
    cut="second",
    does="answer questions",
    notes="""\
If the context has no answer, "answers" is an empty list. SQuAD files
(.json, version 1.1 or 2.0) are read as they are.""",
    held_out="about a tenth of the questions, drawn with the seed; questions on the same context stay together",
)
