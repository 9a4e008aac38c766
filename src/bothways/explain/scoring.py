"""Create explanation targets for a model's inputs, and compute their scores with the model."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.compose.ensembles.trained import TrainedEnsemble
from bothways.data import class_label
from bothways.errors import InvalidInput
from bothways.explain.targets import AnswerSpan, ContextChoice, ExplainTarget, Label, Target, WordTag
from bothways.explain.task_targets import ChoiceTarget, LabelTarget, SimilarityTarget, SpanTarget, TagTarget
from bothways.inference import TokenOutputs
from bothways.tasks.columns import input_of
from bothways.tasks.embedding.outputs import EmbeddingOutputs
from bothways.tasks.embedding.trained import TrainedEmbedder
from bothways.tasks.heads.targets import Regression, SingleLabel
from bothways.tasks.heads.targets import Target as RowTarget
from bothways.tasks.multiple_choice.outputs import ChoiceOutputs
from bothways.tasks.outputs import TrainedHead, score_inputs
from bothways.tasks.question_answering.outputs import AnswerOutputs
from bothways.tasks.question_answering.spans import FoundSpans
from bothways.tasks.scores import Scores
from bothways.tasks.tagging.outputs import TagOutputs
from bothways.tasks.task import AnyTask
from bothways.text import Words
from bothways.text.windows import Text

TargetT = TypeVar("TargetT", bound=Target)

OUTSIDE = "O"


@runtime_checkable
class LabelsOfTexts(Protocol):
    """Outputs of a task that predicts labels, or a number, for a whole text or pair."""

    labels: tuple[str, ...]
    row_target: RowTarget


def explain_targets(model: AnyTask, inputs: Iterable[object], target: Target | None = None) -> list[ExplainTarget]:
    """Return each input with the score to explain: that of ``target``, by default of the model's own prediction.

    Raises:
        NotFitted: The model was not trained for its task.
        InvalidInput: The task cannot be explained by words, or the target does not fit the model or an input.
    """
    fitted = model.fitted
    together = isinstance(fitted, TrainedEnsemble)
    outputs = fitted.outputs.own if together else fitted.outputs
    if isinstance(outputs, EmbeddingOutputs):
        return [_similarity(model, number, value, target) for number, value in enumerate(inputs)]
    if not isinstance(outputs, TagOutputs | ChoiceOutputs | AnswerOutputs | LabelsOfTexts):
        raise InvalidInput(
            f"expected a model that classifies, tags, chooses, answers or compares texts, got {model.name!r}, a "
            f"{type(model).__name__}. Explain one of its tasks (part(...), or --task), or only its attention."
        )
    given = [input_of(fitted.columns, number, value) for number, value in enumerate(inputs)]
    scores: Iterable[Scores[object] | None] = [None] * len(given)
    if target is None or (isinstance(target, WordTag) and target.tag is None):
        scores = score_inputs(fitted, given)
    # An ensemble has an input for each member; all describe the same texts.
    own = [each[0] for each in given] if together else given
    found: list[ExplainTarget] = []
    for value, each in zip(own, scores, strict=True):
        match outputs:
            case TagOutputs():
                found.append(_tags(outputs, value, _of_kind(target, WordTag, model), each))
            case ChoiceOutputs():
                found.append(_choice(value, _of_kind(target, ContextChoice, model), each))
            case AnswerOutputs():
                found.append(_answer(outputs, value, _of_kind(target, AnswerSpan, model), each))
            case _:
                found.append(_labels(model, outputs, value, _of_kind(target, Label, model), each))
    return found


def scores_of(model: AnyTask, targets: Sequence[ExplainTarget], *, description: str = "scoring") -> NDArray[np.float64]:
    """Return the scores (N) of targets from the model's predictions; long texts are split into windows as usual.

    Raises:
        InvalidInput: A text is empty, or the score of an answer is requested from an ensemble.
    """
    fitted = model.fitted
    # The columns of an embedder may belong to rows that are not pairs.
    values = [
        each.value if isinstance(each, SimilarityTarget) else input_of(fitted.columns, number, each.value)
        for number, each in enumerate(targets)
    ]
    if not any(isinstance(each, SpanTarget) for each in targets):
        found = score_inputs(fitted, values, description=description)
        if isinstance(fitted, TrainedEmbedder):
            return np.array([float(each.logits_RC[0, 0]) for each in found])
        return _numbers(targets, [torch.from_numpy(each.logits_RC) for each in found])
    if not isinstance(fitted, TrainedHead):
        raise InvalidInput(
            f"the score of an answer needs a single model, got the ensemble {model.name!r}: explain its members."
        )
    texts = [text for value in values for text in fitted.outputs.texts(value)]
    read = fitted.backend.runner.run(texts, description=description, total=len(texts))
    rows = []
    for target, given in zip(targets, read, strict=True):
        if not isinstance(given, TokenOutputs):
            raise TypeError(f"expected start and end scores of each token, got {type(given).__name__}")
        rows.append(target.rows([torch.from_numpy(each) for each in given.rows], given.places))
    return _numbers(targets, rows)


def _numbers(targets: Sequence[ExplainTarget], rows: Sequence[torch.Tensor]) -> NDArray[np.float64]:
    return np.array([float(each.score(rows_RC.double())) for each, rows_RC in zip(targets, rows, strict=True)])


def _of_kind(target: Target | None, kind: type[TargetT] | None, model: AnyTask) -> TargetT | None:
    if target is None or (kind is not None and isinstance(target, kind)):
        return target
    named = "None" if kind is None else f"{kind.__name__} or None"
    raise InvalidInput(f"expected the target of {model.name!r} to be {named}, got {target}.")


def _similarity(model: AnyTask, number: int, value: object, target: Target | None) -> SimilarityTarget:
    _of_kind(target, None, model)
    match model.fitted, value:
        case TrainedEmbedder() as fitted, (str(first), str(second)):
            return SimilarityTarget((first, second), fitted.settings)
    raise InvalidInput(
        f"input {number + 1}: expected a tuple of two texts, since an embedder is explained by their similarity, got "
        f"{type(value).__name__}."
    )


def _labels(
    model: AnyTask,
    outputs: LabelsOfTexts,
    value: Text,
    target: Label | None,
    scores: Scores[object] | None,
) -> LabelTarget:
    read = model.fitted.backend.reading.given(value) if isinstance(model.fitted, TrainedHead) else value
    parts = (read,) if isinstance(read, str) else read
    if isinstance(outputs.row_target, Regression):
        _of_kind(target, None, model)
        return LabelTarget(parts, None, 0, 1, exclusive=False)
    number = int(scores.logits_RC[0].argmax()) if scores is not None else -1
    if target is not None:
        name = class_label(target.name)
        if name not in outputs.labels:
            raise InvalidInput(f"expected a label among {', '.join(map(repr, outputs.labels))}, got {target.name!r}.")
        number = outputs.labels.index(name)
    exclusive = isinstance(outputs.row_target, SingleLabel)
    return LabelTarget(parts, model.labels[number], number, len(outputs.labels), exclusive=exclusive)


def _tags(outputs: TagOutputs, value: Words, target: WordTag | None, scores: Scores[object] | None) -> TagTarget:
    words, labels = value.listed(), outputs.labels
    predicted: list[int] = [] if scores is None else scores.logits_RC.argmax(1).tolist()
    if target is None:
        chosen = [number for number, tag in enumerate(predicted) if labels[tag] != OUTSIDE] or range(len(words))
        tags = tuple((number, predicted[number]) for number in chosen)
    else:
        if not 0 <= target.word < len(words):
            raise InvalidInput(f"expected the index of a word, from 0 to {len(words) - 1}, got {target.word}.")
        if target.tag is not None and target.tag not in labels:
            raise InvalidInput(f"expected a tag among {', '.join(map(repr, labels))}, got {target.tag!r}.")
        tags = ((target.word, predicted[target.word] if target.tag is None else labels.index(target.tag)),)
    return TagTarget.of(words, tags, tuple(labels[tag] for _, tag in tags))


def _choice(
    value: tuple[str, tuple[str, ...]], target: ContextChoice | None, scores: Scores[object] | None
) -> ChoiceTarget:
    context, choices = value
    index = target.index if target is not None else int(scores.logits_RC[0].argmax()) if scores is not None else 0
    if not 0 <= index < len(choices):
        raise InvalidInput(f"expected the index of a choice, from 0 to {len(choices) - 1}, got {index}.")
    return ChoiceTarget((context, *choices), index)


def _answer(
    outputs: AnswerOutputs,
    value: tuple[str, str],
    target: AnswerSpan | None,
    scores: Scores[object] | None,
) -> SpanTarget:
    question, context = value
    if target is None:
        places = None if scores is None else scores.places
        found = places.candidates if isinstance(places, FoundSpans) else ()
        if not found:
            raise InvalidInput("the model found no answer in the context: give a span with AnswerSpan.")
        target = AnswerSpan(found[0].start, found[0].end)
    if not 0 <= target.start < target.end <= len(context) or not context[target.start : target.end].strip():
        raise InvalidInput(f"expected a span within the {len(context)} characters of the context, got {target}.")
    return SpanTarget((question, context), target, outputs.no_answer)
