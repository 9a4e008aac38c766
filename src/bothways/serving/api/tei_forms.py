"""Requests and errors of text-embeddings-inference: the fields and checks that its routes share."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from bothways.choices import Overflow
from bothways.serving.api.native import ModelName
from bothways.serving.errors import Problem, Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
TeiInputs: TypeAlias = Annotated[
    str | list[str | TokenId | list[TokenId]],
    Meta(description="A text, a list of texts, or token ids, which are used as they are."),
]
Truncate: TypeAlias = Annotated[bool | None, Meta(description="Cut long texts, or refuse them. Default: as opened.")]
Direction: TypeAlias = Annotated[
    Literal["right", "Right", "left", "Left"], Meta(description="The side on which long texts are cut.")
]


class TeiRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of all requests that a model computes."""

    model: ModelName = None
    truncate: Truncate = None
    truncation_direction: Direction = "right"

    def prepare(self, call: Call, served: ServedModel) -> None:
        """Choose what is done with long texts."""
        call.ticket.on_overflow = overflow(served, self.truncate, self.truncation_direction)


def overflow(served: ServedModel, truncate: bool | None, direction: Direction | None) -> Overflow | None:
    """Return the policy for long texts; None for that of the model."""
    left = direction in ("left", "Left")
    if truncate is None:
        return "truncate_left" if left and served.model.backend.reading.on_overflow == "truncate" else None
    if not truncate:
        return "error"
    return "truncate_left" if left else "truncate"


def tei_form(problem: Problem) -> tuple[int, object]:
    """Return a problem as text-embeddings-inference tells of it."""
    status, kind = _status(problem)
    return status, {"error": problem.message, "error_type": kind}


def tei_openai_form(problem: Problem) -> tuple[int, object]:
    """Return a problem as its route of OpenAI's form tells of it, beside OpenAI's own envelope."""
    status, kind = _status(problem)
    return status, {"message": problem.message, "code": status, "type": kind} | problem.envelope()


def _status(problem: Problem) -> tuple[int, str]:
    match problem.code, problem.status:
        case (("wrong_task" | "not_finite"), _):
            return 424, "Backend"
        case "empty_input", _:
            return 400, "Empty"
        case "tokenizer", status:
            return status, "Tokenizer"
        case "body_too_large", status:
            return status, "Validation"
        case _, 413:
            return 422, "Validation"
        case _, (429 | 504) as status:
            return status, "Overloaded"
        case _, 503:
            return 503, "Unhealthy"
        case _, status:
            return status, "Backend" if status >= 500 else "Validation"


def texts_or_ids(given: TeiInputs) -> list[str] | list[list[int]]:
    """Return the texts, or the token ids of texts, of a request."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise nothing("inputs")
    texts = [each for each in given if isinstance(each, str)]
    lists = [each for each in given if isinstance(each, list)]
    ids = [each for each in given if isinstance(each, int)]
    if len(given) not in (len(texts), len(lists), len(ids)):
        message = "inputs: expected a text, a list of texts, or token ids, all of one kind: send several requests."
        raise Refused(422, message, param="inputs")
    return texts or lists or [ids]


def nothing(param: str) -> Refused:
    """Return the refusal of an empty list."""
    return Refused(422, f"{param}: expected at least one, got an empty list.", code="empty_input", param=param)


def prompt_of(served: ServedModel, name: str | None) -> str:
    """Return the prompt of this name, or the model's default prompt; empty without one."""
    if served.embedder is not None:
        return served.embedder.fitted.settings.prompt_of(None, name)
    if name is not None:
        message = f"{served.name!r} has no prompts, since it is no embedder: leave prompt_name out."
        raise Refused(422, message, param="prompt_name")
    return ""
