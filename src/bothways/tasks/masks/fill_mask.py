"""Masked language modelling: which words may stand in the place of masks, and how likely a text is."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack, overload

from bothways.data import Example, Row
from bothways.data.windows import WindowStore
from bothways.encoder import MaskedLMHead
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import Report, token_outcomes
from bothways.evaluation.report import flat_estimates
from bothways.families import HeadName
from bothways.inference.masked_lm import MaskedLMScorer
from bothways.objectives import MaskedLM, MaskedLMObjective, Masker, Masking, masked_losses
from bothways.progress import progress
from bothways.storage import new_folder
from bothways.tasks.card import LIKE_THESE, DataUsed, Worth, data_part, flattered, written_card
from bothways.tasks.columns import RawTextColumns, stored_columns, typed_texts
from bothways.tasks.fitting import FitOptions, fit_plan, undone_on_failure
from bothways.tasks.given import given_many
from bothways.tasks.masks.filled import FilledText
from bothways.tasks.masks.filling import Search, run, together
from bothways.tasks.masks.mask_filler import FillOptions, MaskFiller
from bothways.tasks.masks.masked_text import MaskReader
from bothways.tasks.masks.pseudo_likelihood import PseudoLikelihood, pseudo_likelihood
from bothways.tasks.masks.raw_texts import Texts, raw_examples
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model, stored_texts_read
from bothways.tasks.splits import hold_out
from bothways.checkpoints.stored import stored_card
from bothways.text import Overflow
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "masked_lm"

_T = TypeVar("_T")

# Texts whose searches run together.
BLOCK = 128

# What a reader of the card has to know.
LIMITS = (
    flattered("texts", "the epoch to keep"),
    LIKE_THESE,
    "How well masked tokens are predicted says little of how good a model is that is fine-tuned from this one.",
)


class FillMask:
    """Fills masks with words, scores texts, and learns the language of other texts.

    >>> model = FillMask.from_pretrained("google-bert/bert-base-uncased")  # doctest: +SKIP
    >>> model.predict("Paris is the [MASK] of France.").fillings[0].words  # doctest: +SKIP
    ('capital',)

    Attributes:
        model: The encoder and its tokenizer.
        columns: Where texts stood in training.
        card: What the model says of its making, with what `fit` measured before and after.
    """

    task: ClassVar[str] = "masked_lm"

    def __init__(self, opened: OpenedModel, head: MaskedLMHead | None = None) -> None:
        self._opened = opened
        self.model = opened.model
        self.columns = RawTextColumns()
        self.card: dict[str, Any] = {}
        self._head = head
        self._scorer: MaskedLMScorer | None = None

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **options: Unpack[OpenOptions]) -> "FillMask":
        """Open a model with its masked language modelling head, or one without that `fit` is to give one.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`. Of a text that is too long, ``on_overflow="window"`` reads what
                stands around its masks.

        Raises:
            InvalidInput: The family has no such head, or a setting is out of range.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, cls.task, **options)
        checkpoint, family = opened.checkpoint, opened.model.family
        if HEAD not in family.heads:
            raise InvalidInput(
                f"{family.title} models do not predict masked tokens: they have one of the heads "
                f"{', '.join(family.heads)}. Take a model of another family, such as BERT or RoBERTa."
            )
        named = HEAD in family.architecture_heads(checkpoint.settings)
        made = cls(opened)
        if named or HEAD in checkpoint.heads():
            made._head = made._placed(checkpoint.build_masked_lm_head())
        if opened.extras.get("task") == cls.task:
            made.card = stored_card(opened.extras)
            made.columns = stored_columns(made.card, RawTextColumns())
        return made

    @property
    def max_length(self) -> int:
        """Most tokens read at once."""
        return self._opened.reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._opened.reading.on_overflow

    @property
    def has_head(self) -> bool:
        """Whether there is a head to fill masks with; without one, `fit` draws a new one."""
        return self._head is not None

    def fit(
        self,
        train_data: Texts,
        *,
        validation: Texts | None = None,
        text: str | tuple[str, ...] = "text",
        masking: Masking | None = None,
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Go on with masked language modelling on raw texts, and keep the best epoch.

        So a model learns the language of a domain before it is fine-tuned on few labels (Gururangan et al. 2020,
        arXiv:2004.10964). A model without the head gets a new one on its own token table. How well tokens of the
        validation texts were predicted before and after, at the same places, is kept in the card.

        Args:
            train_data: A file, texts, or a list of mappings. Rows without text are passed over; a text that is too
                long is read in windows, which share no tokens here unless a stride was asked for.
            validation: Held-out texts; a tenth of the training texts, drawn with ``seed``, when left out.
            text: Column of the texts; several are joined by a space.
            masking: How much is masked; 15 % of the tokens when left out.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        plan = fit_plan(self, options)
        columns = RawTextColumns((text,) if isinstance(text, str) else text)
        examples = raw_examples(train_data, columns.inputs)
        if validation is None:
            examples, held_out = hold_out(examples, 0.1, plan.seed, lambda _: (), group=lambda each: each.text)
        else:
            held_out = raw_examples(validation, columns.inputs)
        training, held = self._stored(examples), self._stored(held_out)
        masker = Masker(self.model.tokenizer, masking or Masking(), plan.seed)
        new = self._head is None
        with undone_on_failure(self, "_head", "columns", "card") as attempt:
            self.columns, self.card = columns, {}
            if self._head is None:
                with seeded(plan.seed):
                    self._head = self._placed(self._opened.checkpoint.new_masked_lm_head())
            module, tokens = MaskedLM(self.model.encoder, self._head).eval(), plan.settings.tokens
            objective = MaskedLMObjective(module, training, held, masker, batch_size=plan.batch_size, tokens=tokens)
            before = _held_out(objective)
            record = attempt.train(plan, objective, self.model)
        if record.finished_no_epoch:
            return record
        parts = data_part(len(examples), training), data_part(len(held_out), held)
        self.card = {
            **written_card(
                self.model,
                record,
                DataUsed(columns, *parts, split=validation is None),
                Worth(_held_out(objective), LIMITS),
            ),
            "masking": asdict(masker.masking),
            "new_head": new,
            "before": flat_estimates(before.estimates),
        }
        return record

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self, texts: str, *, show_progress: bool | None = ..., **options: Unpack[FillOptions]
    ) -> FilledText: ...

    @overload
    def predict(
        self, texts: Sequence[str], *, show_progress: bool | None = ..., **options: Unpack[FillOptions]
    ) -> list[FilledText]: ...

    def predict(
        self, texts: str | Sequence[str], *, show_progress: bool | None = None, **options: Unpack[FillOptions]
    ) -> FilledText | list[FilledText]:
        """The best words for the masks of texts, in order; of a single string, of that one.

        Masks are written as the tokenizer writes them, or as ``[MASK]`` for every model. Several masks of a text are
        filled together: see `bothways.tasks.masks.filling` for the search and for what its log-probabilities mean.

        Args:
            texts: One text or many, each with one to eight masks.
            show_progress: Force the progress bar on or off.
            options: ``top``, ``words``, ``max_pieces`` and ``beam``, see
                `bothways.tasks.masks.mask_filler.FillOptions`.

        Raises:
            NotFitted: The model has no masked language modelling head.
            InvalidInput: A text has no mask or too many, a word cannot be spelt, or a number is out of range.
            TextTooLong: A text is too long and the policy is ``"error"``, or its masks are too far apart.
        """
        listed, alone = given_many(texts, "a text with masks")
        answers = list(self.predict_stream(listed, total=len(listed), show_progress=show_progress, **options))
        return answers[0] if alone else answers

    def predict_stream(
        self,
        texts: Iterable[str],
        *,
        total: int | None = None,
        show_progress: bool | None = None,
        **options: Unpack[FillOptions],
    ) -> Iterator[FilledText]:
        """`predict` for an iterable of any length, in order and in flat memory."""
        filler = MaskFiller(MaskReader(self.model.tokenizer, self.max_length, self.on_overflow), **options)
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
        listed, alone = given_many(texts)
        answers = list(
            self.likelihood_stream(listed, whole_words=whole_words, total=len(listed), show_progress=show_progress)
        )
        return answers[0] if alone else answers

    def likelihood_stream(
        self,
        texts: Iterable[str],
        *,
        whole_words: bool = False,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[PseudoLikelihood]:
        """`pseudo_log_likelihood` for an iterable of any length, in order and in flat memory."""
        tokenizer, reading = self.model.tokenizer, self._opened.reading
        searches = (
            pseudo_likelihood(text, tokenizer, reading, index=index, whole_words=whole_words)
            for index, text in enumerate(texts)
        )
        return self._run(searches, "scoring", total, show_progress)

    def evaluate(
        self,
        data: Texts,
        *,
        text: str | tuple[str, ...] | None = None,
        masking: Masking | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Loss, perplexity and accuracy at places of texts that are chosen as in training, with 95 % intervals.

        Args:
            data: A file, texts, or a list of mappings.
            text: Column of the texts, or several; those that it was trained on when left out.
            masking: How much is masked; 15 % of the tokens when left out.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the places and the bootstrap.
            show_progress: There is no bar: it is taken as by other tasks.

        Raises:
            NotFitted: The model has no masked language modelling head.
            InvalidInput: The data are not usable.
        """
        del show_progress
        columns = self.columns if text is None else RawTextColumns((text,) if isinstance(text, str) else text)
        module = MaskedLM(self.model.encoder, self._fitted()).eval()
        store = self._stored(raw_examples(data, columns.inputs))
        masker = Masker(self.model.tokenizer, masking or Masking(), seed)
        losses = masked_losses(module, store, masker, self._opened.batch_tokens)
        report = token_outcomes(losses).report(resamples=resamples, seed=seed)
        return replace(report, tokens_read=stored_texts_read(store))

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[FilledText]:
        """The five best fillings of each row's masks, in order and in flat memory; columns as in `columns`."""
        return self.predict_stream(map(self.columns.inputs.read, rows), show_progress=show_progress)

    def facts(self) -> dict[str, object]:
        """How well the validation texts of `fit` were predicted before and after it, as JSON values."""
        if not self.card.keys() >= {"new_head", "before", "metrics"}:
            return {}
        names, after = ("loss", "perplexity", "accuracy"), self.card["metrics"]
        moved = {
            when: {name: of[name] for name in names} for when, of in (("before", self.card["before"]), ("after", after))
        }
        return {"new_head": self.card["new_head"], **moved}

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write encoder and head in the ecosystem's layout, whole or not at all.

        It opens as a masked language model in transformers, and here as any encoder, to be fine-tuned for a task.

        Raises:
            NotFitted: The model has no masked language modelling head.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        with_head = replace(self.model, heads={HEAD: self._fitted()})
        with new_folder(folder, overwrite=overwrite) as new:
            with_head.write(new, {"task": self.task, **self._opened.stored_reading(), "card": self.card})

    def _run(
        self, searches: Iterator[Search[_T]], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[_T]:
        scorer = self._asked()
        with progress(description, total, show=show_progress) as bar:
            while block := list(itertools.islice(searches, BLOCK)):
                yield from run(together(block), scorer)
                bar.advance(len(block))

    def _asked(self) -> MaskedLMScorer:
        """The head with what it may answer, which is worked out from the whole vocabulary once."""
        head = self._fitted()
        if self._scorer is None or self._scorer.head is not head:
            self._scorer = MaskedLMScorer(self.model.encoder, head, self.model.tokenizer)
        return self._scorer

    def _stored(self, examples: Sequence[Example[None]]) -> WindowStore:
        # Windows that overlap would have some tokens learnt twice.
        reading = replace(self._opened.reading, stride=self._opened.reading.stride or 0)
        return replace(self._opened, reading=reading).stored([example.text for example in examples])

    def _placed(self, head: MaskedLMHead) -> MaskedLMHead:
        return head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype).eval()

    def _fitted(self) -> MaskedLMHead:
        if self._head is None:
            raise NotFitted(
                f"{self.model.name!r} holds no masked language modelling head, so it cannot say what a mask stands "
                "for. Take a checkpoint that was published with one (BERT, RoBERTa, DeBERTa, ...), or train one on "
                "your texts: FillMask.fit, or bothways adapt --model ... --data texts.txt --output ..."
            )
        return self._head


def _held_out(objective: MaskedLMObjective) -> Report:
    """How well the validation texts are predicted, at the places that are theirs for the whole training."""
    losses = masked_losses(objective.model, objective.validation, objective.masker, objective.tokens)
    return token_outcomes(losses).report(seed=objective.masker.seed)
