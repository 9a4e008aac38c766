"""The JSON of Hugging Face's tasks: ``POST /models/{name}`` with ``inputs`` and ``parameters``.

The model's task and the form of the inputs choose what is computed:

- A classifier of texts takes texts, one of pairs ``{"text": ..., "text_pair": ...}``; one of pairs that has a label for
  entailment also takes texts with ``candidate_labels`` (zero-shot classification).
- An embedder takes texts (feature extraction), or ``{"source_sentence": ..., "sentences": [...]}``.
- A tagger and a masked language model take texts, a question answerer ``{"question": ..., "context": ...}``.
- Of a model of several tasks, ``/models/{name}/{task}`` asks one.

Multiple choice has no JSON there, only in /v1/predict.

Probabilities are calibrated if the model is. Places in texts count code points; ``parameters.offsets`` chooses UTF-16
code units or bytes. Long texts are read as the model was opened; ``parameters.on_overflow`` chooses otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from bothways.serving.api.huggingface_forms import HuggingFaceRequest, TaskParameters, huggingface_form, listed
from bothways.serving.api.huggingface_labels import LabelRequest, label_texts
from bothways.serving.api.huggingface_tags import TagRequest, tag_texts
from bothways.serving.api.native import Unit, task_of
from bothways.serving.api.offsets import OffsetMap
from bothways.serving.api.tei_forms import Direction, Truncate, overflow, prompt_of
from bothways.serving.api.tei_vectors import TeiSentences, cosines
from bothways.serving.api.vectors import as_base64, embed
from bothways.serving.errors import Refused
from bothways.serving.models import Models, ServedModel
from bothways.serving.option_limits import LONGEST_ANSWER, MOST_ANSWERS, MOST_FILLS, MOST_WORDS
from bothways.serving.routes import BodyT, Call, Reply, Route, read_body
from bothways.tasks.masked_lm.outputs import FittedMaskedLM
from bothways.tasks.masked_lm.search import FoundFills
from bothways.tasks.masked_lm.spec import FillOptions

# --- questions ---


class Question(Struct, forbid_unknown_fields=True, kw_only=True):
    """A question, and the context to search for its answer."""

    question: str
    context: str


class AnswerParameters(TaskParameters):
    """Parameters of question answering."""

    top_k: Annotated[int, Meta(ge=1, le=MOST_ANSWERS, description="Number of answers.")] = 1
    max_answer_len: Annotated[int, Meta(ge=1, le=LONGEST_ANSWER, description="Tokens of an answer.")] | None = None
    handle_impossible_answer: Annotated[
        bool, Meta(description="Also give the empty answer, if the model was trained to find none.")
    ] = False
    offsets: Unit = "code_points"


class QuestionRequest(HuggingFaceRequest):
    """A request to answer questions."""

    inputs: Question | list[Question]
    parameters: AnswerParameters | None = None


def answer_questions(call: Call, served: ServedModel, body: QuestionRequest) -> object:
    """Return the best answer to each question, or a list of the best."""
    parameters = body.parameters or AnswerParameters()
    call.ticket.on_overflow = parameters.on_overflow
    questions = listed(body.inputs)
    call.check_texts([each.question + each.context for each in questions])
    top, declines = parameters.top_k, parameters.handle_impossible_answer
    predictions = served.model.predict_stream(
        [(each.question, each.context) for each in questions],
        show_progress=False,
        top=top,
        max_answer_tokens=parameters.max_answer_len,
        threshold=None if declines else -math.inf,
    )
    found = []
    for number, (question, prediction) in enumerate(zip(questions, predictions, strict=True)):
        answers = _answers(prediction.to_dict(), OffsetMap(question.context, parameters.offsets), declines)
        call.drop(number, prediction.to_dict()["dropped_tokens"])
        found.append(answers[0] if top == 1 else answers[:top])
    return found if isinstance(body.inputs, list) else found[0]


def _answers(prediction: Mapping[str, object], place: OffsetMap, declines: bool) -> list[dict[str, object]]:
    """Return the answers in a prediction, best first; the empty one if the model gives it, or there is no other."""
    found: list[tuple[float, int, int, str]] = []
    match prediction:
        case {"answers": list(answers), "probability": float(probability), "no_answer_probability": nothing}:
            found = [(each["probability"], place(each["start"]), place(each["end"]), each["text"]) for each in answers]
            if declines and isinstance(nothing, float):
                found.append((nothing, 0, 0, ""))
            found = found or [(probability, 0, 0, "")]
    ranked = sorted(found, key=lambda answer: -answer[0])
    return [{"score": score, "start": start, "end": end, "answer": text} for score, start, end, text in ranked]


# --- masks ---


class FillParameters(TaskParameters):
    """Parameters of filling masks; by default, the part of a long text around the masks is read."""

    top_k: Annotated[int, Meta(ge=1, le=MOST_FILLS, description="Number of words.")] = 5
    targets: (
        Annotated[list[str], Meta(min_length=1, max_length=MOST_WORDS, description="The only words for a mask.")] | None
    ) = None


class FillRequest(HuggingFaceRequest):
    """A request to fill the masks of texts."""

    inputs: str | list[str]
    parameters: FillParameters | None = None


def fill_masks(call: Call, served: ServedModel, body: FillRequest) -> object:
    """Return the words for the mask of each text, best first; a list of them for each mask if there are several."""
    parameters = body.parameters or FillParameters()
    call.ticket.on_overflow = parameters.on_overflow
    texts = listed(body.inputs)
    call.check_texts(texts)
    fitted: FittedMaskedLM = served.model.fitted
    options = FillOptions(top=parameters.top_k, words=parameters.targets)
    scored = list(chain.from_iterable(fitted.score_blocks(texts, options)))
    found = []
    for number, (each, prediction) in enumerate(zip(scored, fitted.outputs.decide(scored, options), strict=True)):
        call.drop(number, prediction.dropped_tokens)
        words = [[one.word for one in best] for best in prediction.masks]
        masks = [_fillings(fitted, each.places, slot, own) for slot, own in enumerate(words)]
        found.append(masks[0] if len(masks) == 1 else masks)
    return found if isinstance(body.inputs, list) else found[0]


def _fillings(fitted: FittedMaskedLM, found: FoundFills, slot: int, words: list[str]) -> list[dict[str, object]]:
    """Return the words for a mask, each with the text in which the other masks are left."""
    tokenizer = fitted.backend.tokenizer
    mask, masks = tokenizer.token(tokenizer.mask_id), range(len(found.of_mask))
    answers: list[dict[str, object]] = []
    for word, scored in zip(words, found.of_mask[slot], strict=True):
        first = scored.fill[0][0]
        joined = found.choice.words is None and tokenizer.word_marks.continues(tokenizer.token(first))
        given = [word if other == slot else mask for other in masks]
        text = found.text.filled(given, [joined and other == slot for other in masks])
        answers.append({"score": math.exp(scored.log_probability), "token": first, "token_str": word, "sequence": text})
    return answers


# --- vectors ---


class VectorRequest(HuggingFaceRequest):
    """A request to embed texts, or to compare sentences with one."""

    inputs: str | TeiSentences | list[str]
    parameters: TaskParameters | None = None
    normalize: Annotated[bool | None, Meta(description="Give vectors unit length. Default: as the model does.")] = None
    prompt_name: str | None = None
    truncate: Truncate = None
    truncation_direction: Direction | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"


def embed_inputs(call: Call, served: ServedModel, body: VectorRequest) -> object:
    """Return the vector of each text, or the cosine of each sentence and the first one."""
    chosen = body.parameters.on_overflow if body.parameters else None
    call.ticket.on_overflow = chosen or overflow(served, body.truncate, body.truncation_direction)
    if isinstance(body.inputs, TeiSentences):
        return cosines(call, served, body.inputs, body.prompt_name)
    prompt, unit = prompt_of(served, body.prompt_name), body.normalize
    texts = listed(body.inputs)
    vectors_NK = embed(call, served, texts, prompt=prompt, dimensions=body.dimensions, unit_length=unit, param="inputs")
    return vectors_NK if body.encoding_format == "float" else [as_base64(row) for row in vectors_NK]


# --- all tasks ---


class HuggingFaceBody(Struct, kw_only=True):
    """A request; the task of the model says what it takes."""

    inputs: Annotated[object, Meta(description="A text, an object of texts, or a list of either.")]
    parameters: Annotated[dict[str, object] | None, Meta(description="Parameters of the task.")] = None


_Answer: TypeAlias = Callable[[Call, ServedModel, bytes], object]


def _task(answer: Callable[[Call, ServedModel, BodyT], object], form: type[BodyT]) -> _Answer:
    return lambda call, served, content: answer(call, served, read_body(content, form))


_BY_TASK: Mapping[str, _Answer] = {
    "classification": _task(label_texts, LabelRequest),
    "pairs": _task(label_texts, LabelRequest),
    "tagging": _task(tag_texts, TagRequest),
    "question-answering": _task(answer_questions, QuestionRequest),
    "masked_lm": _task(fill_masks, FillRequest),
    "embedding": _task(embed_inputs, VectorRequest),
}


def _named(models: Models, name: str) -> ServedModel:
    """Return the model of this name, or for ``model/task`` one task of a model of several."""
    owner, _, task = name.rpartition("/")
    if name not in models and owner in models and models.find(owner).parts():
        several = models.find(owner)
        part = task_of(several, task)
        return replace(several, task=part.spec.name, model=part)
    return models.find(name)


def answer_model(call: Call, content: bytes) -> Reply:
    """Answer by the model's task."""
    served = _named(call.models, call.path["name"])
    call.model = served.name
    if served.task not in _BY_TASK:
        parts = served.parts()
        ask = f" /models/{served.name}/{next(iter(parts))}, or for all tasks" if parts else ""
        what = f"of several tasks ({', '.join(parts)})" if parts else f"for {served.task}"
        message = f"{served.name!r} is a model {what}, for which Hugging Face has no JSON: ask{ask} /v1/predict."
        raise Refused(422, message, code="wrong_task", param="model")
    return Reply(_BY_TASK[served.task](call, served, content))


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/models/{name:path}",
        answer_model,
        HuggingFaceBody,
        "Answer in the JSON of Hugging Face's tasks.",
        "hugging-face",
        huggingface_form,
    ),
)
