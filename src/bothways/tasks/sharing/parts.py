"""What a shared encoder asks of each of its tasks: the same of those that label texts and of those that tag words.

Shapes: N texts, W windows of one text, n tokens of a window, C outputs, K numbers of a head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.data import Row
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput
from bothways.evaluation import Report
from bothways.inference import TextRows
from bothways.tasks.columns import TextColumns
from bothways.tasks.fitting import FitPlan, Preparation
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.judging import layers_read
from bothways.tasks.labelling.labeller import HEAD as TEXT_HEAD
from bothways.tasks.labelling.target_settings import target_settings
from bothways.tasks.objective import WindowObjective
from bothways.tasks.predictions import Prediction, Reading
from bothways.tasks.sharing.data import TaggingData, TaskData
from bothways.tasks.tagging.predictions import ScoredWords, Tagging
from bothways.tasks.tagging.tagger import TextTagger
from bothways.tasks.tagging.word_labeller import HEAD as WORD_HEAD
from bothways.tasks.tagging.word_windows import word_scores
from bothways.text import FirstTokens, Words

Task: TypeAlias = TextClassifier | TextTagger
Answer: TypeAlias = TextRows | ScoredWords


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text, and what all heads say of it.

    Attributes:
        rows: For each window (n, K) of its tokens, or (1, K) where every head reads the whole window.
        lengths: Tokens of each window.
        dropped_tokens: Tokens of the text that are in no window.
        words: The words that were read, and the tokens that begin them, where some head tags words.
    """

    rows: tuple[NDArray[np.float32], ...]
    lengths: tuple[int, ...]
    dropped_tokens: int
    words: tuple[Words, FirstTokens] | None = None

    @property
    def reading(self) -> Reading:
        """How much of it was read."""
        return Reading(len(self.lengths), self.dropped_tokens)

    def of_head(self, columns: slice) -> "ReadText":
        """What one head says, which has these columns of the rows."""
        return ReadText(tuple(rows[:, columns] for rows in self.rows), self.lengths, self.dropped_tokens, self.words)


@dataclass(frozen=True, slots=True)
class LabelPart:
    """A task that labels texts."""

    task: TextClassifier

    head_name = TEXT_HEAD

    @property
    def head(self) -> ScoreHead:
        """Its head."""
        return self.task.labeller.module.head

    @property
    def layers_read(self) -> int:
        """Of how many layers its judgement wants the hidden states behind the scores."""
        return layers_read(self.task.trust)

    @property
    def truth_columns(self) -> tuple[str, ...]:
        """Where its labels stand."""
        return (self.task.columns.label,)

    def judge(self) -> Callable[[ReadText], Prediction]:
        """What makes a prediction of what the head says of a text."""
        judged = self.task.labeller.judge()
        return lambda text: judged(_text_rows(text))

    def report(
        self, rows: Sequence[Row], texts: Sequence[str], answers: Sequence[ReadText], *, resamples: int, seed: int
    ) -> Report:
        """Metrics, given labelled rows, the texts that were read of them, and what the head says of those.

        Raises:
            InvalidInput: A row has no label, or one that was not there in training.
        """
        labeller, label = self.task.labeller, self.task.columns.label
        read = f"text of {label}"  # any name but the label's own
        given = [replace(row, values={**row.values, read: text}) for row, text in zip(rows, texts, strict=True)]
        _, truth = labeller.labelled(given, TextColumns((read,), label))
        logits_NC = np.stack([labeller.merged(_text_rows(answer)) for answer in answers])
        return labeller.trusted.report(logits_NC, truth, resamples=resamples, seed=seed)

    def settings(self) -> Mapping[str, object]:
        """What ``config.json`` says of it."""
        return target_settings(self.task.labeller.target)

    def stored(self, folder: Path) -> Mapping[str, object]:
        """Write the arrays that belong to it, and return what ``bothways.json`` is to say."""
        return self.task.stored_head(folder)

    def tensors(self) -> dict[str, Tensor]:
        """The head's weights under the family's names."""
        return self.task.labeller.tensors()


@dataclass(frozen=True, slots=True)
class TagPart:
    """A task that tags words."""

    task: TextTagger

    head_name = WORD_HEAD
    layers_read = 0

    @property
    def head(self) -> ScoreHead:
        """Its head."""
        return self.task.labeller.module.head

    @property
    def truth_columns(self) -> tuple[str, ...]:
        """Where its tags stand."""
        return (self.task.columns.tags,)

    def judge(self) -> Callable[[ReadText], Tagging]:
        """What makes a prediction of what the head says of a text."""
        labeller = self.task.labeller
        return lambda text: next(labeller.decided([self._scored(text)]))

    def report(
        self, rows: Sequence[Row], _: Sequence[str], answers: Sequence[ReadText], *, resamples: int, seed: int
    ) -> Report:
        """Metrics, given tagged rows, and what the head says of their words.

        Raises:
            InvalidInput: A row's tags are not usable, or were not there in training.
        """
        labeller = self.task.labeller
        truth = labeller.tag_set.encode(labeller.read(rows, self.task.columns, None))
        scores_MC = np.concatenate([self._scored(answer).scores_WC for answer in answers])
        return labeller.report(scores_MC, truth, resamples=resamples, seed=seed)

    def settings(self) -> Mapping[str, object]:
        """What ``config.json`` says of it."""
        return self.task.labeller.settings

    def stored(self, _: Path) -> Mapping[str, object]:
        """What ``bothways.json`` is to say; there are no arrays."""
        return {**self.task.labeller.stored, "card": self.task.card}

    def tensors(self) -> dict[str, Tensor]:
        """The head's weights under the family's names."""
        return self.task.labeller.tensors()

    def _scored(self, text: ReadText) -> ScoredWords:
        if text.words is None:
            raise TypeError("a tagger was given a text whose words were not looked for")
        (words, tokens), unseen_C = text.words, self.task.labeller.tag_set.unseen_C
        return ScoredWords(words, word_scores(text.rows, tokens, len(words), unseen_C), text.reading)


Part: TypeAlias = LabelPart | TagPart


def part_of(task: Task) -> Part:
    """What the shared encoder asks of a task."""
    match task:
        case TextClassifier():
            return LabelPart(task)
        case TextTagger():
            return TagPart(task)


def prepared(name: str, task: Task, data: TaskData | TaggingData, plan: FitPlan) -> Preparation[WindowObjective]:
    """A task that is ready to be trained.

    Raises:
        InvalidInput: The data or a setting is not usable; the message names the task and the row.
    """
    try:
        match task, data:
            case TextClassifier(), TaskData():
                return task.prepare(data.train, data.validation, data.columns, data.target, plan)
            case TextTagger(), TaggingData():
                return task.prepare(data.train, data.validation, data.columns, data.scheme, plan)
            case _:
                raise InvalidInput(
                    f"its data must be a TaskData or a TaggingData, but they are of type {type(data).__name__}: a file "
                    "is given as TaskData(file)."
                )
    except InvalidInput as error:
        raise type(error)(f"task {name!r}: {error}") from error


def _text_rows(text: ReadText) -> TextRows:
    """A row for each window: that of its first token, where a head that reads whole windows has it."""
    return TextRows(np.stack([rows[0] for rows in text.rows]), text.lengths, text.dropped_tokens)
