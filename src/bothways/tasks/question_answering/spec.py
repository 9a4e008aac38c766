"""Declaration of question answering. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bothways.confidence.options import TemperatureOptions
from bothways.errors import InvalidInput
from bothways.tasks.columns import QUESTION, is_two_texts, two_texts
from bothways.tasks.spec import CalibratedOptions, Hub, TaskSpec

if TYPE_CHECKING:
    from bothways.data import Row

LONGEST_ANSWER = 100_000
"""No model reads as many tokens at once."""

ALWAYS_ANSWERS = (
    "No held-out question was without an answer, so the model cannot decline: it always gives one, and states no "
    "probability that there is none."
)


@dataclass(frozen=True, slots=True)
class QuestionColumns:
    """A question, the context that it is asked of, and the answers there.

    Attributes:
        question: Column of the question.
        context: Column of the context.
        answers: Column of the answers, with their places in the context; see
            `bothways.tasks.question_answering.questions`.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"

    one: ClassVar[str] = QUESTION.form

    def read(self, row: "Row") -> tuple[str, str]:
        """Return question and context of a row."""
        from bothways.data import text_at

        return text_at(row, self.question), text_at(row, self.context)

    def check(self, number: int, value: object) -> tuple[str, str]:
        """Return a tuple or list of question and context as a tuple."""
        return two_texts(number, value, QUESTION)

    def is_one(self, value: object) -> bool:
        """Return whether it is a tuple of two texts."""
        return is_two_texts(value)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return one row of a question and its context.

        Raises:
            InvalidInput: They are not two.
        """
        if len(texts) != 2:
            raise InvalidInput(f"this model wants two texts, a question and its context, but got {len(texts)}.")
        return [{self.question: texts[0], self.context: texts[1]}]

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of question and context."""
        return self.question, self.context

    @property
    def truth(self) -> str:
        """Column of what is right."""
        return self.answers

    def labelled_row(self, value: tuple[str, str], label: object) -> dict[str, object]:
        """Return the row of a question, its context and its answers."""
        return {self.question: value[0], self.context: value[1], self.answers: label}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOpening:
    """Options of opening a trained head.

    Attributes:
        max_answer_tokens: Most tokens in an answer; what a saved model says, or 30.
        threshold: Log odds against no answer from which an answer is given; what a saved model says. 0 suits a model
            that another program trained on questions without answers.

    Raises:
        InvalidInput: The number of tokens is out of range.
    """

    max_answer_tokens: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_longest(self.max_answer_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPrediction(CalibratedOptions):
    """Options of a prediction.

    Attributes:
        top: How many answers to give that do not overlap, best first.
        max_answer_tokens: Most tokens in an answer; by default as the model was opened.
        threshold: Log odds against no answer from which an answer is given, by default as learnt; ``-inf`` always
            gives one.

    Raises:
        InvalidInput: A number is out of range.
    """

    top: int | None = None
    max_answer_tokens: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 1:
            raise InvalidInput(f"top must be at least 1, but it is {self.top}.")
        check_longest(self.max_answer_tokens)

    @property
    def nested(self) -> tuple[str, ...]:
        """Several answers."""
        return ("several answers to a question",) if (self.top or 1) > 1 else ()

    @property
    def listed(self) -> str | None:
        """Several answers."""
        return "answers" if (self.top or 1) > 1 else None


def check_longest(tokens: int | None) -> None:
    """Raise InvalidInput unless the number of tokens is one that an answer can have."""
    if tokens is None:
        return
    if tokens < 1:
        raise InvalidInput(f"max_answer_tokens must be at least 1, but it is {tokens}.")
    if tokens > LONGEST_ANSWER:
        raise InvalidInput(
            f"max_answer_tokens must be at most {LONGEST_ANSWER:,}, but it is {tokens:,}: give as "
            "many tokens as the longest answer that you want can have."
        )


QUESTION_ANSWERING = TaskSpec(
    name="question-answering",
    home="bothways.tasks.question_answering.answerer:QuestionAnswerer",
    columns=QuestionColumns(),
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
    fit_options=TemperatureOptions,
    predict_options=AnswerPrediction,
    head="span",
    outputs="bothways.tasks.question_answering.outputs:AnswerOutputs",
    learner="bothways.tasks.question_answering.learner:AnswerLearner",
    combiner="bothways.tasks.question_answering.combination:AnswerCombiner",
    cut="second",
    does="answer questions",
    notes="""\
Without an answer in the context, "answers" is an empty list. SQuAD files
(.json, version 1.1 or 2.0) are read as they are.""",
    held_out="the questions on a tenth of the contexts, drawn with the seed",
)
