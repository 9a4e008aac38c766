"""Reading of questions, their contexts and annotated answers from rows of data.

The answers in a row are a list of objects with ``text`` and ``start`` (or ``answer_start``, as in SQuAD), or one
object with two lists under these names, as in data sets on the hub. An empty list means that the context has no answer;
null or an empty cell, that the question was not annotated.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bothways.choices import Unlabelled
from bothways.data import Example, Row, RowsWithoutLabel, Source, read_rows, value_at
from bothways.data.columns import written_objects
from bothways.data.known_rows import normalised
from bothways.errors import InvalidInput, shown
from bothways.tasks.question_answering.spec import QuestionColumns
from bothways.text.characters import VISIBLE

_FORM = 'a list of {"text": ..., "start": ...}, empty if the context has no answer'
# Maximum characters of an answer or a part of a context in a message.
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """An annotated answer: ``context[start : start + len(text)]``."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset just past its last character."""
        return self.start + len(self.text)


Answered: TypeAlias = Example[tuple[GoldAnswer, ...]]
"""A question with its context, and its annotated answers; empty if the context has no answer."""


def read_questions(source: Source, columns: QuestionColumns, unlabelled: Unlabelled = "error") -> list[Answered]:
    """Return the questions, contexts and answers of a source; refuse answers that are not at their stated offset."""
    questions, without = [], RowsWithoutLabel(columns.answers, unlabelled)
    for row in read_rows(source):
        where = f"{row.where} (id {row.values['id']!r})" if "id" in row.values else row.where
        named = Row(row.number, row.values, where)
        if without.holds(named):
            continue
        text = columns.read(named)
        answers = _answers(value_at(named, columns.answers, "answers"), f"{where}: {columns.answers!r}")
        for answer in answers:
            _check(answer, text[1], where)
        questions.append(Example(text, answers, row.number, where))
    without.check(len(questions))
    return questions


def hold_out_contexts(
    questions: Sequence[Answered], fraction: float, seed: int
) -> tuple[list[Answered], list[Answered]]:
    """Hold out a random ``fraction`` of the questions, roughly: questions on the same context stay together."""
    keys = [normalised(question.text[1]) for question in questions]
    contexts = list(dict.fromkeys(keys))
    if len(contexts) < 2:
        raise InvalidInput(
            "expected validation data, since none can be held out: all questions have the same context. Give a "
            "validation file."
        )
    counts = Counter(keys)
    wanted, held = max(1, round(fraction * len(questions))), set[str]()
    for index in np.random.default_rng(seed).permutation(len(contexts)).tolist():
        if sum(counts[context] for context in held) >= wanted or len(held) == len(contexts) - 1:
            break
        held.add(contexts[index])
    stay = [question for question, key in zip(questions, keys, strict=True) if key not in held]
    return stay, [question for question, key in zip(questions, keys, strict=True) if key in held]


def _answers(value: object, where: str) -> tuple[GoldAnswer, ...]:
    match value:
        case str(text) if (parsed := written_objects(text)) is not None:
            return _answers(parsed, where)
        case Mapping():
            match value.get("text"), value.get("answer_start", value.get("start")):
                case list(texts), list(starts) if len(texts) == len(starts):
                    return tuple(_answer(text, start, where) for text, start in zip(texts, starts, strict=True))
                case _:
                    raise InvalidInput(f"{where} must be {_FORM}, or lists 'text' and 'answer_start' of equal length.")
        case list():
            others = [(number, each) for number, each in enumerate(value, 1) if not isinstance(each, Mapping)]
            if not others:
                fields = [(each.get("text"), each.get("start", each.get("answer_start"))) for each in value]
                return tuple(_answer(text, start, where) for text, start in fields)
            number, other = others[0]
            found = f"a list whose element {number} is of type {type(other).__name__} ({shown(other, _SHOWN)})"
        case _:
            found = f"a value of type {type(value).__name__}"
    raise InvalidInput(f"{where} must be {_FORM}, got {found}.")


def _answer(text: object, start: object, where: str) -> GoldAnswer:
    match text, start:
        case str(), int() if start is not True and start is not False:
            if not VISIBLE.search(text):
                raise InvalidInput(
                    f"{where} has an answer without text. Give an empty list if the context has no answer."
                )
            return GoldAnswer(text, start)
        case _:
            raise InvalidInput(
                f"{where} must be {_FORM}; got an answer with the text {text!r:.80} and the start {shown(start)}."
            )


def _check(answer: GoldAnswer, context: str, where: str) -> None:
    found = context[answer.start : answer.end] if answer.start >= 0 else ""
    if found == answer.text:
        return
    elsewhere = context.find(answer.text)
    hint = f"It starts at {elsewhere}." if elsewhere >= 0 else "The context does not contain the answer."
    raise InvalidInput(
        f"{where}: expected the answer {answer.text!r:.{_SHOWN}} at character {shown(answer.start)} of the context, "
        f"got {found!r:.{_SHOWN}}. {hint}"
    )
