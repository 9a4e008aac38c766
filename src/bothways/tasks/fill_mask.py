"""Masked language modelling: which words may stand in the place of masks, and how likely a text is."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

import torch

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint, pretrained
from bothways.encoder import MaskedLMHead
from bothways.errors import InvalidInput, NotFitted
from bothways.families import HeadName
from bothways.inference.masked_lm import MaskedLMScorer
from bothways.progress import progress
from bothways.tasks.filled import FilledText
from bothways.tasks.filling import Search, run, together
from bothways.tasks.mask_filler import MaskFiller
from bothways.tasks.masked_text import MaskReader
from bothways.tasks.pseudo_likelihood import PseudoLikelihood, pseudo_likelihood
from bothways.tasks.stored import stored_length, stored_overflow
from bothways.text import Overflow, check_overflow

TASK = "masked_lm"
HEAD: HeadName = "masked_lm"

_T = TypeVar("_T")

# Texts whose searches run together.
BLOCK = 64


class FillMask:
    """Fills masks with words, scores texts, and learns the language of other texts.

    >>> model = FillMask.from_pretrained("google-bert/bert-base-uncased")  # doctest: +SKIP
    >>> model.predict("Paris is the [MASK] of France.").fillings[0].words  # doctest: +SKIP
    ('capital',)
    """

    def __init__(
        self, checkpoint: Checkpoint, model: PretrainedEncoder, max_length: int, on_overflow: Overflow
    ) -> None:
        self._checkpoint = checkpoint
        self.model = model
        self.max_length = max_length
        self.on_overflow: Overflow = on_overflow

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "FillMask":
        """Open a model with its masked language modelling head, or one without that is to be given one by `fit`.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            max_length: Most tokens read at once; as many as the model can, when left out.
            on_overflow: Of a longer text, what stands around its masks is read (``"window"``, the default), or it is
                refused, or cut.
            revision: The commit that a hub name is pinned to.
            device: ``"auto"`` takes a GPU where there is one.
            dtype: Precision of the weights.
            download: Whether the hub may be asked for it.
            allow_pickle: Whether a ``.bin`` file may be read, after a scan.

        Raises:
            InvalidInput: The family has no such head, or a setting is out of range.
            CorruptCheckpoint: A file is damaged.
        """
        checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
        family = checkpoint.family
        if HEAD not in family.heads:
            raise InvalidInput(
                f"{family.title} models do not predict masked tokens: they have one of the heads "
                f"{', '.join(family.heads)}. Take a model of another family, such as BERT or RoBERTa."
            )
        named = HEAD in family.architecture_heads(checkpoint.settings)
        heads = (HEAD,) if named or HEAD in checkpoint.heads() else ()
        model = pretrained(checkpoint, heads=heads, device=device, dtype=dtype)
        limit = model.config.max_length or 512
        if max_length is not None and not 1 <= max_length <= limit:
            raise InvalidInput(f"max_length must lie between 1 and the model's {limit}, but it is {max_length}.")
        length = max_length or stored_length(checkpoint.extras, limit) or limit
        overflow = check_overflow(on_overflow or stored_overflow(checkpoint.extras) or "window")
        return cls(checkpoint, model, length, overflow)

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        top: int = ...,
        words: Sequence[str] | None = ...,
        max_pieces: int = ...,
        beam: int = ...,
        show_progress: bool | None = ...,
    ) -> FilledText: ...

    @overload
    def predict(
        self,
        texts: Sequence[str],
        *,
        top: int = ...,
        words: Sequence[str] | None = ...,
        max_pieces: int = ...,
        beam: int = ...,
        show_progress: bool | None = ...,
    ) -> list[FilledText]: ...

    def predict(
        self,
        texts: str | Sequence[str],
        *,
        top: int = 5,
        words: Sequence[str] | None = None,
        max_pieces: int = 1,
        beam: int = 16,
        show_progress: bool | None = None,
    ) -> FilledText | list[FilledText]:
        """The best words for the masks of texts, in order; of a single string, of that one.

        Masks are written as the tokenizer writes them, or as ``[MASK]`` for every model. Several masks of a text are
        filled together: see `bothways.tasks.filling` for the search and for what its log-probabilities mean.

        Args:
            texts: One text or many, each with one to eight masks.
            top: How many words and fillings to give, at most.
            words: Only these may fill a mask; they may have several pieces.
            max_pieces: Otherwise, most pieces of a word. With 1 every token may fill a mask; with more, only what
                begins a word may follow white space, and only what goes on with a word may follow that.
            beam: Partial fillings that are kept.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: The model has no masked language modelling head.
            InvalidInput: A text has no mask or too many, a word cannot be spelt, or a number is out of range.
            TextTooLong: A text is too long and the policy is ``"error"``, or its masks are too far apart.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        stream = self.predict_stream(
            listed,
            top=top,
            words=words,
            max_pieces=max_pieces,
            beam=beam,
            total=len(listed),
            show_progress=show_progress,
        )
        answers = list(stream)
        return answers[0] if isinstance(texts, str) else answers

    def predict_stream(
        self,
        texts: Iterable[str],
        *,
        top: int = 5,
        words: Sequence[str] | None = None,
        max_pieces: int = 1,
        beam: int = 16,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[FilledText]:
        """`predict` for an iterable of any length, in order and in flat memory."""
        reader = MaskReader(self.model.tokenizer, self.max_length, self.on_overflow)
        filler = MaskFiller(reader, words, max_pieces, top, beam)
        searches = (filler.search(text, index) for index, text in enumerate(texts))
        return self._run(searches, "filling masks", total, show_progress)

    @overload
    def pseudo_log_likelihood(  # type: ignore[overload-overlap]
        self, texts: str, *, whole_words: bool = ..., show_progress: bool | None = ...
    ) -> PseudoLikelihood: ...

    @overload
    def pseudo_log_likelihood(
        self, texts: Sequence[str], *, whole_words: bool = ..., show_progress: bool | None = ...
    ) -> list[PseudoLikelihood]: ...

    def pseudo_log_likelihood(
        self, texts: str | Sequence[str], *, whole_words: bool = False, show_progress: bool | None = None
    ) -> PseudoLikelihood | list[PseudoLikelihood]:
        """How likely the model finds texts: each token is masked in turn and asked for (Salazar et al. 2020).

        Args:
            texts: One text or many.
            whole_words: With each piece also mask those behind it in the same word (Kauf & Ivanova 2023).
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: The model has no masked language modelling head.
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        answers = list(
            self.likelihood_stream(listed, whole_words=whole_words, total=len(listed), show_progress=show_progress)
        )
        return answers[0] if isinstance(texts, str) else answers

    def likelihood_stream(
        self,
        texts: Iterable[str],
        *,
        whole_words: bool = False,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[PseudoLikelihood]:
        """`pseudo_log_likelihood` for an iterable of any length, in order and in flat memory."""
        searches = (self._likelihood(text, index, whole_words=whole_words) for index, text in enumerate(texts))
        return self._run(searches, "scoring", total, show_progress)

    def _likelihood(self, text: str, index: int, *, whole_words: bool) -> Search[PseudoLikelihood]:
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"text {index} is empty or no string: drop it or fill it in.")
        (encoded,) = self.model.tokenizer.encode(
            [text], max_length=self.max_length, on_overflow=self.on_overflow, offsets=True, first=index
        )
        return pseudo_likelihood(text, encoded, self.model.tokenizer, whole_words=whole_words)

    def _run(
        self, searches: Iterator[Search[_T]], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[_T]:
        scorer = MaskedLMScorer(self.model.encoder, self._head(), self.model.tokenizer)
        with progress(description, total, show=show_progress) as bar:
            while block := list(itertools.islice(searches, BLOCK)):
                yield from run(together(block), scorer)
                bar.advance(len(block))

    def _head(self) -> MaskedLMHead:
        head = self.model.heads.get(HEAD)
        if not isinstance(head, MaskedLMHead):
            raise NotFitted(
                f"{self._checkpoint.name!r} holds no masked language modelling head, so it cannot say what a mask stands "
                "for. Take a checkpoint that was published with one (BERT, RoBERTa, DeBERTa, ...), or train one "
                "on your texts: FillMask.fit, or bothways adapt --model ... --data texts.txt --output ..."
            )
        return head
