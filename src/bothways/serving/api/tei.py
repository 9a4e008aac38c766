"""The API of text-embeddings-inference, so that its clients work unchanged.

Requests, answers, errors and their order of fields are its own. This server differs where an answer would mislead:

- Numbers that are not finite are an error (424), also in vectors, and never ``null``.
- Texts that were cut are counted in the header ``x-truncated``. ``truncate: true`` cuts long texts, and ``false``
  refuses them; without it they are read as the model was opened, which by default means whole, in windows.
- Token ids are used as they are, special tokens included, and not decoded and tokenised again.
- A batch of ``/predict`` may mix texts and pairs if the model reads both, as classifiers of other programs do.

One pitfall is kept: in ``/predict``, a flat list of two texts is ONE pair. Several texts are ``[["a"], ["b"]]``.

Probabilities of ``/predict`` are calibrated if the model is. Places of ``/tokenize`` count bytes of UTF-8, as there;
``offsets`` chooses another unit. There is one model there, and there may be many here: the first that can answer does,
or that of ``model``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import TypeVar

import msgspec
from msgspec import Struct

from bothways.errors import InvalidInput
from bothways.serving.api import openai
from bothways.serving.api.native import ModelName, Unit
from bothways.serving.api.offsets import OffsetMap
from bothways.serving.api.tei_forms import TeiRequest, TokenId, nothing, prompt_of, tei_form, tei_openai_form
from bothways.serving.api.tei_labels import TeiPredictRequest, TeiRerankRequest, predict, rerank
from bothways.serving.api.tei_vectors import (
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiSimilarityRequest,
    embed_sparse,
    embed_texts,
    embed_tokens,
    similarity,
)
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call, NoBody, Reply, Route, read_body, route
from bothways.tasks.embedding.settings import with_prompt
from bothways.text.windows import Window
from bothways.threads import granted_cores

RequestT = TypeVar("RequestT", bound=TeiRequest)

_NO_LIMIT = 2**31 - 1

# --- tokens ---


class TeiTokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for the tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: ModelName = None
    offsets: Unit = "bytes"


def tokenize(call: Call, body: TeiTokenizeRequest) -> Reply:
    """Tokenise texts, with the prompt in front."""
    served = call.models.find(body.model)
    call.model = served.name
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts:
        raise nothing("inputs")
    if "" in texts:
        raise Refused(422, f"inputs: text {texts.index('') + 1} is empty: leave it out.", param="inputs")
    call.check_texts(texts)
    prompt = prompt_of(served, body.prompt_name)
    given = [with_prompt(text, prompt) for text in texts]
    encoded = served.model.backend.tokenizer.encode(given, max_length=_NO_LIMIT, offsets=True)
    count, limit = sum(each.tokens for each in encoded), call.limits.tokens
    if count > limit:
        raise Refused(413, f"expected at most {limit:,} tokens, got {count:,}: split it.", code="too_many_tokens")
    tokens = served.model.backend.tokenizer.tokens
    found = []
    for text, each in zip(given, encoded, strict=True):
        (window,) = each.windows
        listed = _tokens(window, tokens(window.ids), text, OffsetMap(text, body.offsets))
        found.append([token for token in listed if body.add_special_tokens or not token["special"]])
    return Reply(found)


def _tokens(window: Window, tokens: list[str], text: str, place: OffsetMap) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for number, token, span, sequence in zip(
        window.ids, tokens, window.offsets or [], window.sequences or [], strict=True
    ):
        if sequence is None:
            found.append({"id": number, "text": token, "special": True, "start": None, "stop": None})
        else:
            begin, end = span
            places = {"start": place(begin), "stop": place(end)}
            found.append({"id": number, "text": text[begin:end], "special": False} | places)
    return found


class TeiDecodeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for the texts of token ids."""

    ids: list[TokenId | list[TokenId]]
    skip_special_tokens: bool = True
    model: ModelName = None


def decode(call: Call, body: TeiDecodeRequest) -> Reply:
    """Return the texts of token ids."""
    served = call.models.find(body.model)
    call.model = served.name
    flat = [each for each in body.ids if isinstance(each, int)]
    batch = [flat] if flat else [each for each in body.ids if isinstance(each, list)]
    if flat and len(flat) < len(body.ids):
        raise Refused(422, "ids: expected token ids, or lists of them, all of one kind.", param="ids")
    if not batch or not all(batch):
        raise nothing("ids")
    tokenizer = served.model.backend.tokenizer
    try:
        return Reply([tokenizer.decode(ids, skip_special=body.skip_special_tokens) for ids in batch])
    except InvalidInput as error:
        raise Refused(422, str(error), code="tokenizer", param="ids") from error


# --- the model ---


def info(call: Call, body: NoBody) -> Reply:
    """Describe the first model."""
    del body
    served = call.models.find(None)
    call.model = served.name
    backend = served.model.backend
    return Reply(
        {
            "model_id": served.name,
            "model_sha": None,
            "model_dtype": backend.arithmetic[0],
            "served_model_name": served.name,
            "model_type": _kind(served),
            "max_concurrent_requests": call.limits.requests,
            "max_input_length": backend.reading.max_length,
            "max_batch_tokens": backend.budget.tokens,
            "max_batch_requests": None,
            "max_client_batch_size": call.limits.items,
            "auto_truncate": backend.reading.on_overflow in ("truncate", "truncate_left"),
            "tokenization_workers": granted_cores(),
            "version": version("bothways"),
            "sha": None,
            "docker_label": None,
        }
    )


