"""Masked language modelling: filling masks, and the pseudo-likelihood of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

from typing_extensions import override

from bothways.checkpoints.schema import Stored
from bothways.data import Example, Row
from bothways.data.known_rows import TrainingRows
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.backend import Backend
from bothways.tasks.columns import TextColumns, batch_of, stored_columns
from bothways.tasks.masked_lm.masked_text import with_mask
from bothways.tasks.masked_lm.outputs import HEAD, ExportedMaskedLM, FilledText, FittedMaskedLM
from bothways.tasks.masked_lm.pseudo_likelihood import PseudoLikelihood, pseudo_likelihood
from bothways.tasks.masked_lm.spec import MASKED_LM, MaskedTextColumns, MaskingOptions
from bothways.tasks.onnx_backend import OnnxBackend
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import AnsweringTask
from bothways.tasks.scores import ScoredRows
from bothways.tasks.spec import TaskSpec, options_of
from bothways.tasks.task import Task


class FillMask(Task[str, FilledText, FittedMaskedLM]):
    """A masked language model: fills masks with words, scores texts, and continues pre-training on raw texts.

    Write masks as ``[MASK]``, which works for every model, or as the tokenizer's own mask token. A text has one to
    eight masks, which are filled together (`bothways.tasks.masked_lm.search` explains the search and its
    log-probabilities). For long texts, ``on_overflow="window"`` reads the part around the masks.

    `fit` continues masked language modelling on raw texts, to adapt a model to a domain before it is fine-tuned on few
    labels (Gururangan et al. 2020, arXiv:2004.10964). A model without a masked language modelling head gets a new head
    that shares its token embeddings. Long texts are split into windows, which do not overlap unless a stride was given.
    The card has the metrics on validation texts before and after the training, with the same tokens masked.

    >>> model = FillMask.from_pretrained("google-bert/bert-base-uncased")  # doctest: +SKIP
    >>> model.predict("Paris is the [MASK] of France.").fillings[0].words  # doctest: +SKIP
    ('capital',)
    """

    spec = MASKED_LM

    def _not_fitted(self) -> NotFitted:
        return NotFitted(
            f"{self.name!r} has no masked language modelling head, so it cannot fill masks. Use a checkpoint with "
            "such a head (BERT, RoBERTa, DeBERTa, ...), or train one on your texts: FillMask.fit, or bothways adapt "
            "--model ... --data texts.txt --output ..."
        )

    def _answering(self) -> AnsweringTask:
        return AnsweringMaskedLM(self.spec.name, self.fitted)

    @property
    def has_head(self) -> bool:
        """True if the model has a masked language modelling head; without one, `fit` initialises a new head."""
        return self._fitted is not None

    def _scored(
        self, rows: Sequence[Example[None]], options: object, seed: int, show_progress: bool | None
    ) -> ScoredRows:
        """Return the losses of raw texts at randomly masked positions, as in training."""
        from bothways.objectives.masking import Masker, Masking

        del show_progress
        masker = Masker(self.backend.tokenizer, options_of(MaskingOptions, options).masking or Masking(), seed)
        return self.fitted.losses(rows, masker)

    @overload
    def pseudo_log_likelihood(
        self, texts: str, *, whole_words: bool = ..., show_progress: bool | None = ...
    ) -> PseudoLikelihood: ...

    @overload
    def pseudo_log_likelihood(
        self, texts: Iterable[Any], *, whole_words: bool = ..., show_progress: bool | None = ...
    ) -> list[PseudoLikelihood]: ...

    def pseudo_log_likelihood(
        self, texts: str | Iterable[Any], *, whole_words: bool = False, show_progress: bool | None = None
    ) -> PseudoLikelihood | list[PseudoLikelihood]:
        """Return the pseudo-log-likelihood of texts: mask and predict each token in turn (Salazar et al. 2020).

        Args:
            texts: One text or many.
            whole_words: Also mask the later tokens of each token's word (Kauf & Ivanova 2023).
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: The model has no masked language modelling head.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and ``on_overflow`` is ``"error"``.
        """
        listed, alone = batch_of(TextColumns(), texts)
        stream = self.likelihood_stream(listed, whole_words=whole_words, total=len(listed), show_progress=show_progress)
        answers = list(stream)
        return answers[0] if alone else answers

    def likelihood_stream(
        self,
        texts: Iterable[str],
        *,
        whole_words: bool = False,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[PseudoLikelihood]:
        """Yield the `pseudo_log_likelihood` of each text of an iterable, in order and in constant memory."""
        fitted, tokenizer = self.fitted, self.backend.tokenizer
        searches = (
            pseudo_likelihood(text, tokenizer, fitted.backend.reading, index=index, whole_words=whole_words)
            for index, text in enumerate(texts)
        )
        return fitted.run(searches, "scoring", total=total, show_progress=show_progress)


class AnsweringMaskedLM(AnsweringTask):
    """A masked language model as its golden answers see it."""

    __slots__ = ()

    @override
    def read(self, rows: Iterable[Row]) -> list[object]:
        """Return the texts in rows, with a mask in each."""
        return [with_mask(str(text)) for text in AnsweringTask.read(self, rows)]


def open_masked_lm(spec: TaskSpec, backend: Backend) -> FittedMaskedLM | None:
    """Return a checkpoint's masked language model; None if it has no head; refuse families without such heads."""
    family = backend.files.family
    if HEAD not in family.heads:
        raise InvalidInput(
            f"{family.title} models do not predict masked tokens; the heads of this family are "
            f"{', '.join(family.heads)}. Use a model of another family, such as BERT or RoBERTa."
        )
    card = Stored.of(backend.files.extras).card if backend.trained_for == spec.name else {}
    columns = stored_columns(card, MaskedTextColumns())
    match backend:
        case OnnxBackend():
            if backend.files.rows.head != HEAD:
                raise backend.not_fitted(spec.name, "masked language modelling head")
            return ExportedMaskedLM.of(backend, columns, card)
    from bothways.tasks.masked_lm.trained import TrainedMaskedLM

    model = with_weights(backend, "use")
    if HEAD not in family.architecture_heads(backend.files.settings) and HEAD not in model.files.heads():
        return None
    made = TrainedMaskedLM.of(model, model.files.build_masked_lm_head(), columns, card)
    return replace(made, known=TrainingRows(backend.files.folder)) if backend.trained_for == spec.name else made
