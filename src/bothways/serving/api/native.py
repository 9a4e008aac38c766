"""The server's own routes: predictions of every task, judgements and searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from bothways import compose
from bothways.choices import Overflow
from bothways.errors import InvalidInput
from bothways.lazy import imported
from bothways.serving.api.offsets import OffsetUnit, with_offsets
from bothways.serving.errors import Refused, problem_of
from bothways.serving.models import ServedModel
from bothways.serving.option_limits import check_limits, with_limits
from bothways.serving.routes import Call, NoBody, Reply, Route, route
from bothways.tasks.columns import inputs_of
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.schemas import Schemas
from bothways.tasks.task import AnyTask
from bothways.text.words import Words

ModelName: TypeAlias = Annotated[str | None, Meta(description="Name of the model; the first that can, without it.")]
LongTexts: TypeAlias = Annotated[
    Overflow | None, Meta(description="Long texts: read in windows, refused, or cut. Default: that of the model.")
]
Unit: TypeAlias = Annotated[OffsetUnit, Meta(description="Unit of places in texts.")]
Options: TypeAlias = Annotated[dict[str, object], Meta(description="Options of the prediction, see /v1/models.")]


# --- models ---


def list_models(call: Call, body: NoBody) -> Reply:
    """List the models and indexes."""
    del body
    indexes = [{"id": name, "object": "index", "texts": len(each.index)} for name, each in call.models.indexes.items()]
    return Reply({"object": "list", "data": [each.described() for each in call.models], "indexes": indexes})


def show_model(call: Call, body: NoBody) -> Reply:
    """Describe a model, with the JSON schemas of its inputs, options and predictions."""
    del body
    served = call.models.find(call.path["name"])
    call.model = served.name
    return Reply(served.described() | {"schemas": schemas_of(served)})


def schemas_of(served: ServedModel) -> dict[str, object]:
    """Return the JSON schemas of a model."""
    if served.embedder is not None:
        return {"input": {"type": "string"}, "options": {}, "prediction": {"type": "array"}}
    match served.model.fitted:
        case TrainedHead(spec=spec, columns=columns):  # needs no torch
            made = Schemas.of(spec, columns)
        case _:
            made = compose.schemas_of(served.model)
    options = with_limits(served.model.spec.name, made.options)
    return {"input": made.input, "options": options, "prediction": made.prediction}


# --- predictions ---


class PredictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for predictions."""

    inputs: Annotated[object, Meta(description="A list of inputs of the task, or one text.")]
    model: ModelName = None
    task: Annotated[str | None, Meta(description="One task of a model of several tasks.")] = None
    options: Options = msgspec.field(default_factory=dict)
    on_overflow: LongTexts = None
    offsets: Unit = "code_points"
    errors: Annotated[
        Literal["all", "per_item"],
        Meta(description="Refuse the request for one bad input, or answer the others and say what is wrong with it."),
    ] = "all"


def predict(call: Call, body: PredictRequest) -> Reply:
    """Predict with the model of any task."""
    served = call.models.find(body.model)
    call.model = served.name
    model = task_of(served, body.task)
    values = as_list(body.inputs)
    call.check_texts(["".join(texts_in(value)) for value in values])
    call.ticket.on_overflow = body.on_overflow
    check_limits(model.spec.name, body.options)
    if served.embedder is not None and not any(isinstance(value, list | dict) for value in values):
        raise Refused(422, f"{served.name!r} embeds texts: ask /v1/embeddings.", code="wrong_task", param="model")

    def predicted(part: Sequence[object]) -> list[object]:
        read = inputs_of(model.fitted.columns, part)
        return [each.to_dict() for each in model._predictions(read, None, False, body.options)]

    found = per_item(predicted, values, call) if body.errors == "per_item" else predicted(values)
    answers = []
    for number, (value, each) in enumerate(zip(values, found, strict=True)):
        call.drop(number, max(dropped_in(each), default=0))  # the tasks of a model read the same text
        answers.append(each if is_error(each) else with_offsets(each, partial(places_in, model, value), body.offsets))
    return Reply({"model": served.name, "predictions": answers, "usage": usage(call), "warnings": call.all_warnings()})


def usage(call: Call) -> dict[str, int]:
    """Return the inputs and the tokens that were computed."""
    return {"inputs": call.inputs, "tokens": call.ticket.tokens}


def task_of(served: ServedModel, task: str | None) -> AnyTask:
    """Return the model, or one task of a model of several tasks."""
    if task is None:
        return served.model
    parts = served.parts()
    if task not in parts:
        known = f"its tasks are: {', '.join(parts)}" if parts else "it has one task, so leave it out"
        raise Refused(422, f"{served.name!r} has no task {task!r}: {known}.", param="task")
    return parts[task]


