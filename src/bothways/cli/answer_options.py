"""Options for models that answer questions."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import PositiveInt, bad_usage, given_of, usage_error

if TYPE_CHECKING:
    from bothways.tasks.task import Task


@Parameter(name="*", group="Answers (of models that answer questions)")
@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How answers are looked for."""

    top: PositiveInt | None = None
    """Answers to a question that do not overlap, best first; by default 1."""
    max_answer_tokens: PositiveInt | None = None
    """Most tokens in an answer; by default as in training."""


AS_USUAL = AnswerOptions()


def use_answers(task: "Task", options: AnswerOptions) -> None:
    """Let a model look for answers in the way that was asked for.

    Raises:
        CycloptsError: It answers no questions, or an option is out of range.
    """
    from bothways.tasks import Ensemble, QuestionAnswerer

    given = given_of(options)
    models = task.members if isinstance(task, Ensemble) else [task]
    answerers = [model for model in models if isinstance(model, QuestionAnswerer)]
    with bad_usage():
        for answerer in answerers:
            answerer.answering = replace(answerer.answering, **given)
    if given and not answerers:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise usage_error(f"{named} can be given for models that answer questions, but this one does not.")
