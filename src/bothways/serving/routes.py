"""Routes: a path, the form of its requests, a function that answers, and the form of its errors.

The server, the OpenAPI document and the tests are made from tables of routes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec
import orjson

from bothways.errors import did_you_mean
from bothways.serving.errors import SHOWN, Problem, Refused
from bothways.serving.models import Models
from bothways.serving.queue import BatchQueue, Ticket
from bothways.serving.settings import Limits

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

ErrorForm: TypeAlias = Callable[[Problem], tuple[int, object]]
"""The status and the body of an answer that tells of a problem, in the form of an API."""


def own_form(problem: Problem) -> tuple[int, object]:
    """Return a problem in OpenAI's envelope, with its own status."""
    return problem.status, problem.envelope()


@dataclass(slots=True)
class Call:
    """One request while it is answered, in a thread of its own.

    Attributes:
        models: The models and indexes.
        queue: The queue that computes.
        ticket: The request in the queue.
        limits: Limits of a request.
        model: Name of the model that answers, for the log and the metrics.
        inputs: Number of inputs.
        characters: Characters of the texts that a model reads.
        dropped: Tokens that were not read, by the number of the input, from 0.
        warnings: Sentences for the client.
    """

    models: Models
    queue: BatchQueue
    ticket: Ticket
    limits: Limits
    path: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    inputs: int = 0
    characters: int = 0
    dropped: dict[int, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def drop(self, number: int, tokens: int) -> None:
        """Note that so many tokens of an input were not read."""
        if tokens:
            self.dropped[number] = self.dropped.get(number, 0) + tokens

    def all_warnings(self) -> list[str]:
        """Return the sentences for the client, also those about texts that were cut."""
        cut = [f"input {number}: {tokens:,} tokens were not read" for number, tokens in sorted(self.dropped.items())]
        return [*self.warnings, *cut]

    def usage(self) -> dict[str, int]:
        """Return the tokens that were computed, in OpenAI's words."""
        return {"prompt_tokens": self.ticket.tokens, "total_tokens": self.ticket.tokens}

    def count(self, inputs: int, param: str = "inputs") -> None:
        """Count inputs, of which there may not be too many."""
        self.inputs += inputs
        if self.inputs > self.limits.items:
            message = f"expected at most {self.limits.items:,} inputs, got {self.inputs:,}: send several requests."
            raise Refused(413, message, code="too_many_inputs", param=param)

    def check_texts(self, texts: list[str], param: str = "inputs") -> None:
        """Check the number of inputs and their lengths, and count them; an input of several texts is given as one."""
        self.count(len(texts), param)
        self.check_lengths(texts, param)

    def check_lengths(self, texts: list[str], param: str) -> None:
        """Check the lengths of texts, and count their characters."""
        self.characters += sum(map(len, texts))
        for number, text in enumerate(texts):
            if len(text) > self.limits.characters:
                raise Refused(
                    413,
                    f"input {number} has {len(text):,} characters, more than {self.limits.characters:,}: split it.",
                    code="text_too_long",
                    param=param,
                )


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a value for JSON (arrays of NumPy too), and headers."""

    content: object
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    def encoded(self) -> bytes:
        """Return the body as JSON."""
        return orjson.dumps(self.content, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the server.

    Attributes:
        method: ``GET`` or ``POST``.
        path: The path, with names in braces.
        answer: Answers a request, given its body, in a thread of its own.
        body: Form of the body.
        summary: A line of help.
        tag: Name of the API.
        form: The form of errors.
        reply: JSON schema of the body of an answer.
    """

    method: str
    path: str
    answer: Callable[[Call, bytes], Reply]
    body: type[msgspec.Struct]
    summary: str
    tag: str
    form: ErrorForm = own_form
    reply: Mapping[str, object] = field(default_factory=dict)


def route(
    method: str,
    path: str,
    answer: Callable[[Call, BodyT], Reply],
    body: type[BodyT],
    summary: str,
    tag: str,
    form: ErrorForm = own_form,
    reply: Mapping[str, object] | None = None,
) -> Route:
    """Return a route whose function takes the body in its form; see `Route`."""

    def answered(call: Call, content: bytes) -> Reply:
        return answer(call, read_body(content, body))

    return Route(method, path, answered, body, summary, tag, form, reply or {})


def read_body(content: bytes, form: type[BodyT]) -> BodyT:
    """Return the body of a request in its form; raise `Refused` with the place of what is wrong in it."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}. Encode it as UTF-8."
        raise Refused(400, message, code="invalid_json") from error
    try:
        return msgspec.json.decode(text or "{}", type=form)
    except msgspec.ValidationError as error:
        message, param = _explained(str(error), form)
        raise Refused(422, message, param=param) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}.", code="invalid_json") from error


class NoBody(msgspec.Struct):
    """The empty body of a route without one."""


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_PLACE = re.compile(r"^(.*?)(?: - at `\$(.*)`)?$", re.DOTALL)


def _explained(message: str, body: type[msgspec.Struct]) -> tuple[str, str | None]:
    """Return a message of msgspec in our words, with the name of the field that it is about."""
    match = _PLACE.match(message)
    what, place = (match[1], match[2]) if match else (message, None)
    field_name = (place or "").lstrip(".") or None
    if unknown := _UNKNOWN.search(what):
        names = _fields_at(msgspec.inspect.type_info(body), re.findall(r"\.(\w+)", place or ""))
        name = unknown[1][:SHOWN]
        hint = did_you_mean(name, names)
        known = f"known are {', '.join(names)}" if names else "it takes none"
        return f"the request has a field {name!r} that this route does not know: {known}.{hint}", name
    where = f"{field_name}: " if field_name else ""
    return f"{where}{what[:1].lower()}{what[1:]}.".replace("`", "'"), field_name


def _fields_at(kind: msgspec.inspect.Type, path: list[str]) -> list[str]:
    """Return the names of the fields of the object at a path, such as ``inputs`` of a request."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if path:
            return [name for each in fields if each.encode_name == path[0] for name in _fields_at(each.type, path[1:])]
        case msgspec.inspect.StructType(fields=fields):
            return [each.encode_name for each in fields]
        case msgspec.inspect.ListType(item_type=item):
            return _fields_at(item, path)
        case msgspec.inspect.Metadata(type=inner):
            return _fields_at(inner, path)
        case msgspec.inspect.UnionType(types=types):
            return [name for each in types for name in _fields_at(each, path)]
    return []
