"""Subjects of explanations, made of a trained model and its inputs, and the scores that the model gives them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.compose.ensembles.trained import TrainedEnsemble
from bothways.errors import InvalidInput
from bothways.explain.subjects import AnswerSpan, ContextChoice, Label, Subject, Target, WordTag
from bothways.explain.task_subjects import ChoiceSubject, LabelSubject, SimilaritySubject, SpanSubject, TagSubject
from bothways.inference import TokenOutputs
from bothways.tasks.classification.outputs import LabelOutputs
from bothways.tasks.columns import input_of
from bothways.tasks.embedding.outputs import EmbeddingOutputs
from bothways.tasks.heads.targets import Regression, SingleLabel
from bothways.tasks.multiple_choice.outputs import ChoiceOutputs
from bothways.tasks.outputs import FittedHead
from bothways.tasks.predict import Predictor, score_inputs
from bothways.tasks.question_answering.outputs import AnswerOutputs
from bothways.tasks.scores import Scores
from bothways.tasks.tagging.outputs import TagOutputs
from bothways.text import Words

AnyModel = Predictor[Any, Any, Any]

OUTSIDE = "O"


def subjects_of(model: AnyModel, inputs: Iterable[Any], target: Target | None = None) -> list[Subject]:
    """Return inputs of a model, each with the score that is explained.

    Args:
        model: A trained model of one task.
        inputs: Its inputs.
        target: The score to explain of each; the model's own prediction when None.

    Raises:
        NotFitted: The model was not trained for its task.
        InvalidInput: The model's task has no scores of words, or the target does not fit the model or an input.
    """
    fitted = model.fitted
    together = isinstance(fitted, TrainedEnsemble)
    outputs = fitted.outputs.own if together else fitted.outputs
    if isinstance(outputs, EmbeddingOutputs):
        return [_similarity(model, number, value, target) for number, value in enumerate(inputs)]
    if not isinstance(outputs, LabelOutputs | TagOutputs | ChoiceOutputs | AnswerOutputs):
        raise InvalidInput(
            f"expected a model that classifies, tags, chooses, answers or compares texts, got {model.name!r}, a "
            f"{type(model).__name__}: explain one of its tasks (part(...), or --task), or its attention alone."
        )
    given = [input_of(fitted.columns, number, value) for number, value in enumerate(inputs)]
    scores: Iterable[Scores[Any] | None] = [None] * len(given)
    if target is None or (isinstance(target, WordTag) and target.tag is None):
        scores = score_inputs(fitted, given)
    # An ensemble has an input for each member; those of one text are alike.
    own = [each[0] for each in given] if together else given
    return [_subject(model, outputs, value, target, each) for value, each in zip(own, scores, strict=True)]


def scores_of(
    model: AnyModel, subjects: Sequence[Subject], *, description: str = "scoring", show_progress: bool | None = None
) -> NDArray[np.float64]:
    """Return the scores (N) of subjects by the model's own predictions, windows of long texts merged as it does.

    Raises:
        InvalidInput: A text is empty, or an ensemble is asked for the score of an answer.
    """
    fitted = model.fitted
    values = [_value(model, number, each) for number, each in enumerate(subjects)]
    if not any(isinstance(each, SpanSubject) for each in subjects):
        found = score_inputs(fitted, values, description=description, show_progress=show_progress)
        return _numbers((each, [torch.from_numpy(one.logits_RC)]) for each, one in zip(subjects, found, strict=True))
    if not isinstance(fitted, FittedHead):
        raise InvalidInput(
            f"expected one model for the score of an answer, got the ensemble {model.name!r}: ask its members."
        )
    texts = [text for value in values for text in fitted.outputs.texts(value)]
    read = fitted.backend.runner.run(texts, description=description, total=len(texts), show_progress=show_progress)
    numbers = []
    for subject, rows in zip(subjects, read, strict=True):
        if not isinstance(rows, TokenOutputs):
            raise TypeError("spans are read from a row for each token")
        given = [torch.from_numpy(each) for each in rows.rows]
        numbers.append((subject, [subject.rows(given, rows.places)]))
    return _numbers(numbers)


def _numbers(found: Iterable[tuple[Subject, list[torch.Tensor]]]) -> NDArray[np.float64]:
    return np.array([float(subject.score(rows_RC.double())) for subject, (rows_RC,) in found])


def _value(model: AnyModel, number: int, subject: Subject) -> Any:  # noqa: ANN401 (the task's input)
    """Return what the model reads of a subject; an embedder's columns may be of other rows than pairs."""
    compares = isinstance(subject, SimilaritySubject)
    return subject.value if compares else input_of(model.fitted.columns, number, subject.value)


