"""Tagging: one tag for each word, and the spans that the tags say, such as names.

Shapes: W words of one text, M words of several texts, C tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from bothways.data import Row, Source, given_words
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput
from bothways.evaluation import Outcomes, Report, Temperature
from bothways.evaluation.tag_schemes import Scheme, check_scheme, scheme_of_names
from bothways.storage import new_folder
from bothways.tasks.card import LIKE_THESE, NOTICES_NOTHING, Worth, flattered, written_card
from bothways.tasks.columns import TagColumns, stored_columns, typed_texts, with_names
from bothways.tasks.fitting import FitOptions, FitPlan, Preparation, fit_plan, undone_on_failure
from bothways.tasks.given import given_many
from bothways.tasks.labelling.target_settings import stored_names
from bothways.tasks.objective import WindowObjective
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.saving import write_task
from bothways.tasks.stored import Extras, stored_card, stored_choice, stored_temperature
from bothways.tasks.tagging.predictions import Tagging
from bothways.tasks.tagging.reading import words_of
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.training import read_tagged_data, tag_objective
from bothways.tasks.tagging.word_labeller import HEAD, WordLabeller, word_outcomes
from bothways.text import Overflow, Words
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

# A raw text, or its words.
Given: TypeAlias = str | Sequence[str]

# What a reader of the card has to know.
LIMITS = (flattered("texts", "the epoch to keep and the calibration"), LIKE_THESE, NOTICES_NOTHING)


class TextTagger:
    """Fine-tunes an encoder to tag words, and tags them: names, parts of speech and the like.

    The model is given words with single spaces between them, and the first token of a word stands for it. A long text
    is read in windows; see `word_windows.word_scores` for how they become one. Spans never come out broken, see
    `tag_set.TagSet.decode`. A word that the tokenizer drops (control characters) or that was cut off gets the tag that
    its neighbours leave open, with the probability of a guess.

    >>> tagger = TextTagger.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> tagger.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> tagger.predict("Angela Merkel was born in Hamburg.").spans[1].text  # doctest: +SKIP
    'Hamburg'

    Attributes:
        model: The encoder and its tokenizer.
        columns: Where words and tags stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str] = "tagging"

    def __init__(self, opened: OpenedModel) -> None:
        self._opened = opened
        self.model = opened.model
        self.card: dict[str, Any] = {}
        self.columns = TagColumns()
        self._labeller: WordLabeller | None = None

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        labels: Sequence[str] | None = None,
        scheme: Scheme | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            labels: Names of a trained head's outputs, for checkpoints that do not carry them.
            scheme: How they say spans, for checkpoints of others whose labels leave that open (``"IOB1"``).
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: A setting is out of range, or a trained head's labels are not known.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, cls.task, **options)
        extras, checkpoint = opened.extras, opened.checkpoint
        ours = opened.trained_for == cls.task
        made = cls(opened)
        usable = HEAD in checkpoint.heads() and (ours or opened.trained_for is None)
        classes = checkpoint.score_count(HEAD) if usable else None
        if classes is None:
            if labels is not None or scheme is not None:
                raise InvalidInput("labels and scheme are those of a trained head, but this checkpoint has none: fit.")
            return made
        names = tuple(labels) if labels is not None else stored_names(checkpoint.settings, named=ours)
        if len(names) != classes or len(set(names)) != classes:
            raise InvalidInput(f"the trained head has {classes} outputs, so it needs as many labels, not {names}.")
        chosen = check_scheme(scheme) if scheme else stored_choice(extras, "scheme", check_scheme) if ours else None
        tag_set = TagSet(names, chosen or scheme_of_names(names))
        made.take_head(tag_set, checkpoint.build_score_head(HEAD), extras if ours else {})
        return made

    def take_head(self, tag_set: TagSet, head: ScoreHead, stored: Extras) -> None:
        """Answer with a trained head.

        Args:
            tag_set: What it predicts.
            head: The head.
            stored: What was saved with it: its calibration, and its card.

        Raises:
            CorruptCheckpoint: What was saved with it is damaged.
        """
        self._labeller = WordLabeller.of(self._opened, tag_set, head)
        self._labeller.temperature = stored_temperature(stored)
        self.card = stored_card(stored)
        self.columns = stored_columns(self.card, TagColumns())

    @property
    def labeller(self) -> WordLabeller:
        """The trained head, and everything that was learnt about its answers.

        Raises:
            NotFitted: There is no trained head yet.
        """
        if self._labeller is None:
            raise self._opened.not_fitted(self.task, "head for words")
        return self._labeller

    @property
    def tag_set(self) -> TagSet | None:
        """The tags and their scheme; None before there is a trained head."""
        return None if self._labeller is None else self._labeller.tag_set

    @property
    def temperature(self) -> Temperature | None:
        """What calibrates the probabilities of words' tags; None without."""
        return None if self._labeller is None else self._labeller.temperature

    @property
    def max_length(self) -> int:
        """Most tokens read at once."""
        return self._opened.reading.max_length

    @property
    def on_overflow(self) -> Overflow:
        """What becomes of longer texts."""
        return self._opened.reading.on_overflow

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        tokens: str = "tokens",
        tags: str = "tags",
        scheme: Scheme | None = None,
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on tagged words, keep a good epoch, and calibrate on the validation data.

        Kept is the latest epoch whose validation score is within a standard error of the best.

        Args:
            train_data: A file, or a list of mappings.
            validation: Held-out data; a tenth of the training data, drawn with ``seed``, when left out.
            tokens: Column of the words: lists, or strings with white space between the words.
            tags: Column of their tags, in the same form.
            scheme: How tags say spans: ``"BIO"``, ``"IOB1"`` (which the model learns as BIO), ``"BIOES"``, ``"BILOU"``
                or ``"plain"``, where they say none; by default what the tags look like.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        columns, plan = TagColumns(tokens, tags, self.columns.text), fit_plan(self, options)
        with undone_on_failure(self, "_labeller", "columns", "card") as attempt:
            ready = self.prepare(train_data, validation, columns, scheme, plan)
            record = attempt.train(plan, ready.objective, self.model)
        if record.came_to_nothing:
            return record
        ready.finish(record)
        return record

    def prepare(
        self,
        train_data: Source,
        validation: Source | None,
        columns: TagColumns,
        scheme: Scheme | None,
        plan: FitPlan,
    ) -> Preparation[WindowObjective]:
        """Read the data and begin a head, or go on with the one there is where the tags are the same.

        An earlier temperature, and its card, do not hold for the weights to come; ``finish`` makes new ones.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        calibrated = plan.settings.wants_temperature()
        before = None if self._labeller is None else self._labeller.tag_set
        data = read_tagged_data(self._opened, train_data, validation, columns, scheme, plan.seed, before)
        labeller = self._started(data.tag_set, plan.seed)
        self.columns, self.card = columns, {}

        def finish(record: TrainingRecord) -> None:
            scores_MC = labeller.learn(data.held, calibrated=calibrated)
            metrics = labeller.report(scores_MC, data.held.truth, seed=plan.seed)
            self.card = written_card(self.model, record, data.used, Worth(metrics, LIMITS))

        return Preparation(tag_objective(labeller.module, data.tag_set, data.training, data.held, plan), finish)

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def predict(  # type: ignore[overload-overlap]
        self, texts: str, *, calibrated: bool | None = ..., show_progress: bool | None = ...
    ) -> Tagging: ...

    @overload
    def predict(
        self, texts: Sequence[Given], *, calibrated: bool | None = ..., show_progress: bool | None = ...
    ) -> list[Tagging]: ...

    def predict(
        self, texts: str | Sequence[Given], *, calibrated: bool | None = None, show_progress: bool | None = None
    ) -> Tagging | list[Tagging]:
        """Tags and spans of texts, in order; one answer for a single string.

        Args:
            texts: One raw text, or many texts, each of them raw or a list of its words: ``[["EU", "rejects"]]`` is one
                text of two words. How words are found in a raw text: `bothways.text.words.word_spans`.
            calibrated: True insists on calibrated probabilities, False wants those of the head as it is; when left
                out they are calibrated where the model is.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: Calibrated probabilities were insisted on and the model has no calibration.
            InvalidInput: A text is empty or neither a string nor words.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        words, alone = self.given(texts)
        answers = list(
            self._predicted(iter(words), calibrated=calibrated, total=len(words), show_progress=show_progress)
        )
        return answers[0] if alone else answers

    def given(self, texts: str | Sequence[Given]) -> tuple[list[Words], bool]:
        """The words of the texts that `predict` was given, and whether it was one alone.

        Raises:
            InvalidInput: It is neither a string nor many texts, or one of them has no words.
        """
        listed, alone = given_many(texts)
        return [words_of(number, text) for number, text in enumerate(listed)], alone

    def predict_stream(
        self,
        texts: Iterable[Given],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Tagging]:
        """Tags and spans for an iterable of any length, in order and in flat memory."""
        words = (words_of(number, text) for number, text in enumerate(texts))
        return self._predicted(words, calibrated=calibrated, total=total, show_progress=show_progress)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Tagging]:
        """As `predict_stream`, of rows with words or with a raw text; columns as in `columns`."""
        words = (given_words(row, self.columns.tokens, self.columns.text) for row in rows)
        return self._predicted(words, show_progress=show_progress)

    def evaluate(
        self,
        data: Source,
        *,
        tokens: str | None = None,
        tags: str | None = None,
        scheme: Scheme | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Metrics on tagged words, with 95 % bootstrap intervals over texts.

        Args:
            data: A file, or a list of mappings.
            tokens: Column of the words; the one that it was trained on when left out, as for the others.
            tags: Column of the tags.
            scheme: That of the data's tags; by default what they look like. It need not be the model's.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable, or hold a tag that was not there in training.
        """
        labeller = self.labeller
        rows = labeller.read(data, with_names(self.columns, tokens=tokens, tags=tags), scheme)
        truth = labeller.tag_set.encode(rows)
        scores_MC, read = labeller.answers(rows, show_progress)
        return replace(labeller.report(scores_MC, truth, resamples=resamples, seed=seed), tokens_read=read)

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the spans, or tags, of labelled rows that are right and wrong, to compare with another model's."""
        labeller = self.labeller
        rows = labeller.read(data, self.columns, None)
        scores_MC, read = labeller.answers(rows, show_progress)
        truth = labeller.tag_set.encode(rows)
        outcomes = word_outcomes(labeller.tag_set, scores_MC, truth, labeller.temperature)
        return replace(outcomes, tokens_read=read)

    def scores(
        self,
        data: Source,
        *,
        tokens: str | None = None,
        tags: str | None = None,
        scheme: Scheme | None = None,
        show_progress: bool | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Uncalibrated scores (M, C) of the words of all texts, end to end, and the numbers of their true tags."""
        labeller = self.labeller
        rows = labeller.read(data, with_names(self.columns, tokens=tokens, tags=tags), scheme)
        return labeller.answers(rows, show_progress)[0], np.concatenate(labeller.tag_set.encode(rows))

    def facts(self) -> dict[str, object]:
        """Labels, scheme and calibration, as JSON values."""
        return {"labels": list(self.labeller.tag_set.labels), **self.labeller.stored}

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each raw text, as it would stand in a file."""
        return typed_texts(self.columns.text, texts)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        labeller = self.labeller
        extras = {"task": self.task, **labeller.stored, "card": self.card}
        with new_folder(folder, overwrite=overwrite) as new:
            write_task(new, self._opened, labeller.module, HEAD, settings=labeller.settings, extras=extras)

    def _predicted(
        self,
        words: Iterable[Words],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Tagging]:
        labeller = self.labeller
        return labeller.decided(labeller.scored(words, "tagging", total, show_progress), calibrated=calibrated)

    def _started(self, tag_set: TagSet, seed: int) -> WordLabeller:
        """The trained head where the tags are the same, to go on with it; else a new one. Neither is calibrated."""
        before = self._labeller
        if before is not None and before.tag_set == tag_set:
            head = before.module.head
        else:
            with seeded(seed):
                head = self._opened.checkpoint.new_score_head(HEAD, len(tag_set.labels))
        self._labeller = WordLabeller.of(self._opened, tag_set, head)
        return self._labeller