def as_list(inputs: object) -> list[object]:
    """Return the inputs of a request as a list; a text or a row is one input."""
    match inputs:
        case list():
            if not inputs:
                raise Refused(422, "inputs: expected at least one, got an empty list.", param="inputs")
            return inputs
        case str() | dict():
            return [inputs]
    raise Refused(422, f"inputs: expected a list of inputs, got {type(inputs).__name__}.", param="inputs")


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts of an input."""
    left = [value]  # no recursion: JSON may be deep
    while left:
        match left.pop():
            case str(text):
                yield text
            case list(items):
                left += reversed(items)
            case dict(row):
                left += reversed(row.values())


def places_in(model: AnyTask, value: object) -> Sequence[str]:
    """Return the texts that places in a prediction belong to: the context of a question, the words joined."""
    (read,) = inputs_of(model.fitted.columns, [value])
    texts = read_texts(read, lambda words: words.text)
    return texts[1:] if model.spec.name == "question-answering" else texts


def read_texts(read: object, joined: Callable[[Words], str]) -> list[str]:
    """Return the texts of an input that was read from the request, words as ``joined`` gives them."""
    match read:
        case str(text):
            return [text]
        case Words():
            return [joined(read)]
        case tuple() | list():
            return [text for each in read for text in read_texts(each, joined)]
        case Mapping():
            return read_texts(list(read.values()), joined)
    return []


def dropped_in(prediction: object) -> Iterator[int]:
    """Yield the numbers of tokens that were not read, also in the parts of a prediction."""
    match prediction:
        case {"dropped_tokens": int(tokens)}:
            yield tokens
        case dict():
            for each in prediction.values():
                yield from dropped_in(each) if isinstance(each, dict) else ()


def is_error(answer: object) -> bool:
    """Test whether the answer for an input says what is wrong with it."""
    return isinstance(answer, dict) and answer.keys() == {"error"}


def per_item(answer: Callable[[Sequence[object]], list[object]], values: Sequence[object], call: Call) -> list[object]:
    """Return the answer for each value, and for those that are not usable an object with the error.

    A part with a bad value is halved until the value stands alone, so the others are still computed together.
    """
    try:
        return answer(values)
    except (InvalidInput, Refused) as error:
        if isinstance(error, Refused) and error.problem.code != "not_finite":
            raise
        if len(values) == 1:
            return [problem_of(error, call.models.private).envelope()]
    middle = len(values) // 2
    return per_item(answer, values[:middle], call) + per_item(answer, values[middle:], call)


# --- judges ---


class JudgedTriple(Struct, forbid_unknown_fields=True, kw_only=True):
    """A query, a retrieved passage and an answer; a judge reads some of them."""

    query: str
    passage: str = ""
    answer: str = ""


class JudgeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to judge answers."""

    inputs: list[JudgedTriple]
    model: ModelName = None
    on_overflow: LongTexts = None


def judge(call: Call, body: JudgeRequest) -> Reply:
    """Return the probability that each triple is good."""
    served = call.models.find(body.model, "judge")
    call.model = served.name
    call.check_texts([each.query + each.passage + each.answer for each in body.inputs])
    call.ticket.on_overflow = body.on_overflow
    if served.judge is None or not body.inputs:
        raise Refused(422, "inputs: expected at least one triple, got none.", param="inputs")
    made = imported("bothways.judging.triples:Triple")
    triples = [made(each.query, each.passage, each.answer) for each in body.inputs]
    found = served.judge.probabilities(triples, show_progress=False)
    dimension = served.judge.dimension
    return Reply(
        {
            "model": served.name,
            "dimension": dimension.name,
            "question": dimension.question,
            "judgements": [{"index": place, "probability": value} for place, value in enumerate(found.tolist())],
            "usage": usage(call),
        }
    )


# --- search ---


class SearchRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to search an index."""

    query: Annotated[str, Meta(description="What to search for.")]
    index: Annotated[str | None, Meta(description="Name of the index; may be left out if there is one.")] = None
    top: Annotated[int, Meta(ge=1, le=1000, description="Number of hits.")] = 10
    mode: Annotated[
        Literal["hybrid", "dense", "lexical"], Meta(description="By meaning and words, by meaning, by words.")
    ] = "hybrid"
    exact: Annotated[
        bool, Meta(description="Compare with all rows of a table, instead of following its graph (HNSW).")
    ] = False
    filters: Annotated[
        list[str], Meta(description="Conditions on stored fields: field=value, field>=number, field<=number.")
    ] = msgspec.field(default_factory=list)


def search(call: Call, body: SearchRequest) -> Reply:
    """Search the texts of an index by meaning, by words, or by both."""
    index = call.models.index(body.index)
    call.model = body.index or next(iter(call.models.indexes))
    call.check_texts([body.query], "query")
    modes = {"hybrid": "Hybrid", "dense": "Dense", "lexical": "Lexical"}
    if body.exact and body.mode == "lexical":
        raise Refused(
            422, "exact is for searches by meaning (dense, hybrid), got lexical: leave it out.", param="exact"
        )
    options = {"exact": True} if body.exact else {}
    mode = imported(f"bothways.retrieval.ranking:{modes[body.mode]}")(**options)
    filters = imported("bothways.retrieval.ranking:parse_filters")(body.filters)
    hits = index.search(body.query, body.top, mode=mode, filters=filters, show_progress=False)
    found = [
        {"rank": hit.rank, "id": hit.id, "score": hit.score, "text": hit.text, "fields": dict(hit.fields)}
        for hit in hits
    ]
    return Reply({"index": call.model, "mode": body.mode, "hits": found, "usage": usage(call)})


def _array(name: str, items: Mapping[str, object]) -> dict[str, object]:
    listed = {name: {"type": "array", "items": items}}
    return {"type": "object", "properties": {"model": {"type": "string"}, **listed}, "required": [name]}


_ANY: Mapping[str, object] = {"type": "object"}

ROUTES: tuple[Route, ...] = (
    route("GET", "/v1/models", list_models, NoBody, "List the models.", "models", reply=_array("data", _ANY)),
    route("GET", "/v1/models/{name}", show_model, NoBody, "Describe a model.", "models", reply=_ANY),
    route(
        "POST",
        "/v1/predict",
        predict,
        PredictRequest,
        "Predict with the model of any task.",
        "native",
        reply=_array("predictions", {}),
    ),
    route("POST", "/v1/judge", judge, JudgeRequest, "Judge answers.", "native", reply=_array("judgements", _ANY)),
    route("POST", "/v1/search", search, SearchRequest, "Search an index.", "native", reply=_array("hits", _ANY)),
)
