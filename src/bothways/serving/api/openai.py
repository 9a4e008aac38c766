"""OpenAI's embeddings API."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bothways.choices import Overflow
from bothways.serving.api.vectors import VectorType, as_base64, embed, typed
from bothways.serving.errors import Problem, Refused
from bothways.serving.routes import Call, Reply, Route, route


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for embeddings, as OpenAI's clients send it."""

    input: Annotated[
        str | list[str | int | list[int]],
        Meta(description="A text, a list of texts, or token ids, which are used as they are."),
    ]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    embed_dtype: Annotated[VectorType, Meta(description="Type of the numbers; int8 and binary lose precision.")] = "f32"
    prompt_name: Annotated[str | None, Meta(description="Name of one of the model's prompts.")] = None
    on_overflow: Overflow | None = None


def openai_form(problem: Problem) -> tuple[int, object]:
    """Return a problem as OpenAI tells of it: what is wrong with a request is 400."""
    status = 400 if problem.status in (413, 422) else problem.status
    return status, problem.envelope()


def inputs_of(given: object) -> list[str] | list[list[int]]:
    """Return the texts, or the token ids of texts, of a request."""
    match given:
        case str():
            return [given]
        case []:
            message = "input: expected at least one text, got an empty list."
            raise Refused(422, message, code="empty_input", param="input")
        case [int(), *_]:
            return [_ids(given)]
        case [list(), *_]:
            return [_ids(each) for each in given]
        case list() if all(isinstance(each, str) for each in given):
            return [str(each) for each in given]
    raise Refused(422, "input: expected a text, a list of texts, or token ids, all of one kind.", param="input")


def _ids(given: object) -> list[int]:
    match given:
        case list() if all(isinstance(each, int) for each in given):
            return list(given)
    raise Refused(422, "input: expected a text, a list of texts, or token ids, all of one kind.", param="input")


def embeddings(call: Call, body: EmbeddingRequest) -> Reply:
    """Embed texts or token ids."""
    served = call.models.find(body.model, "embed")
    call.model = served.name
    call.ticket.on_overflow = body.on_overflow
    texts = inputs_of(body.input)
    embedder = served.embedder
    prompt = None
    if body.prompt_name is not None and embedder is not None:
        prompt = embedder.fitted.settings.prompt_of(None, body.prompt_name)
    vectors_NK = embed(call, served, texts, prompt=prompt, dimensions=body.dimensions)
    rows = typed(vectors_NK, body.embed_dtype)
    if body.encoding_format == "float" and body.embed_dtype == "f16":
        rows = rows.astype("f4")
    as_text = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": place, "embedding": as_base64(row) if as_text else row}
        for place, row in enumerate(rows)
    ]
    answer: dict[str, object] = {"object": "list", "data": data, "model": served.name, "usage": call.usage()}
    if warnings := call.all_warnings():
        answer["warnings"] = warnings
    return Reply(answer)


ROUTES: tuple[Route, ...] = (
    route(
        "POST",
        "/v1/embeddings",
        embeddings,
        EmbeddingRequest,
        "Embed texts, as OpenAI's API does.",
        "openai",
        openai_form,
        {"type": "object", "required": ["object", "data", "model", "usage"]},
    ),
)
