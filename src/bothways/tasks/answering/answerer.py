"""Extractive question answering: the part of a context that answers a question, or that there is none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import tee
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack, overload

from bothways.data import Row, Source
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput, NotCalibrated
from bothways.evaluation import Outcomes, Report, Temperature
from bothways.families import HeadName
from bothways.storage import new_folder
from bothways.tasks.answering.answers import (
    LONGEST_ANSWER,
    Answering,
    FoundSpans,
    QuestionAnswer,
    answered,
    outcomes_of,
)
from bothways.tasks.answering.fitting import StoredQuestions, answering_limits, no_answer_index, stored_threshold
from bothways.tasks.answering.questions import Question, annotated_questions, hold_out_contexts, read_questions
from bothways.tasks.answering.spans import SpanScores
from bothways.tasks.card import NOTICES_NOTHING, DataUsed, Worth, written_card
from bothways.tasks.columns import QuestionColumns, stored_columns, with_names
from bothways.tasks.fitting import FitOptions, FitPlan, fit_plan, undone_on_failure
from bothways.tasks.objective import HeadModel, WindowObjective
from bothways.tasks.opening import OpenedModel, OpenOptions, open_model
from bothways.tasks.predictions import Reading
from bothways.tasks.saving import write_task
from bothways.tasks.stored import stored_card, stored_temperature, stored_whole
from bothways.tasks.twos import QUESTION, OneOfMany, checked_two, given_twos
from bothways.text import Text, blanked_in_front
from bothways.training.objective import Validation
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "span"

# ``config.json`` of what a model was fine-tuned for before says how many outputs its head had; this one has two.
OF_OTHER_HEADS: Mapping[str, object] = dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"))

QuestionAndContext = tuple[str, str]


class QuestionAnswerer:
    """Fine-tunes an encoder to find the answer to a question in a context, and to say when there is none.

    A context that is too long is read in overlapping windows, with the question in each.

    >>> answerer = QuestionAnswerer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> answerer.fit("train-v2.0.json", validation="dev-v2.0.json")  # doctest: +SKIP
    >>> answerer.predict(("Who won?", "In 2016 the Denver Broncos won.")).answer  # doctest: +SKIP
    'Denver Broncos'

    Attributes:
        model: The encoder and its tokenizer.
        answering: How answers are looked for; may be set.
        threshold: Log odds against no answer from which an answer is given; None always gives one. `fit` chooses it;
            may be set, such as to 0 for a model that another program trained on questions without answers.
        temperature: What calibrates its probabilities; None without.
        columns: Where questions, contexts and answers stood in training.
        card: What the model says of its making.
    """

    task: ClassVar[str] = "answering"

    def __init__(self, opened: OpenedModel, answering: Answering) -> None:
        self._opened = opened.with_whole_questions()
        self._no_answer = no_answer_index(opened.model.tokenizer)
        self._module: HeadModel | None = None
        self.model = opened.model
        self.answering = answering
        self.threshold: float | None = None
        self.temperature: Temperature | None = None
        self.columns = QuestionColumns()
        self.card: dict[str, Any] = {}

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, max_answer_tokens: int | None = None, **options: Unpack[OpenOptions]
    ) -> Self:
        """Open an encoder to fine-tune, or a trained model to use.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            max_answer_tokens: Most tokens in an answer; what a saved model says, or 30.
            options: How the checkpoint is found, where it runs, and how texts are read; see
                `bothways.tasks.opening.OpenOptions`.

        Raises:
            InvalidInput: A setting is out of range.
            CorruptCheckpoint: A file is damaged.
        """
        opened = open_model(name_or_path, cls.task, **options)
        ours = opened.extras.get("task") == cls.task
        extras = opened.extras if ours else {}
        stored = stored_whole(extras, "max_answer_tokens", LONGEST_ANSWER)
        longest = stored if max_answer_tokens is None else max_answer_tokens
        made = cls(opened, Answering() if longest is None else Answering(longest))
        if opened.checkpoint.score_count(HEAD) is not None:
            made._open_head(opened.checkpoint.build_score_head(HEAD))
            made.threshold = stored_threshold(extras)
            made.temperature = stored_temperature(extras)
            made.card = stored_card(extras)
            made.columns = stored_columns(made.card, QuestionColumns())
        return made

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        question: str = "question",
        context: str = "context",
        answers: str = "answers",
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune on answered questions, keep a good epoch, and choose threshold and temperature on held-out ones.

        Kept is the latest epoch whose validation score is within a standard error of the best. Where several
        answers are annotated, start and end are to be spread over all of them. Where every held-out question has an
        answer, the model will always give one.

        Args:
            train_data: A file (a SQuAD file among others), or a list of mappings.
            validation: Held-out data; when left out, the questions on some of the contexts, about a tenth of all, drawn
                with ``seed``.
            question: Column of the questions.
            context: Column of the contexts.
            answers: Column of the answers, see `bothways.tasks.answering.questions`.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
            TextTooLong: A question leaves no room for its context.
        """
        columns, plan = QuestionColumns(question, context, answers), fit_plan(self, options)
        questions = read_questions(train_data, columns)
        if validation is None:
            questions, held_out = hold_out_contexts(questions, 0.1, plan.seed)
        else:
            held_out = read_questions(validation, columns)
        training, held = self._stored(questions), self._stored(held_out)
        calibrated = plan.settings.wants_temperature()
        with undone_on_failure(self, "_module", "threshold", "temperature", "columns", "card") as attempt:
            # What was learnt of the head before, and its card, do not hold for the weights to come.
            self.threshold, self.temperature, self.columns, self.card = None, None, columns, {}
            if self._module is None:
                with seeded(plan.seed):
                    self._open_head(self._opened.checkpoint.new_score_head(HEAD))
            record = attempt.train(plan, self._objective(training, held, plan), self.model)
        if record.came_to_nothing:
            return record
        longest = self.answering.max_answer_tokens
        candidates = held.candidates(self._fitted(), self._opened.batch_tokens, longest)
        self.threshold = candidates.threshold()
        self.temperature = candidates.temperature(self.threshold) if calibrated else None
        used = DataUsed(columns, training.part, held.part, split=validation is None)
        metrics = candidates.report(self.threshold, self.temperature)
        limits = answering_limits(metrics, "the epoch to keep, the threshold and the temperature")
        self.card = written_card(self.model, record, used, Worth(metrics, (*limits, NOTICES_NOTHING)))
        return record

    @overload
    def predict(
        self,
        questions: QuestionAndContext,
        *,
        top: int | None = ...,
        calibrated: bool | None = ...,
        show_progress: bool | None = ...,
    ) -> QuestionAnswer: ...

    @overload
    def predict(
        self,
        questions: Sequence[OneOfMany],
        *,
        top: int | None = ...,
        calibrated: bool | None = ...,
        show_progress: bool | None = ...,
    ) -> list[QuestionAnswer]: ...

    def predict(
        self,
        questions: QuestionAndContext | Sequence[OneOfMany],
        *,
        top: int | None = None,
        calibrated: bool | None = None,
        show_progress: bool | None = None,
    ) -> QuestionAnswer | list[QuestionAnswer]:
        """Answers to questions, in order; one for a single question.

        Args:
            questions: A tuple of a question and its context, or many, each a tuple or a list of both.
            top: How many answers to give that do not overlap, best first; as `answering` says when left out.
            calibrated: True insists on calibrated probabilities, False wants those of the head as it is; when left
                out they are calibrated where the model is.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            NotCalibrated: Calibrated probabilities were insisted on and the model has no calibration.
            InvalidInput: A question or context is empty, or something is not both.
            TextTooLong: A context is too long and the policy is ``"error"``, or its question leaves no room for it.
        """
        listed, alone = self.given(questions)
        stream = self.predict_stream(
            listed, top=top, calibrated=calibrated, total=len(listed), show_progress=show_progress
        )
        found = list(stream)
        return found[0] if alone else found

    def given(self, questions: object) -> tuple[list[QuestionAndContext], bool]:
        """The questions that `predict` was given, checked, and whether it was one alone."""
        return given_twos(questions, QUESTION)

    def predict_stream(
        self,
        questions: Iterable[OneOfMany],
        *,
        top: int | None = None,
        calibrated: bool | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[QuestionAnswer]:
        """Answers for an iterable of any length, in order and in flat memory."""
        checked = (checked_two(index, each, QUESTION) for index, each in enumerate(questions))
        return self._predicted(checked, calibrated, top=top, total=total, show_progress=show_progress)

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[QuestionAnswer]:
        """An answer for each row, in order and in flat memory; columns as in `columns`."""
        return self._predicted(map(self.columns.inputs.read, rows), show_progress=show_progress)

    def evaluate(
        self,
        data: Source,
        *,
        question: str | None = None,
        context: str | None = None,
        answers: str | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Exact match and F1 on annotated questions, with 95 % bootstrap intervals.

        Args:
            data: A file, or a list of mappings.
            question: Column of the questions; the one that it was trained on when left out, as for the others.
            context: Column of the contexts.
            answers: Column of the answers.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: The data are not usable.
        """
        columns = with_names(self.columns, question=question, context=context, answers=answers)
        return outcomes_of(*self._answered(data, columns, show_progress)).report(resamples=resamples, seed=seed)

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return F1 and exact match of each question, to compare with another model's."""
        return outcomes_of(*self._answered(data, self.columns, show_progress))

    def spans(
        self,
        texts: Iterable[QuestionAndContext],
        description: str,
        total: int | None,
        show_progress: bool | None,
        top: int | None = None,
    ) -> Iterator[FoundSpans]:
        """The best spans of contexts, before it is decided whether one is an answer, in order and in flat memory.

        Raises:
            NotFitted: There is no trained head yet.
            InvalidInput: ``top`` is below 1.
        """
        given, kept = tee(texts)
        read = ((question, blanked_in_front(context)) for question, context in given)
        engine = self._opened.engine(self._fitted())
        answering = self.answering if top is None else replace(self.answering, top=top)
        found = engine.run_tokens(read, total=total, description=description, show_progress=show_progress)
        for tokens, (_, context) in zip(found, kept, strict=True):
            scores = SpanScores(
                context, tokens.rows, tokens.places, no_answer=self._no_answer, longest=answering.max_answer_tokens
            )
            yield FoundSpans.of(context, scores, answering.top, Reading(len(tokens.rows), tokens.dropped_tokens))

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """One row, as it would stand in a file, of a question and its context.

        Raises:
            InvalidInput: They are not two.
        """
        if len(texts) != 2:
            raise InvalidInput(f"this model wants two texts, a question and its context, but got {len(texts)}.")
        return [{self.columns.question: texts[0], self.columns.context: texts[1]}]

    def facts(self) -> dict[str, object]:
        """Threshold, calibration and the longest answer, as JSON values."""
        self._fitted()
        return {
            "no_answer_threshold": self.threshold,
            "temperature": None if self.temperature is None else asdict(self.temperature),
            "max_answer_tokens": self.answering.max_answer_tokens,
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model in the ecosystem's layout, whole or not at all.

        Raises:
            NotFitted: There is no trained head yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        extras = {"task": self.task, **self.facts(), "card": self.card}
        module = self._fitted()
        with new_folder(folder, overwrite=overwrite) as new:
            write_task(new, self._opened, module, HEAD, settings=OF_OTHER_HEADS, extras=extras)

    def _answered(
        self, data: Source, columns: QuestionColumns, show_progress: bool | None
    ) -> tuple[list[QuestionAnswer], list[list[str]]]:
        """Answers to annotated questions, and the texts of the annotated ones."""
        self._fitted()
        texts, annotated = annotated_questions(data, columns)
        found = self._predicted(texts, total=len(texts), description="evaluating", show_progress=show_progress)
        return list(found), annotated

    def _predicted(
        self,
        texts: Iterable[QuestionAndContext],
        calibrated: bool | None = None,
        *,
        top: int | None = None,
        total: int | None = None,
        description: str = "answering",
        show_progress: bool | None = None,
    ) -> Iterator[QuestionAnswer]:
        temperature, threshold = self._temperature(calibrated), self.threshold
        for found in self.spans(texts, description, total, show_progress, top):
            yield answered(found, threshold, temperature)

    def _objective(self, training: StoredQuestions, held: StoredQuestions, plan: FitPlan) -> WindowObjective:
        module, tokens, longest = self._fitted(), plan.settings.tokens, self.answering.max_answer_tokens

        def validate() -> Validation:
            return held.candidates(module, tokens, longest).validation()

        digest = f"{held.store.digest} {held.answers().digest}"
        return WindowObjective(
            module,
            training.store,
            training.answers(),
            validate,
            batch_size=plan.batch_size,
            tokens=tokens,
            seed=plan.seed,
            identity={"validation data": digest, "task": self.task, "longest answer": longest},
        )

    def _stored(self, questions: Sequence[Question]) -> StoredQuestions:
        texts: list[Text] = [(asked, blanked_in_front(context)) for asked, context in (each.text for each in questions)]
        store = self._opened.stored(texts, offsets=True)
        return StoredQuestions(questions, store, self._no_answer)

    def _open_head(self, head: ScoreHead) -> None:
        head = head.to(self.model.device, self.model.encoder.embedding.tokens.weight.dtype)
        self._module = HeadModel(self.model.encoder, head).eval()

    def _temperature(self, calibrated: bool | None) -> float:
        self._fitted()
        if calibrated and self.temperature is None:
            raise NotCalibrated(
                f"calibrated probabilities were asked for, but {self.model.name!r} was not calibrated. Fit it with "
                "validation data, or leave calibrated out."
            )
        return 1.0 if calibrated is False or self.temperature is None else self.temperature.value

    def _fitted(self) -> HeadModel:
        if self._module is None:
            raise self._opened.not_fitted(self.task, "question answering head")
        return self._module
