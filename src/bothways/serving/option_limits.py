"""Limits of the options of a prediction whose time and memory grow faster than the texts of the request."""

import sys
from collections.abc import Mapping

from bothways.serving.errors import Refused
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.question_answering.spec import QUESTION_ANSWERING

MOST_ANSWERS, LONGEST_ANSWER = 100, 200
MOST_FILLS, MOST_WORDS, WIDEST_BEAM = 1000, 1000, 200

_MOST: Mapping[str, Mapping[str, int]] = {
    QUESTION_ANSWERING.name: {"top": MOST_ANSWERS, "max_answer_tokens": LONGEST_ANSWER},
    MASKED_LM.name: {"top": MOST_FILLS, "words": MOST_WORDS, "beam": WIDEST_BEAM},
}


def check_limits(task: str, options: Mapping[str, object]) -> None:
    """Refuse options of a prediction that are above the limits of its task."""
    for name, value in options.items():
        most = _MOST.get(task, {}).get(name, sys.maxsize)
        match value:
            case int() if abs(value) > sys.maxsize:
                raise Refused(422, f"options: {name} is too large a number: give a smaller one.", param="options")
            case int() if value > most:
                raise Refused(422, f"options: {name} must be at most {most:,}, got {value:,}.", param="options")
            case list() if len(value) > most:
                message = f"options: expected at most {most:,} {name}, got {len(value):,}: send several requests."
                raise Refused(422, message, param="options")


def with_limits(task: str, options: Mapping[str, object]) -> Mapping[str, object]:
    """Return the JSON schema of the options of a task with its limits."""
    match options:
        case {"properties": dict(properties), **others}:
            limited = {
                name: {**schema, "maxItems" if name == "words" else "maximum": _MOST.get(task, {})[name]}
                for name, schema in properties.items()
                if name in _MOST.get(task, {})
            }
            return {**others, "properties": properties | limited}
    return options
