"""Reranking, classification and scores of pairs, as the APIs of Cohere, Jina, vLLM and infinity have them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from bothways.choices import Overflow
from bothways.evaluation.temperature import sigmoid, softmax
from bothways.serving.api.openai import openai_form
from bothways.serving.errors import Problem, Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call, Reply, Route, route
from bothways.tasks.classification.outputs import LabelOutputs
from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.columns import input_of
from bothways.tasks.outputs import TrainedHead


class RankedDocument(Struct, forbid_unknown_fields=False):
    """A document of a request for reranking, as an object."""

    text: str


class RerankRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to rank documents for a query, as Cohere's and Jina's clients send it."""

    query: str
    documents: Annotated[list[str | RankedDocument], Meta(description="The documents: texts, or objects with a text.")]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, description="Number of documents to return. Default: all.")] | None = None
    return_documents: bool = False
    max_tokens_per_doc: Annotated[
        int | None, Meta(description="Accepted for Cohere's clients; texts are read whole.")
    ] = None
    priority: int | None = None
    on_overflow: Overflow | None = None


def scores(
    call: Call, name: str | None, query: str, passages: list[str], param: str = "documents"
) -> tuple[ServedModel, list[float]]:
    """Return the model and the score of each passage for a query, which is finite and higher for better passages."""
    before = call.inputs
    served = call.models.find(name, "rerank")
    call.model = served.name
    if not passages:
        raise Refused(422, f"{param}: expected at least one, got an empty list.", param=param)
    call.check_texts(passages, param)
    call.check_lengths([query], "query")
    if len(query) * len(passages) > call.limits.body_bytes:  # a model of pairs reads the query with each of them
        message = f"the query has {len(query):,} characters, too many for {len(passages):,} texts: shorten it."
        raise Refused(413, message, code="text_too_long", param="query")
    if served.embedder is None:
        call.characters += len(query) * (len(passages) - 1)
    reranker = served.reranker
    if reranker is None:
        raise Refused(422, f"{served.name!r} scores no passages.", code="wrong_task", param="model")
    found, reads = reranker.read(query, passages)
    # A model that reads pairs reports each pair; one that embeds, the query first and then each passage.
    first = len(reads) - len(passages)
    for number, read in enumerate(reads):
        call.drop(before + max(0, number - first), read.dropped_tokens)
    return served, [float(score) for score in found]


def ranked(values: list[float], top: int | None = None) -> list[int]:
    """Return the places of the highest values, best first; equal values in their order."""
    return sorted(range(len(values)), key=lambda place: -values[place])[:top]


def rerank(call: Call, body: RerankRequest) -> Reply:
    """Rank documents by their relevance for a query."""
    call.ticket.on_overflow = body.on_overflow
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    served, found = scores(call, body.model, body.query, texts)
    results: list[dict[str, object]] = []
    for place in ranked(found, body.top_n):
        result: dict[str, object] = {"index": place, "relevance_score": found[place]}
        results.append(result | ({"document": {"text": texts[place]}} if body.return_documents else {}))
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}, "warnings": call.all_warnings()}
    return Reply(
        {"id": str(uuid.uuid4()), "model": served.name, "results": results, "usage": call.usage(), "meta": meta}
    )


# --- classification and scores, as vLLM and infinity have them ---


class ClassifyRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to classify texts."""

    input: str | list[str]
    model: str | None = None
    raw_scores: bool = False
    user: str | None = None
    on_overflow: Overflow | None = None


def _read(served: ServedModel, inputs: Sequence[str | list[str]]) -> Iterator[object]:
    """Yield checked inputs of a classifier; see `ServedModel.reads`."""
    either = len(served.reads) > 1
    for number, each in enumerate(inputs):
        of_form = CLASSIFICATION.columns if isinstance(each, str) else PAIRS.columns
        columns = of_form if either else served.model.fitted.columns
        yield input_of(columns, number, each if isinstance(each, str) else tuple(each))


def probabilities(call: Call, served: ServedModel, inputs: Sequence[str | list[str]]) -> list[dict[str, float]]:
    """Return the probability of each label for texts, or for pairs of texts."""
    call.check_texts([each if isinstance(each, str) else "".join(each) for each in inputs], "input")
    found = []
    predictions = served.model._predictions(_read(served, inputs), None, False, {})
    for number, prediction in enumerate(predictions):
        answer = prediction.to_dict()
        match answer:
            case {"probabilities": dict(by_label)}:
                found.append({str(label): float(value) for label, value in by_label.items()})
            case {"value": float(value)}:
                found.append({"score": value})
            case _:
                raise Refused(422, f"{served.name!r} has no probability for each label.", code="wrong_task")
        match answer.get("dropped_tokens"):
            case int(tokens):
                call.drop(number, tokens)
    return found


def classify(call: Call, body: ClassifyRequest) -> Reply:
    """Classify texts."""
    served = call.models.find(body.model, "classify")
    call.model = served.name
    call.ticket.on_overflow = body.on_overflow
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        raise Refused(422, "input: expected at least one text, got an empty list.", param="input")
    labels = [str(label) for label in served.model.labels] or ["score"]
    data = []
    for place, by_label in enumerate(probabilities(call, served, texts)):
        best = max(by_label, key=by_label.__getitem__)
        ordered = sorted(by_label, key=lambda name: -by_label[name])
        data.append(
            {
                "index": place,
                "label": best,
                "probs": [by_label[label] for label in labels],
                "num_classes": len(by_label),
                "scores": [{"label": name, "score": by_label[name]} for name in ordered],
            }
        )
    answer = {"id": str(uuid.uuid4()), "object": "list", "model": served.name, "data": data, "usage": call.usage()}
    return Reply(answer | {"labels": labels})


LabelFunction: TypeAlias = Literal["sigmoid", "softmax", "none"]


def label_scores(
    call: Call, served: ServedModel, inputs: Sequence[str | list[str]], function: LabelFunction | None
) -> list[dict[str, float]]:
    """Return the score of each label for texts, or for pairs; without a function, the model's own probability."""
    if function is None:
        return probabilities(call, served, inputs)
    values_NC, labels = label_logits(call, served, inputs)
    if function != "none":
        values_NC = softmax(values_NC) if function == "softmax" else sigmoid(values_NC)
    return [dict(zip(labels, row, strict=True)) for row in values_NC.tolist()]


