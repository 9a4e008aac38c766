"""Labels and ranks, as text-embeddings-inference gives them; see `bothways.serving.api.tei`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from bothways.evaluation.temperature import sigmoid
from bothways.retrieval.reranking import CrossEncoder
from bothways.serving.api.ranking import label_logits, label_scores, ranked, ranked_labels, scores
from bothways.serving.api.tei_forms import TeiRequest, nothing
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call, Reply
from bothways.tasks.heads.targets import Regression

RawScores: TypeAlias = Annotated[bool, Meta(description="Return logits instead of probabilities.")]


class TeiPredictRequest(TeiRequest):
    """A request to classify texts, or pairs of texts."""

    inputs: Annotated[
        str | list[str | list[str]],
        Meta(description="A text, ONE pair of texts as [a, b], or a batch of lists with one text or two."),
    ]
    raw_scores: RawScores = False


def predict(call: Call, body: TeiPredictRequest) -> Reply:
    """Classify texts, or pairs of texts."""
    batch, alone = _batch(body.inputs)
    if not all(len(each) in (1, 2) for each in batch):
        raise Refused(422, "inputs: expected lists of one text each, or of two.", param="inputs")
    tasks = {"classification" if len(each) == 1 else "pairs" for each in batch}
    served = _reader(call, body.model, tasks)
    body.prepare(call, served)
    inputs = [each if len(each) == 2 else each[0] for each in batch]
    found = [
        [{"score": score, "label": label} for label, score in ranked_labels(by_label)]
        for by_label in label_scores(call, served, inputs, "none" if body.raw_scores else None)
    ]
    return Reply(found[0] if alone else found)


def _batch(inputs: str | list[str | list[str]]) -> tuple[list[list[str]], bool]:
    """Return lists of texts, and True if there is one that stands alone."""
    if isinstance(inputs, str):
        return [[inputs]], True
    if not inputs:
        raise nothing("inputs")
    texts = [each for each in inputs if isinstance(each, str)]
    lists = [each for each in inputs if not isinstance(each, str)]
    if texts and (lists or len(texts) > 2):
        message = "inputs: expected a text, a pair of two texts, or a batch as lists, such as [['a'], ['b']]."
        raise Refused(422, message, param="inputs")
    return ([texts], True) if texts else (lists, False)


def _reader(call: Call, name: str | None, tasks: set[str]) -> ServedModel:
    """Return the model of this name, or the first, that classifies texts, or pairs, or both."""
    able = [each for each in call.models if tasks <= each.reads]
    served = able[0] if name is None and able else call.models.find(name, "classify")
    if served not in able:
        if len(tasks) > 1:
            message = f"inputs: {served.name!r} does not read both texts and pairs: send them in several requests."
            raise Refused(422, message, param="inputs")
        what = "pairs of texts" if "pairs" in tasks else "single texts"
        others = f"the models that do are: {', '.join(each.name for each in able)}" if able else "no model here does"
        raise Refused(422, f"{served.name!r} does not classify {what}: {others}.", code="wrong_task", param="model")
    call.model = served.name
    return served


class TeiRerankRequest(TeiRequest):
    """A request to rank texts for a query."""

    query: str
    texts: list[str]
    raw_scores: RawScores = False
    return_text: bool = False


def rerank(call: Call, body: TeiRerankRequest) -> Reply:
    """Rank texts by their relevance for a query."""
    if not body.texts:
        raise nothing("texts")
    crossing = [each for each in call.models if each.task == "pairs" and each.reranker is not None]
    served = crossing[0] if body.model is None and crossing else call.models.find(body.model, "rerank")
    call.model = served.name
    body.prepare(call, served)
    found = _relevance(call, served, body)
    answers = []
    for place in ranked(found):
        text = {"text": body.texts[place]} if body.return_text else {}
        answers.append({"index": place} | text | {"score": found[place]})
    return Reply(answers)


def _relevance(call: Call, served: ServedModel, body: TeiRerankRequest) -> list[float]:
    """Return the relevance of each text.

    It is a probability, or with ``raw_scores`` its log odds. Models that predict grades, and embedders, give their
    own scores in any case.
    """
    reranker = served.reranker
    relevant = reranker.relevant if isinstance(reranker, CrossEncoder) else None
    if relevant is not None and body.raw_scores:
        logits_NC, labels = label_logits(call, served, [[body.query, text] for text in body.texts])
        place = list(labels).index(relevant)
        others_N = np.logaddexp.reduce(np.delete(logits_NC, place, axis=1), axis=1)
        return [float(each) for each in logits_NC[:, place] - others_N]
    _, found = scores(call, served.name, body.query, body.texts, "texts")
    predicts = served.model.fitted.outputs.target if isinstance(reranker, CrossEncoder) else None
    if isinstance(predicts, Regression) and not body.raw_scores:
        return [float(each) for each in sigmoid(found)]
    return found
