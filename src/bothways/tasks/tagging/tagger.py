"""Tagging: one tag for each word, and the spans that the tags say, such as names.

Shapes: W words of one text, M words of several texts, C tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.labels import label_settings
from bothways.data import Row, Source, TaggedRow, given_words, read_tagged
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import SpanReport, TagReport, Temperature, fit_temperature, span_report, tag_report
from bothways.evaluation.tag_schemes import Scheme, check_scheme, scheme_of_names
from bothways.evaluation.tagging import TaggedWords
from bothways.families import HeadName
from bothways.storage import new_folder
from bothways.tasks.calibrated import wants_calibration
from bothways.tasks.card import DataUsed, measured, written_card
from bothways.tasks.columns import TagColumns, stored_columns, with_names
from bothways.tasks.fitting import FitOptions, FitPlan, undone_on_failure
from bothways.tasks.labelling.target_settings import stored_names
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.saving import write_task
from bothways.tasks.splits import hold_out
from bothways.tasks.stored import stored_card, stored_choice, stored_temperature
from bothways.tasks.tagging.predictions import ScoredWords, Tagging
from bothways.tasks.tagging.reading import decided, scored_words, words_of
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.tagging.training import TaggedTexts, tag_objective
from bothways.text import Overflow, Words
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "token"

# A raw text, or its words.
Given: TypeAlias = str | Sequence[str]


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
        tag_set: The tags and their scheme; None before there is a trained head.
        temperature: What calibrates the probabilities of words' tags; None without.
        columns: Where words and tags stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str] = "tagging"

    def __init__(self, opened: OpenedModel) -> None:
        self._opened = opened
        self.model = opened.model
        self.tag_set: TagSet | None = None
        self.temperature: Temperature | None = None
        self.card: dict[str, Any] = {}
        self.columns = TagColumns()
        self._module: HeadModel | None = None

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
        opened = open_model(name_or_path, **options)
        extras, checkpoint = opened.extras, opened.checkpoint
        ours = extras.get("task") == cls.task
        made = cls(opened)
        classes = checkpoint.score_count(HEAD) if HEAD in checkpoint.heads() else None
        if classes is None:
            if labels is not None or scheme is not None:
                raise InvalidInput("labels and scheme are those of a trained head, but this checkpoint has none: fit.")
            return made
        names = tuple(labels) if labels is not None else stored_names(checkpoint.settings, named=ours)
        if len(names) != classes or len(set(names)) != classes:
            raise InvalidInput(f"the trained head has {classes} outputs, so it needs as many labels, not {names}.")
        chosen = check_scheme(scheme) if scheme else stored_choice(extras, "scheme", check_scheme) if ours else None
        made._open_head(TagSet(names, chosen or scheme_of_names(names)), checkpoint.build_score_head(HEAD))
        made.temperature = stored_temperature(extras)
        made.card = stored_card(extras)
        made.columns = stored_columns(made.card, TagColumns()) if ours else TagColumns()
        return made

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
        """Fine-tune on tagged words, keep the best epoch, and calibrate on the validation data.

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
        columns, plan = TagColumns(tokens, tags, self.columns.text), FitPlan(**options)
        if plan.settings.calibration not in ("auto", "temperature", None):
            raise InvalidInput(
                f"tags of words are calibrated with a temperature or not at all, not by {plan.settings.calibration!r}."
            )
        rows = list(read_tagged(train_data, tokens, tags))
        found = data_scheme(rows, check_scheme(scheme) if scheme else None)
        wanted: Scheme = "BIO" if found == "IOB1" else found
        rows = tagged_in(rows, found, wanted)
        if validation is None:
            rows, held_rows = hold_out(rows, 0.1, plan.seed, lambda tags: tuple(set(tags)))
        else:
            held_rows = self._read(validation, columns, scheme, wanted)
        tag_set = TagSet.of_rows(rows, wanted)
        training, held = (TaggedTexts.of(self._opened, tag_set, each) for each in (rows, held_rows))
        if training.windows.unread:
            rows = [row for number, row in enumerate(rows) if number not in training.windows.unread]
            training = TaggedTexts.of(self._opened, tag_set, rows)
        calibrated = plan.settings.wants_temperature()
        with undone_on_failure(self, "_module", "tag_set", "temperature"):
            self._start(tag_set, plan.seed)
            self.temperature = None
            record = plan.train(tag_objective(self._fitted(), tag_set, training, held, plan), self.model)
        scores_MC = held.scores(self._fitted(), tag_set, self._opened.batch_tokens)
        if calibrated:
            self.temperature = Temperature(fit_temperature(scores_MC, held.truth_M))
        self.columns = columns
        used = DataUsed(columns, len(rows), len(held_rows), split=validation is None)
        metrics = self._report(scores_MC, held.truth, resamples=1000, seed=plan.seed)
        self.card = {**written_card(self.model, record, used), "metrics": measured(metrics)}
        return record

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
        listed: Sequence[Given] = [texts] if isinstance(texts, str) else list(texts)
        stream = self.predict_stream(listed, calibrated=calibrated, total=len(listed), show_progress=show_progress)
        answers = list(stream)
        return answers[0] if isinstance(texts, str) else answers

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
    ) -> SpanReport | TagReport:
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
        tag_set = self._known()
        rows = self._read(data, with_names(self.columns, tokens=tokens, tags=tags), scheme, tag_set.scheme)
        truth = tag_set.encode(rows)
        return self._report(self._scores(rows, show_progress), truth, resamples=resamples, seed=seed)

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
        tag_set = self._known()
        rows = self._read(data, with_names(self.columns, tokens=tokens, tags=tags), scheme, tag_set.scheme)
        return self._scores(rows, show_progress), np.concatenate(tag_set.encode(rows))

    def facts(self) -> dict[str, object]:
        """Labels, scheme and calibration, as JSON values."""
        tag_set = self._known()
        return {
            "labels": list(tag_set.labels),
            "scheme": tag_set.scheme,
            "temperature": None if self.temperature is None else asdict(self.temperature),
        }

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """A row for each raw text, as it would stand in a file."""
        first, *others = self.columns.text
        return [{first: text, **dict.fromkeys(others, "")} for text in texts]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        tag_set = self._known()
        extras = {
            "task": self.task,
            "scheme": tag_set.scheme,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "card": self.card,
        }
        with new_folder(folder, overwrite=overwrite) as new:
            labels = label_settings(tag_set.labels)
            write_task(new, self._opened, self._fitted(), HEAD, settings=labels, extras=extras)

    def _predicted(
        self,
        words: Iterable[Words],
        *,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Tagging]:
        wanted = wants_calibration(self.temperature is not None, calibrated, self.model.name)
        scored = self._scored(words, "tagging", total, show_progress)
        return decided(scored, self._known(), self.temperature if wanted else None)

    def _report(
        self, scores_MC: NDArray[np.float64], truth: Sequence[NDArray[np.int64]], *, resamples: int, seed: int
    ) -> SpanReport | TagReport:
        tag_set, lengths = self._known(), [len(each) for each in truth]
        predicted_M, probability_M = tag_set.best(scores_MC, lengths, self.temperature)
        text_M = np.repeat(np.arange(len(lengths)), lengths)
        words = TaggedWords(np.concatenate(truth), predicted_M, probability_M, text_M)
        if tag_set.scheme == "plain":
            return tag_report(words, tag_set.labels, resamples=resamples, seed=seed)
        there, said = (tag_set.spans_of_texts(tags_M, lengths) for tags_M in (words.truth_W, predicted_M))
        return span_report(there, said, words, tag_set.span_labels, resamples=resamples, seed=seed)

    def _scores(self, rows: Sequence[TaggedRow], show_progress: bool | None) -> NDArray[np.float64]:
        scored = self._scored((row.words for row in rows), "evaluating", len(rows), show_progress)
        return np.concatenate([each.scores_WC for each in scored])

    def _scored(
        self, words: Iterable[Words], description: str, total: int | None, show_progress: bool | None
    ) -> Iterator[ScoredWords]:
        engine, unseen_C = self._opened.engine(self._fitted()), self._known().unseen_C
        return scored_words(engine, words, unseen_C, total=total, description=description, show_progress=show_progress)

    def _read(self, data: Source, columns: TagColumns, scheme: Scheme | None, wanted: Scheme) -> list[TaggedRow]:
        """Rows with tags in the scheme that is wanted."""
        rows = list(read_tagged(data, columns.tokens, columns.tags))
        return tagged_in(rows, data_scheme(rows, check_scheme(scheme) if scheme else None, wanted), wanted)

    def _start(self, tag_set: TagSet, seed: int) -> None:
        """Continue with the trained head where the tags are the same, else begin a new one."""
        if self.tag_set != tag_set or self._module is None:
            with seeded(seed):
                self._open_head(tag_set, self._opened.checkpoint.new_score_head(HEAD, len(tag_set.labels)))

    def _open_head(self, tag_set: TagSet, head: ScoreHead) -> None:
        head = head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype)
        self._module = HeadModel(self.model.encoder, head).eval()
        self.tag_set = tag_set
        self.temperature = None

    def _fitted(self) -> HeadModel:
        if self._module is None:
            raise NotFitted(f"{self.model.name!r} has no trained head for words yet: call fit first.")
        return self._module

    def _known(self) -> TagSet:
        self._fitted()
        if self.tag_set is None:
            raise NotFitted(f"{self.model.name!r} has no tags yet: call fit first.")
        return self.tag_set
