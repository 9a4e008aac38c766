"""Extractive question answering: finds the part of a context that answers a question, or decides that there is none."""

from bothways.tasks.question_answering.spans import QuestionAnswer
from bothways.tasks.question_answering.spec import QUESTION_ANSWERING
from bothways.tasks.task import Task


class QuestionAnswerer(Task[tuple[str, str], QuestionAnswer]):
    """Finds the answer to a question in a context, or decides that there is none.

    A long context is read in overlapping windows, each with the question. `fit` chooses the threshold for giving no
    answer on held-out questions; if all of these have an answer, the model always gives one.

    >>> answerer = QuestionAnswerer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> answerer.fit("train-v2.0.json", validation="dev-v2.0.json")  # doctest: +SKIP
    >>> answerer.predict(("Who won?", "In 2016 the Denver Broncos won.")).answer  # doctest: +SKIP
    'Denver Broncos'
    """

    spec = QUESTION_ANSWERING
