"""Rows from a JSON document, which is read whole: a list of objects, or a nested file as in SQuAD.

A SQuAD file (1.1 and 2.0) holds articles, their paragraphs, and the questions on each of them::

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}], "is_impossible": ...}]}]}]}

It becomes one row per question, with the columns ``id``, ``title``, ``context``, ``question`` and ``answers``.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from bothways.data.columns import Row
from bothways.data.formats import parse_json
from bothways.data.lines import LONGEST_IN_DOCUMENT
from bothways.errors import InvalidInput, read_with

T = TypeVar("T")

_EXPECTED = 'an array of objects, or SQuAD\'s form {"data": [{"paragraphs": [...]}]}'


def json_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield the objects of an array, or the questions of a SQuAD file."""
    content = "".join(_up_to(LONGEST_IN_DOCUMENT.size, lines, name))
    if not content.strip():
        return
    lines_with = read_with("format", "jsonl")
    document = parse_json(content, name, hint=f"Expected {_EXPECTED}; for one object per line give {lines_with}.")
    if isinstance(document, list):
        for number, values in enumerate(document, start=1):
            where = f"row {number} of {name}"
            if not isinstance(values, dict):
                raise InvalidInput(f"{where} is of type {type(values).__name__}. Expected an object.")
            yield Row(number, values, where)
    elif isinstance(document, dict) and isinstance(document.get("data"), list):
        for number, (values, where) in enumerate(_questions(document, name), start=1):
            yield Row(number, values, where)
    else:
        raise InvalidInput(f"{name} is a JSON document of another form. Expected {_EXPECTED}.")


def _up_to(limit: int, lines: Iterator[str], name: str) -> Iterator[str]:
    size = 0
    for line in lines:
        size += len(line)
        if size > limit:
            raise InvalidInput(f"{name} is longer than {limit // 2**20} MiB. {LONGEST_IN_DOCUMENT.advice}")
        yield line


def _questions(document: Mapping[str, object], name: str) -> Iterator[tuple[dict[str, object], str]]:
    for article, in_article in _objects(document, "data", name):
        title = {"title": article["title"]} if "title" in article else {}
        for paragraph, in_paragraph in _objects(article, "paragraphs", in_article):
            context = _part(paragraph, "context", str, in_paragraph)
            for question, where in _objects(paragraph, "qas", in_paragraph):
                # In a file, an id is easier to find than a position.
                named = f"question {question['id']!r} of {name}" if "id" in question else where
                yield _row(question, {**title, "context": context}, where), named


def _row(question: Mapping[str, object], above: Mapping[str, object], where: str) -> dict[str, object]:
    values = {"id": question.get("id"), **above, "question": _part(question, "question", str, where)}
    if question.get("is_impossible") is True:
        if question.get("answers"):
            raise InvalidInput(f"{where} has both `is_impossible: true` and answers: drop one of the two.")
        return {**values, "answers": []}
    # Files for prediction need not have answers.
    return {**values, "answers": question["answers"]} if "answers" in question else values


def _objects(holder: Mapping[str, object], key: str, where: str) -> Iterator[tuple[Mapping[str, object], str]]:
    for number, each in enumerate(_part(holder, key, list, where), start=1):
        place = f"{key}[{number - 1}] of {where}"
        if not isinstance(each, dict):
            raise InvalidInput(f"{place} is of type {type(each).__name__}. Expected an object.")
        yield each, place


def _part(holder: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    value = holder.get(key)
    if not isinstance(value, kind):
        found = "missing" if key not in holder else f"of type {type(value).__name__}"
        raise InvalidInput(f"{key!r} in {where} is {found}. Expected {_EXPECTED}.")
    return value