def label_logits(
    call: Call, served: ServedModel, inputs: Sequence[str | list[str]]
) -> tuple[NDArray[np.float64], Sequence[str]]:
    """Return the logits of texts, or of pairs, (N, C), and the names of the labels; note what was not read."""
    fitted = served.model.fitted
    match fitted:
        case TrainedHead(outputs=LabelOutputs() as outputs):
            pass
        case _:
            message = f"{served.name!r} has no single logit for each label: ask for its probabilities."
            raise Refused(422, message, code="wrong_task", param="model")
    parts = [[each] if isinstance(each, str) else each for each in inputs]
    check_size(call, sum(len(text) for each in parts for text in each))
    call.check_texts(["".join(each) for each in parts])
    scores = list(chain.from_iterable(fitted.score_blocks(list(_read(served, inputs)))))
    for number, each in enumerate(scores):
        call.drop(number, each.read.dropped_tokens)
    return np.concatenate([each.logits_RC for each in scores]), outputs.labels


def check_size(call: Call, characters: int) -> None:
    """Refuse inputs that are much longer than the body that they were made from."""
    limit = call.limits.body_bytes
    if characters > limit:
        message = f"the texts and labels make inputs of {characters:,} characters, more than {limit:,}: shorten them."
        raise Refused(413, message, code="text_too_long", param="inputs")


def ranked_labels(by_label: dict[str, float], top: int | None = None) -> list[tuple[str, float]]:
    """Return the labels with the highest scores, best first."""
    return sorted(by_label.items(), key=lambda pair: -pair[1])[:top]


class ScoreRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for scores of pairs: one text against many, or pair by pair."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    on_overflow: Overflow | None = None


def score(call: Call, body: ScoreRequest) -> Reply:
    """Score pairs of texts."""
    call.ticket.on_overflow = body.on_overflow
    first, second = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    if len(first) == 1 or not second:
        served, found = scores(call, body.model, "".join(first[:1]), second, "text_2")
    elif len(first) == len(second):
        pairs = [scores(call, body.model, one, [other], "text_2") for one, other in zip(first, second, strict=True)]
        served, found = pairs[0][0], [values[0] for _, values in pairs]
    else:
        message = f"text_1 must be one text, or as many as text_2 ({len(second)}), got {len(first)}."
        raise Refused(422, message, param="text_1")
    data = [{"index": place, "object": "score", "score": value} for place, value in enumerate(found)]
    return Reply({"id": str(uuid.uuid4()), "object": "list", "model": served.name, "data": data, "usage": call.usage()})


def cohere_form(problem: Problem) -> tuple[int, object]:
    """Return a problem as Cohere tells of it, beside OpenAI's envelope."""
    status, content = openai_form(problem)
    return status, {"message": problem.message, "detail": problem.message} | (
        content if isinstance(content, dict) else {}
    )


_LIST: dict[str, object] = {"type": "object", "required": ["data", "model"]}
_RANKED: dict[str, object] = {"type": "object", "required": ["results", "model"]}

ROUTES: tuple[Route, ...] = (
    *(
        route("POST", path, rerank, RerankRequest, "Rank documents for a query.", "rerank", cohere_form, _RANKED)
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    *(
        route("POST", path, classify, ClassifyRequest, "Classify texts.", "classify", openai_form, _LIST)
        for path in ("/classify", "/v1/classify")
    ),
    *(
        route("POST", path, score, ScoreRequest, "Score pairs of texts.", "score", openai_form, _LIST)
        for path in ("/score", "/v1/score")
    ),
)