def _similarity(model: AnyModel, number: int, value: Any, target: Target | None) -> SimilaritySubject:  # noqa: ANN401
    _expect(target, (), model)
    if not (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value)):
        raise InvalidInput(
            f"expected input {number + 1} to be a tuple of two texts, whose similarity an embedder gives, got "
            f"{type(value).__name__}."
        )
    return SimilaritySubject((value[0], value[1]), model.fitted.settings.dimensions)


def _subject(
    model: AnyModel,
    outputs: LabelOutputs | TagOutputs | ChoiceOutputs | AnswerOutputs,
    value: Any,  # noqa: ANN401 (the task's input)
    target: Target | None,
    scores: Scores[Any] | None,
) -> Subject:
    match outputs:
        case LabelOutputs():
            return _labels(model, outputs, value, _expect(target, (Label,), model), scores)
        case TagOutputs():
            return _tags(outputs, value, _expect(target, (WordTag,), model), scores)
        case ChoiceOutputs():
            return _choice(value, _expect(target, (ContextChoice,), model), scores)
        case AnswerOutputs():
            return _answer(outputs, value, _expect(target, (AnswerSpan,), model), scores)


def _expect(target: Target | None, kinds: tuple[type, ...], model: AnyModel) -> Any:  # noqa: ANN401 (one of them)
    if target is None or isinstance(target, kinds):
        return target
    named = " or ".join(kind.__name__ for kind in kinds) or "no target"
    raise InvalidInput(f"expected {named} or None for {model.name!r}, got {target}.")


def _labels(
    model: AnyModel,
    outputs: LabelOutputs,
    value: Any,  # noqa: ANN401 (a text or a pair)
    target: Label | None,
    scores: Scores[Any] | None,
) -> LabelSubject:
    parts = (value,) if isinstance(value, str) else tuple(value)
    if isinstance(model.fitted, FittedHead):
        parts = tuple(map(model.fitted.backend.reading.given, parts))
    if isinstance(outputs.target, Regression):
        _expect(target, (), model)
        return LabelSubject(parts, "", 0, 1, exclusive=False)
    number = int(scores.logits_RC[0].argmax()) if scores is not None else -1
    if target is not None:
        if target.name not in outputs.labels:
            raise InvalidInput(f"expected a label of {', '.join(map(repr, outputs.labels))}, got {target.name!r}.")
        number = outputs.labels.index(target.name)
    exclusive = isinstance(outputs.target, SingleLabel)
    return LabelSubject(parts, outputs.labels[number], number, outputs.size, exclusive=exclusive)


def _tags(outputs: TagOutputs, value: Words, target: WordTag | None, scores: Scores[Any] | None) -> TagSubject:
    words, labels = value.listed(), outputs.labels
    predicted: list[int] = [] if scores is None else scores.logits_RC.argmax(1).tolist()
    if target is None:
        chosen = [number for number, tag in enumerate(predicted) if labels[tag] != OUTSIDE] or range(len(words))
        tags = tuple((number, predicted[number]) for number in chosen)
    else:
        if not 0 <= target.word < len(words):
            raise InvalidInput(f"expected a word from 0 to {len(words) - 1}, got {target.word}.")
        if target.tag is not None and target.tag not in labels:
            raise InvalidInput(f"expected a tag of {', '.join(map(repr, labels))}, got {target.tag!r}.")
        tags = ((target.word, predicted[target.word] if target.tag is None else labels.index(target.tag)),)
    return TagSubject.of(words, tags, tuple(labels[tag] for _, tag in tags))


def _choice(value: Any, target: ContextChoice | None, scores: Scores[Any] | None) -> ChoiceSubject:  # noqa: ANN401
    context, choices = value
    index = target.index if target is not None else int(scores.logits_RC[0].argmax()) if scores is not None else 0
    if not 0 <= index < len(choices):
        raise InvalidInput(f"expected a choice from 0 to {len(choices) - 1}, got {index}.")
    return ChoiceSubject((context, *choices), index)


def _answer(
    outputs: AnswerOutputs,
    value: tuple[str, str],
    target: AnswerSpan | None,
    scores: Scores[Any] | None,
) -> SpanSubject:
    question, context = value
    if target is None:
        found = () if scores is None else scores.places.candidates
        if not found:
            raise InvalidInput("the context has no span that could be an answer: name one with AnswerSpan.")
        target = AnswerSpan(found[0].start, found[0].end)
    if not 0 <= target.start < target.end <= len(context) or not context[target.start : target.end].strip():
        raise InvalidInput(f"expected a span within the {len(context)} characters of the context, got {target}.")
    return SpanSubject((question, context), target, outputs.no_answer)
