"""Classification, also zero-shot, in the JSON of Hugging Face; see `bothways.serving.api.huggingface`."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from bothways.evaluation.temperature import sigmoid, softmax
from bothways.serving.api.huggingface_forms import HuggingFaceRequest, TaskParameters, listed
from bothways.serving.api.ranking import LabelFunction, check_size, label_logits, label_scores, ranked_labels
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call


class TextPair(Struct, forbid_unknown_fields=True, kw_only=True):
    """A pair of texts."""

    text: str
    text_pair: str


class LabelParameters(TaskParameters):
    """Parameters of text classification; those from ``candidate_labels`` on are of zero-shot classification."""

    function_to_apply: Annotated[
        LabelFunction | None, Meta(description="Function of the logits. Default: the model's probabilities.")
    ] = None
    top_k: Annotated[int, Meta(ge=1, description="Number of labels. Default: all.")] | None = None
    candidate_labels: Annotated[list[str], Meta(min_length=1)] | None = None
    hypothesis_template: Annotated[str, Meta(description="A sentence with {} in place of the label.")] = (
        "This example is {}."
    )
    multi_label: Annotated[bool, Meta(description="Several labels may be right.")] = False


class LabelRequest(HuggingFaceRequest):
    """A request to classify texts or pairs."""

    inputs: str | TextPair | list[str | TextPair]
    parameters: LabelParameters | None = None


def label_texts(call: Call, served: ServedModel, body: LabelRequest) -> object:
    """Return the labels of each input with their scores, best first."""
    parameters = body.parameters or LabelParameters()
    call.ticket.on_overflow = parameters.on_overflow
    inputs: list[str | TextPair] = listed(body.inputs)
    texts = [each for each in inputs if isinstance(each, str)]
    if parameters.candidate_labels is not None:
        if len(texts) < len(inputs):
            raise Refused(422, "inputs: candidate_labels need texts, not pairs.", param="inputs")
        found = zero_shot(call, served, texts, parameters, parameters.candidate_labels)
        return found[0] if isinstance(body.inputs, str) else found
    if not {"classification" if isinstance(each, str) else "pairs" for each in inputs} <= served.reads:
        reads_pairs = "pairs" in served.reads
        expected = 'objects {"text": ..., "text_pair": ...}' if reads_pairs else "texts"
        more = ", or texts with parameters.candidate_labels" if reads_pairs else ""
        raise Refused(422, f"inputs: {served.name!r} classifies {expected}{more}.", param="inputs")
    given = [each if isinstance(each, str) else [each.text, each.text_pair] for each in inputs]
    scored = label_scores(call, served, given, parameters.function_to_apply)
    return [_elements(ranked_labels(by_label, parameters.top_k)) for by_label in scored]


def _elements(ranked: list[tuple[str, float]]) -> list[dict[str, object]]:
    return [{"label": label, "score": score} for label, score in ranked]


def zero_shot(
    call: Call, served: ServedModel, texts: list[str], parameters: LabelParameters, labels: list[str]
) -> list[list[dict[str, object]]]:
    """Return the candidate labels of each text with their probabilities, by the entailment of a sentence with each.

    With ``multi_label``, or a single label, entailment stands against contradiction; else the labels against another.
    """
    template = parameters.hypothesis_template
    if template.count("{}") != 1:
        raise Refused(
            422, f"hypothesis_template: expected one {{}} for the label, got {template!r:.80}.", param="parameters"
        )
    if parameters.function_to_apply is not None:
        raise Refused(422, "function_to_apply has no use with candidate_labels: leave one out.", param="parameters")
    entailed, against = _places(served)
    asked = sum(len(template) + len(label) for label in labels)
    check_size(call, sum(map(len, texts)) * len(labels) + len(texts) * asked)
    pairs = [[text, template.replace("{}", label)] for text in texts for label in labels]
    logits_NC, _ = label_logits(call, served, pairs)
    call.inputs = len(texts)
    call.dropped = _by_text(call.dropped, len(labels))
    entailed_TL = logits_NC[:, entailed].reshape(len(texts), len(labels))
    if parameters.multi_label or len(labels) == 1:
        others_TL = np.logaddexp.reduce(logits_NC[:, against], axis=1).reshape(entailed_TL.shape)
        scores_TL = sigmoid(entailed_TL - others_TL)
    else:
        scores_TL = softmax(entailed_TL)
    ranked = [sorted(zip(labels, row, strict=True), key=lambda pair: -pair[1]) for row in scores_TL.tolist()]
    return [_elements(each[: parameters.top_k]) for each in ranked]


def _places(served: ServedModel) -> tuple[int, list[int]]:
    """Return the number of the label for entailment, and of those against it: contradiction, else all others."""
    names = [str(label).lower() for label in served.model.labels]
    entailed = [place for place, name in enumerate(names) if name.startswith("entail")]
    if len(entailed) != 1:
        message = (
            f"{served.name!r} takes no candidate_labels: they need a model of entailment, with a label of that name."
        )
        raise Refused(422, message, code="wrong_task", param="parameters")
    others = [place for place in range(len(names)) if place not in entailed]
    return entailed[0], [place for place in others if names[place].startswith("contradict")] or others


def _by_text(dropped: dict[int, int], labels: int) -> dict[int, int]:
    """Return the tokens that were not read of each text, given those of its pairs with each label."""
    found: dict[int, int] = {}
    for number, tokens in dropped.items():
        found[number // labels] = max(tokens, found.get(number // labels, 0))
    return found
