"""Errors of the server: what a request is answered with if it cannot be served."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from bothways import errors
from bothways.errors import BothwaysError, InvalidInput

SHOWN = 100
"""Characters of a name from a request that messages show."""
_LONGEST = 2000  # characters of a message, which may quote the request


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem as the client is told of it.

    Attributes:
        status: HTTP status.
        message: What was expected, what came, and what to do.
        code: The kind of problem, in words that programs can compare.
        param: The field of the request that it is about.
        headers: Further headers.
    """

    status: int
    message: str
    code: str = "invalid_value"
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The type of error in OpenAI's words."""
        match self.status:
            case 401:
                return "authentication_error"
            case 429:
                return "rate_limit_error"
            case 500 | 503 | 504:
                return "server_error"
        return "invalid_request_error"

    def envelope(self) -> dict[str, object]:
        """Return the body of the answer in OpenAI's form."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class Refused(Exception):
    """A request that is answered with a problem."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(status, message[:_LONGEST], code, param, headers or {})

    @classmethod
    def busy(cls, message: str, seconds: float) -> Self:
        """Return the refusal of a request for which there is no room now; ``seconds`` until it is worth a retry."""
        wait = {"Retry-After": str(max(1, round(seconds)))}
        return cls(429, f"{message}: try again after the time in Retry-After.", code="overloaded", headers=wait)

    @classmethod
    def stopping(cls) -> Self:
        """Return the refusal of a server that is about to end."""
        message = "the server is stopping: try again, another one may answer."
        return cls(503, message, code="stopping", headers={"Retry-After": "1"})

    @classmethod
    def starting(cls) -> Self:
        """Return the refusal of a server whose models are not open yet."""
        message = "the models are being opened: try again in a moment, or watch /ready."
        return cls(503, message, code="starting", headers={"Retry-After": "1"})

    @classmethod
    def not_finite(cls) -> Self:
        """Return the refusal of an answer with NaN or infinity."""
        message = "the model computed NaN or infinity for this input, which is no answer: check the model's weights."
        return cls(500, message, code="not_finite")

    @classmethod
    def deadline(cls) -> Self:
        """Return the refusal of a request whose deadline passed before it was computed."""
        message = "the time that the request allowed has passed, and it was not computed: allow more (X-Timeout-Ms)."
        return cls(504, message, code="deadline_passed")


class Left(Exception):
    """The client has left, so nobody waits for the answer."""


_STATUS: Mapping[type[BothwaysError], tuple[int, str]] = {
    errors.TextTooLong: (422, "text_too_long"),
    errors.EmptyInput: (422, "empty_input"),
    InvalidInput: (422, "invalid_value"),
    errors.UnknownModel: (404, "model_not_found"),
    errors.NotFitted: (422, "wrong_task"),
    errors.NotCalibrated: (422, "not_calibrated"),
    errors.OutOfMemory: (503, "out_of_memory"),
    errors.MissingDependency: (501, "not_installed"),
}


def problem_of(error: BaseException, private: Mapping[str, str]) -> Problem:
    """Return an error as a client is told of it; ``private`` words, such as paths, are replaced by public ones."""
    match error:
        case Refused():
            return error.problem
        case ModuleNotFoundError():
            name = (error.name or "").partition(".")[0]
            message = f"the server has no package {name!r}, which this request needs: install it beside the server."
            return Problem(501, message, "not_installed")
        case errors.StoreUnavailable():  # its message names the server of the database
            message = "the database of the index cannot be reached, or refuses the search: try again later."
            return Problem(503, message, "store_unavailable")
        case BothwaysError():
            kind = next((known for known in type(error).__mro__ if known in _STATUS), None)
            status, code = (500, "internal") if kind is None else _STATUS[kind]
            return Problem(status, _public(str(error), private), code)
        case TypeError() if "unexpected keyword argument" in str(error):
            return Problem(422, _public(str(error), private), "unknown_option", "options")
    message = "the server failed to answer this request; its log has the kind of error."
    return Problem(500, message, "internal")


# A path of several parts, of which the last one is shown.
_PATH = re.compile(r"(?<![\w/])/(?:[^\s/'\"]+/)+([^\s/'\"]*)")


def _public(message: str, private: Mapping[str, str]) -> str:
    for words, public in private.items():
        message = message.replace(words, public)
    return _PATH.sub(r"\1", message[:_LONGEST])