def _kind(served: ServedModel) -> dict[str, object]:
    if served.embedder is not None:
        return {"embedding": {"pooling": served.embedder.fitted.settings.pooling}}
    if served.task not in ("classification", "pairs"):
        return {served.task: {}}
    names = [str(label) for label in served.model.labels]
    numbered = {str(number): name for number, name in enumerate(names)}
    labels = {"id2label": numbered, "label2id": {name: number for number, name in enumerate(names)}}
    return {"classifier" if served.reranker is None else "reranker": labels}


# --- whatever the model answers ---


class TeiMainRequest(Struct, kw_only=True):
    """A request of /rerank if it has a query, else of /embed or /predict, as the model can answer."""

    model: ModelName = None
    query: str | None = None


def _asked(answer: Callable[[Call, RequestT], Reply], form: type[RequestT]) -> Callable[[Call, str, bytes], Reply]:
    def answered(call: Call, name: str, content: bytes) -> Reply:
        body = read_body(content, form)
        body.model = name
        return answer(call, body)

    return answered


_EMBED, _PREDICT = _asked(embed_texts, TeiEmbedRequest), _asked(predict, TeiPredictRequest)
_RERANK = _asked(rerank, TeiRerankRequest)


def answer_main(call: Call, content: bytes) -> Reply:
    """Answer with the model of the request, or the first."""
    asked = read_body(content, TeiMainRequest)
    served = call.models.find(asked.model)
    if asked.query is not None:
        return _RERANK(call, served.name, content)
    return (_PREDICT if served.embedder is None else _EMBED)(call, served.name, content)


class TeiVertexRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Requests, as Vertex AI sends them."""

    instances: list[msgspec.Raw]


def answer_vertex(call: Call, body: TeiVertexRequest) -> Reply:
    """Answer each of several requests."""
    if not body.instances:
        raise nothing("instances")
    predictions = []
    for instance in body.instances:
        before, call.dropped = call.dropped, {}
        predictions.append(answer_main(call, bytes(instance)).content)
        # Each instance numbers its own inputs.
        call.dropped = dict(enumerate([*before.values(), *call.dropped.values()]))
    return Reply({"predictions": predictions})


def _measured(each: Route) -> Route:
    """Return a route whose answers have the headers that tell of the computation; the application adds the times."""

    def answered(call: Call, content: bytes) -> Reply:
        reply = each.answer(call, content)
        device = call.models.find(call.model).model.backend.arithmetic[1]
        headers = {"x-compute-type": "gpu" if device == "cuda" else device}
        if call.characters:  # unknown for token ids
            headers["x-compute-characters"] = str(call.characters)
        return replace(reply, headers={**reply.headers, **headers})

    return replace(each, answer=answered)


_TAG = "text-embeddings-inference"
_LIST: dict[str, object] = {"type": "array"}
_MAIN = "Embed, classify or rank, as the model can."
_COMPUTED = (
    route("POST", "/embed", embed_texts, TeiEmbedRequest, "Embed texts.", _TAG, tei_form, _LIST),
    route("POST", "/embed_all", embed_tokens, TeiEmbedAllRequest, "Embed each token.", _TAG, tei_form, _LIST),
    route("POST", "/similarity", similarity, TeiSimilarityRequest, "Compare sentences.", _TAG, tei_form, _LIST),
    route("POST", "/predict", predict, TeiPredictRequest, "Classify texts or pairs.", _TAG, tei_form, _LIST),
    route("POST", "/rerank", rerank, TeiRerankRequest, "Rank texts for a query.", _TAG, tei_form, _LIST),
    *(Route("POST", path, answer_main, TeiMainRequest, _MAIN, _TAG, tei_form, _LIST) for path in ("/", "/invocations")),
    route("POST", "/vertex", answer_vertex, TeiVertexRequest, _MAIN, _TAG, tei_form, {"type": "object"}),
    route(
        "POST",
        "/embeddings",
        openai.embeddings,
        openai.EmbeddingRequest,
        "Embed texts, as OpenAI's API does.",
        _TAG,
        tei_openai_form,
        {"type": "object", "required": ["object", "data", "model", "usage"]},
    ),
)
ROUTES: tuple[Route, ...] = (
    *map(_measured, _COMPUTED),
    route("POST", "/embed_sparse", embed_sparse, TeiEmbedAllRequest, "Refuse sparse vectors.", _TAG, tei_form, _LIST),
    route("POST", "/tokenize", tokenize, TeiTokenizeRequest, "Tokenise texts.", _TAG, tei_form, _LIST),
    route("POST", "/decode", decode, TeiDecodeRequest, "Decode token ids.", _TAG, tei_form, _LIST),
    route("GET", "/info", info, NoBody, "Describe the first model.", _TAG, tei_form, {"type": "object"}),
)
