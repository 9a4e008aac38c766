"""Requests of Hugging Face's tasks: the fields that all of them have, and the form of errors."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from bothways.serving.api.native import LongTexts
from bothways.serving.errors import Problem, Refused

InputT = TypeVar("InputT")


class HuggingFaceRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that the requests of all tasks have."""

    options: Annotated[
        dict[str, object], Meta(description="Accepted for older clients, such as wait_for_model; has no effect.")
    ] = msgspec.field(default_factory=dict)


class TaskParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters that all tasks have."""

    on_overflow: LongTexts = None


def huggingface_form(problem: Problem) -> tuple[int, object]:
    """Return a problem as Hugging Face's servers tell of it."""
    return problem.status, {"error": problem.message}


def listed(inputs: InputT | list[InputT]) -> list[InputT]:
    """Return the inputs of a request as a list."""
    if not isinstance(inputs, list):
        return [inputs]
    if not inputs:
        raise Refused(422, "inputs: expected at least one, got an empty list.", code="empty_input", param="inputs")
    return inputs
