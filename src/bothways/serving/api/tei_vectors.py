"""Vectors, as text-embeddings-inference gives them; see `bothways.serving.api.tei`."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from bothways.serving.api.native import ModelName
from bothways.serving.api.tei_forms import TeiInputs, TeiRequest, nothing, prompt_of, texts_or_ids
from bothways.serving.api.vectors import embed, encoded_ids, rows_of_tokens
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call, Reply
from bothways.tasks.embedding.settings import with_prompt
from bothways.tasks.opening import with_weights

MOST_NUMBERS = 20_000_000
"""Numbers of an answer with a vector for each token; as JSON they take about ten bytes each."""


class TeiEmbedAllRequest(TeiRequest):
    """A request for a vector of each token."""

    inputs: TeiInputs
    prompt_name: str | None = None


class TeiEmbedRequest(TeiRequest):
    """A request for embeddings."""

    inputs: TeiInputs
    prompt_name: str | None = None
    normalize: Annotated[bool, Meta(description="Give the vectors unit length.")] = True
    dimensions: Annotated[int, Meta(ge=1)] | None = None


def embed_texts(call: Call, body: TeiEmbedRequest) -> Reply:
    """Embed texts or token ids."""
    served, texts, prompt = _read(call, body)
    unit, kept = body.normalize, body.dimensions
    return Reply(embed(call, served, texts, prompt=prompt, dimensions=kept, unit_length=unit, param="inputs"))


def _read(
    call: Call, body: TeiEmbedAllRequest | TeiEmbedRequest
) -> tuple[ServedModel, list[str] | list[list[int]], str]:
    """Return the model, the texts or token ids, and the prompt of a request."""
    served = embedder(call, body.model)
    body.prepare(call, served)
    texts = texts_or_ids(body.inputs)
    if isinstance(texts[0], str):
        return served, texts, prompt_of(served, body.prompt_name)
    if body.prompt_name is not None:
        raise Refused(422, "prompt_name: a prompt needs texts, but the inputs are token ids.", param="prompt_name")
    return served, texts, ""


def embedder(call: Call, name: str | None) -> ServedModel:
    """Return the embedder of this name, or the first."""
    served = call.models.find(name, "embed")
    call.model = served.name
    return served


def embed_tokens(call: Call, body: TeiEmbedAllRequest) -> Reply:
    """Return the last hidden state of each token, special ones included."""
    served, texts, prompt = _read(call, body)
    backend = served.model.fitted.backend
    if backend.export is not None:
        message = f"{served.name!r} is an exported model, which gives no vectors of tokens: serve the original."
        raise Refused(422, message, code="wrong_task", param="model")
    original = with_weights(backend, "embed")
    runner = original.text_runner(original.model.encoder, per_token=True, kept_as="tokens")
    words = [text for text in texts if isinstance(text, str)]
    if words:
        call.check_texts(words)
        encoded = runner.tokenize([with_prompt(text, prompt) for text in words])
    else:
        ids = [each for each in texts if not isinstance(each, str)]
        call.count(len(ids))
        encoded = encoded_ids(ids, runner, backend.config.vocabulary)
    count, limit = sum(each.tokens for each in encoded), MOST_NUMBERS // backend.config.hidden
    if count > limit:
        message = f"expected at most {limit:,} tokens with a vector for each, got {count:,}: send several requests."
        raise Refused(413, message, code="too_many_tokens", param="inputs")
    found = rows_of_tokens(runner, encoded, special=True)
    for number, each in enumerate(found):
        call.drop(number, each.dropped_tokens)
    return Reply([each.rows_TK for each in found])


def embed_sparse(call: Call, body: TeiEmbedAllRequest) -> Reply:
    """Refuse a request, since no model here gives weights of words."""
    del call, body
    raise Refused(422, "no model here gives sparse vectors: ask /embed for dense ones.", code="wrong_task")


class TeiSentences(Struct, forbid_unknown_fields=True, kw_only=True):
    """A sentence, and those to compare it with."""

    source_sentence: str
    sentences: list[str]


class TeiSimilarityOptions(TeiRequest):
    """Options of a similarity."""

    prompt_name: str | None = None


class TeiSimilarityRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for the similarity of sentences to one."""

    inputs: TeiSentences
    parameters: TeiSimilarityOptions | None = None
    model: ModelName = None


def similarity(call: Call, body: TeiSimilarityRequest) -> Reply:
    """Compare sentences with one by the cosines of their embeddings."""
    options = body.parameters or TeiSimilarityOptions()
    served = embedder(call, body.model or options.model)
    options.prepare(call, served)
    return Reply(cosines(call, served, body.inputs, options.prompt_name))


def cosines(
    call: Call, served: ServedModel, given: TeiSentences, prompt_name: str | None = None
) -> NDArray[np.float32]:
    """Return the cosine of each sentence and the first one."""
    if not given.sentences:
        raise nothing("sentences")
    texts = [given.source_sentence, *given.sentences]
    vectors_NK = embed(call, served, texts, prompt=prompt_of(served, prompt_name), unit_length=True, param="inputs")
    cosines_N: NDArray[np.float32] = np.clip(vectors_NK[1:] @ vectors_NK[0], -1, 1)  # rounding may exceed 1
    return cosines_N
