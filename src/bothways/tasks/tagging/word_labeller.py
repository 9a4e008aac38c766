"""A trained head that tags words, and how its scores become tags, spans and metrics.

Shapes: M words of several texts, C tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints.labels import label_settings
from bothways.checkpoints.save import head_tensors
from bothways.data import Source, TaggedRow
from bothways.encoder import ScoreHead
from bothways.evaluation import (
    Outcomes,
    Report,
    TaggedWords,
    Temperature,
    TextsRead,
    fit_temperature,
    span_outcomes,
    tag_outcomes,
)
from bothways.evaluation.tag_schemes import Scheme
from bothways.families import HeadName
from bothways.tasks.calibrated import wants_calibration
from bothways.tasks.columns import TagColumns
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel
from bothways.tasks.predictions import texts_read
from bothways.tasks.tagging.predictions import ScoredWords, Tagging
from bothways.tasks.tagging.reading import decided, scored_words
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.training import TaggedTexts, read_in
from bothways.text import Words

HEAD: HeadName = "token"


@dataclass(slots=True)
class WordLabeller:
    """A head above an encoder, and how its scores become tags.

    Attributes:
        opened: The encoder, and how it reads texts.
        module: Encoder and head.
        tag_set: The tags and their scheme.
        temperature: What calibrates the probabilities of words' tags; None without.
    """

    opened: OpenedModel
    module: HeadModel
    tag_set: TagSet
    temperature: Temperature | None = None

    @classmethod
    def of(cls, opened: OpenedModel, tag_set: TagSet, head: ScoreHead) -> "WordLabeller":
        """A head that nothing is known of yet."""
        model = opened.model
        head = head.to(model.device, model.encoder.embedding.tokens.weight.dtype)
        return cls(opened, HeadModel(model.encoder, head).eval(), tag_set)

    @property
    def settings(self) -> dict[str, object]:
        """What ``config.json`` says of the tags."""
        return label_settings(self.tag_set.labels)

    @property
    def stored(self) -> dict[str, object]:
        """What ``bothways.json`` says."""
        temperature = None if self.temperature is None else asdict(self.temperature)
        return {"scheme": self.tag_set.scheme, "temperature": temperature}

    def tensors(self) -> dict[str, Tensor]:
        """The head's weights under the family's names."""
        model = self.opened.model
        return head_tensors(model.family.head(HEAD, model.settings).rows, model.config, self.module.head)

    def decided(self, scored: Iterable[ScoredWords], *, calibrated: bool | None = None) -> Iterator[Tagging]:
        """The best tags of texts, with the spans that they say.

        Raises:
            NotCalibrated: Calibrated probabilities are insisted on, and there is no calibration.
        """
        wanted = wants_calibration(self.temperature is not None, calibrated, self.opened.model.name)
        return decided(iter(scored), self.tag_set, self.temperature if wanted else None)

    def scored(
        self, words: Iterable[Words], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[ScoredWords]:
        """Texts with the scores of their words, in order and in flat memory."""
        return scored_words(
            self.opened.engine(self.module),
            words,
            self.tag_set.unseen_C,
            total=total,
            description=description,
            show_progress=show_progress,
        )

    def answers(self, rows: Sequence[TaggedRow], show_progress: bool | None) -> tuple[NDArray[np.float64], TextsRead]:
        """Uncalibrated scores of the words of all rows, end to end (M, C), and how much of them was read."""
        scored = list(self.scored((row.words for row in rows), "evaluating", len(rows), show_progress))
        return np.concatenate([each.scores_WC for each in scored]), texts_read([each.reading for each in scored])

    def read(self, data: Source, columns: TagColumns, scheme: Scheme | None) -> list[TaggedRow]:
        """Rows with tags in the model's scheme.

        Raises:
            InvalidInput: The data are not usable.
        """
        return read_in(data, columns, scheme, self.tag_set.scheme)

    def report(
        self, scores_MC: NDArray[np.float64], truth: Sequence[NDArray[np.int64]], *, resamples: int = 1000, seed: int
    ) -> Report:
        """Metrics of words' scores, given for each text the numbers of its words' tags."""
        outcomes = word_outcomes(self.tag_set, scores_MC, truth, self.temperature)
        return outcomes.report(resamples=resamples, seed=seed)

    def learn(self, held: TaggedTexts, *, calibrated: bool) -> NDArray[np.float64]:
        """Learn from held-out texts how far to trust the head, if wanted; the scores of their words (M, C)."""
        scores_MC = held.scores(self.module, self.tag_set, self.opened.batch_tokens)
        self.temperature = Temperature(fit_temperature(scores_MC, held.truth_M)) if calibrated else None
        return scores_MC


def word_outcomes(
    tag_set: TagSet,
    scores_MC: NDArray[np.float64],
    truth: Sequence[NDArray[np.int64]],
    temperature: Temperature | None,
) -> Outcomes:
    """Return what reports and comparisons of tags are computed from: the best tags that make no broken span.

    Args:
        tag_set: The tags.
        scores_MC: Logits, or logarithms of probabilities, of the words of all texts, end to end.
        truth: For each text the numbers of its words' tags.
        temperature: What calibrates the probabilities.
    """
    lengths = [len(each) for each in truth]
    predicted_M, probability_M = tag_set.best(scores_MC, lengths, temperature)
    text_M = np.repeat(np.arange(len(lengths)), lengths)
    words = TaggedWords(np.concatenate(truth), predicted_M, probability_M, text_M)
    if tag_set.scheme == "plain":
        return tag_outcomes(words, tag_set.labels)
    there, predicted = (tag_set.spans_of_texts(each_M, lengths) for each_M in (words.truth_W, predicted_M))
    return span_outcomes(there, predicted, words, tag_set.span_labels, tag_set.scheme)
