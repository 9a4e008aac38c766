"""The training of a head and the encoder below it: initial weights, baseline, and the finished model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.golden import choose_inputs
from bothways.data import Example
from bothways.data.known_rows import KnownRows, TrainingRows, normalised
from bothways.errors import TrainingDiverged
from bothways.evaluation.report import Validation
from bothways.lazy import imported
from bothways.progress import Progress, reporting, shown, stage
from bothways.tasks.card import (
    FOLDS_LIMITS,
    FOLDS_UNMEASURED,
    VALIDATION,
    CardMetrics,
    DataUsed,
    data_part,
    written_card,
)
from bothways.tasks.columns import AnyColumns, PairColumns, TextColumns
from bothways.tasks.heads.contrastive import FEW_TEXTS, contrast_updates, contrastive_warmup, warm_up_tokens
from bothways.tasks.heads.diagnostics import FEW_UPDATES, LEARNT_BEFORE, note_on_frozen, notes_on_training
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.linear_start import (
    STRENGTH,
    LinearStart,
    MeasuredBaseline,
    fitting_seconds,
    held_out_scores,
    saved_baseline,
    start_head,
    tokens_read,
)
from bothways.tasks.heads.objective import (
    MIN_TOKENS,
    MIN_UPDATES,
    StoredInputs,
    WindowObjective,
    announce_training,
    of_epoch,
    passes_in_epoch,
    window_scores,
)
from bothways.tasks.heads.splits import FOLDS, TrainingData, folds
from bothways.tasks.heads.target_training import score_unit, standardize, unstandardize
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead, outputs_type
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.tasks.torch_backend import TorchBackend, above_embedder, embeds_by_mean, reads_mean
from bothways.training.forecast import READ, Reads
from bothways.training.objective import Baseline
from bothways.training.options import TrainingOptions, recorded_options, rows_in_update
from bothways.training.stages import ROWS, kept, train_within
from bothways.training.state import TrainingRecord, seeded
from bothways.training.workers import Weights, copy_weights, restore_weights

# Names of baselines.
LINEAR, CONTINUED = "linear model of frozen hidden states", "model before the training"
APART = "linear model of frozen hidden states, with each text of a pair also encoded alone"
CROSS_VALIDATED = "linear model of frozen hidden states, in cross-validation"

# Minimum updates of a training on few texts after a contrastive warm-up; more are worse on some data sets.
_AFTER_CONTRAST = 20

OF_FOLDS, BY_FOLDS = "the rows in cross-validation", "cross-validation"


@dataclass(frozen=True, slots=True)
class InitialHead:
    """A head and an encoder before the first update.

    ``measured`` is the baseline on the held-out rows; None if there is no baseline, or no rows are held out. A later
    epoch must be better by ``margin`` standard errors. If the baseline is a different model, ``restore`` restores and
    returns it. ``contrast`` is the number of updates of the contrastive warm-up.
    """

    backend: TorchBackend
    measured: MeasuredBaseline | None
    restore: Callable[[], TorchBackend] | None = None
    contrast: int = 0
    margin: float = -1.0

    @property
    def baseline(self) -> Baseline | None:
        """The baseline as epoch 0 of the training."""
        if self.measured is None:
            return None
        name, validation = self.measured.saved.name, of_epoch(self.measured.validation)
        return Baseline(name, self.margin, lambda: validation)

    def fallback(self) -> TorchBackend:
        """Return the model of the baseline: the result of ``restore`` if it is given, else ``backend``."""
        return self.backend if self.restore is None else self.restore()


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Encoder, learner and options of a training, shared with the trainings of its cross-validation.

    The encoder is trained in place. If ``few`` is True, the model is trained on all rows and cross-validated.
    """

    spec: TaskSpec
    backend: TorchBackend
    learner: AnyLearner
    columns: AnyColumns
    training: TrainingOptions
    few: bool = False

    @property
    def linear(self) -> LinearStart:
        """Options of the linear model; with few texts the strength is fixed, to be the same in all folds."""
        strength, training = self.learner.start_strength or STRENGTH, self.training
        return LinearStart(strength, training.seed, training.max_tokens, searched=not self.few)

    def continues(self, before: TrainedHead | None) -> bool:
        """Return True if the training continues with the head of ``before``."""
        return before is not None and self.learner.is_compatible_with(before.outputs)

    def random_head(self, backend: TorchBackend) -> TorchBackend:
        """Return an encoder with a new head."""
        outputs = self.learner.outputs
        with seeded(self.training.seed):
            return backend.with_head(backend.files.new_score_head(outputs.head, len(outputs.labels)))

    def linear_head(self, stored: StoredInputs, backend: TorchBackend | None = None) -> TorchBackend:
        """Return an encoder with a new head, initialised with a linear model of its hidden states if possible."""
        new = self.random_head(backend or self.backend)
        if self.learner.start_strength is not None:
            identity, loss = repr(dict(self.learner.identity)), self.learner.loss(stored)
            start_head(new.head_model, stored.store, loss, self.linear, identity)
        return new

    def contrastive_head(self, stored: StoredInputs, classes_N: NDArray[np.int64]) -> TorchBackend:
        """Run the contrastive warm-up, in place, and return the encoder with a new head."""
        read = self.random_head(self.backend).head_model.head.kind.read
        contrastive_warmup(self.backend.model, read, stored.store, classes_N, self.training)
        return self.linear_head(stored)

    def objective(
        self,
        initial: InitialHead,
        stored: StoredInputs,
        validate: Callable[[], Validation | None],
        identity: Mapping[str, str | None],
    ) -> WindowObjective:
        """Return the training objective for an initial head."""
        texts, training = stored.store.texts, self.training
        size, least = rows_in_update(training, texts), self.min_updates(initial, stored)
        has_length = (training.epochs, training.updates, training.total_tokens) != (None, None, None)
        contrast = {"contrast": initial.contrast} if initial.contrast else {}
        return WindowObjective(
            initial.backend.head_model,
            stored.store,
            self.learner.loss(stored),
            validate,
            batch_size=size,
            tokens=training.max_tokens,
            seed=training.seed,
            run_settings={**identity, **self.learner.identity, **contrast},
            passes=1 if has_length else passes_in_epoch(texts, size, least),
            baseline=initial.baseline,
            min_updates=least,
        )

    def min_updates(self, initial: InitialHead, stored: StoredInputs) -> int:
        """Return the minimum number of updates of a training of default length; long texts need fewer."""
        if self.few and initial.contrast:
            return _AFTER_CONTRAST
        texts = stored.store.texts
        tokens = int(stored.store.lengths.sum()) / texts * rows_in_update(self.training, texts)
        return min(MIN_UPDATES, int(MIN_TOKENS / tokens))

    def measured(self, name: str, backend: TorchBackend, held: StoredInputs | None) -> MeasuredBaseline | None:
        """Return a baseline with its metrics on the held-out rows; None if there are none."""
        tokens = self.training.max_tokens
        return None if held is None else MeasuredBaseline.of(name, backend, self.learner, held, tokens)


@dataclass(frozen=True, slots=True, eq=False)
class HeadData:
    """The training rows and the held-out rows of a head.

    ``stored`` and ``held`` are tokenised; with cross-validation, no rows are held out. ``split`` is True if the
    held-out rows were drawn from the training data. ``known`` are the checksums of all rows that the model was trained
    on, and ``notes`` say how many of them are held out.
    """

    stored: StoredInputs
    held: StoredInputs | None
    examples: Sequence[Example[object]]
    held_out: Sequence[Example[object]]
    split: bool
    known: KnownRows
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HeadTraining:
    """A head that is ready for training, with tokenised data, initial weights, and the measured ``Reads.cost``."""

    setup: TrainingSetup
    before: TrainedHead | None
    data: HeadData
    initial: InitialHead
    cost: float = READ

    @property
    def objective(self) -> WindowObjective:
        """Encoder, head, data and loss, for the training loop."""
        setup, held = self.setup, self.data.held
        digest = None if held is None else f"{held.store.digest} {setup.learner.loss(held).digest}"
        return setup.objective(self.initial, self.data.stored, self._validate, {"validation data": digest})

    def _validate(self) -> Validation | None:
        setup, held = self.setup, self.data.held
        if held is None:
            return None
        scores = held.scores(setup.learner.outputs, self.initial.backend.head_model, setup.training.max_tokens)
        return of_epoch(setup.learner.validate(scores, held.truth))

    @property
    def unit(self) -> float:
        """Divisor that makes the validation score comparable with those of other tasks."""
        return score_unit(self.setup.learner.outputs.row_target, self.data.stored.truth)

    @property
    def reads(self) -> Reads:
        """The tokens that the training reads besides those of its updates."""
        learner, store = self.setup.learner, self.data.stored.store
        held = None if self.data.held is None else self.data.held.store
        again, folds = learner.rows_read_afterwards(store.texts) / store.texts, FOLDS if held is None else 0
        counted = Reads.of(store, held, again=again, folds=folds, passes=self.objective.passes)
        starts = learner.start_strength is not None and not self.setup.continues(self.before)
        start = tokens_read(self.initial.backend.head_model, store, self.setup.linear) if starts else 0
        return replace(counted, start=start, warm_up=warm_up_tokens(store, self.initial.contrast), cost=self.cost)

    def finish(self, record: TrainingRecord) -> TrainedHead:
        """Return the trained model with its confidence and its card."""
        setup, data, held = self.setup, self.data, self.data.held
        if held is None:
            return _cross_validated(setup, self.initial, data, record)
        backend = self.initial.fallback() if record.kept_epoch == 0 else self.initial.backend
        model = backend.head_model
        learner = setup.learner.with_target(unstandardize(setup.learner.outputs.row_target, model.head))
        learner, scores = learner.fit_confidence(model, data.stored, held, setup.training.seed, backend.budget.tokens)
        notes = []
        before = self.before if data.split else None
        if before is not None and before.card.get("validation") == BY_FOLDS and before.known.rows() is None:
            notes.append(LEARNT_BEFORE)
        enough = min(FEW_UPDATES, setup.min_updates(self.initial, data.stored))
        return measured_head(
            setup.spec, backend, learner, setup.columns, scores, data, held, record,
            notes=notes, enough=enough, baseline=self.initial.measured,
        )  # fmt: skip


def train_head(
    spec: TaskSpec,
    backend: TorchBackend,
    before: TrainedHead | None,
    data: TrainingData,
    columns: AnyColumns,
    options: object,
    training: TrainingOptions,
) -> HeadTraining:
    """Read the data and create a head, or continue with the head of ``before`` if it has the same labels.

    The encoder is trained in place. ``options`` are the task's own options of `fit`.
    """
    if before is None and outputs_type(spec).head == "sequence" and embeds_by_mean(backend) and not backend.shared:
        # A classifier on a sentence embedder reads the embedder's vector.
        backend = above_embedder(backend, pairs=False)
    kind: type[AnyLearner] = imported(spec.learner)
    outputs = None if before is None else before.outputs
    data = replace(data, known=None if before is None else before.known.rows(), seed=training.seed)
    with stage("reading the data"):
        learner, examples, held_out = kind.from_data(backend, data, columns, options, outputs)
        known, notes = data.compared(examples, held_out)
    stored = StoredInputs.of(backend, learner.outputs, examples)
    held = StoredInputs.of(backend, learner.outputs, held_out) if held_out else None
    if held is not None and (left_out := learner.check_data(stored, held)):
        kept = [example for number, example in enumerate(examples) if number not in left_out]
        stored = StoredInputs.of(backend, learner.outputs, kept)
    used = HeadData(stored, held, examples, held_out, data.validation is None, known, notes)
    contrasted = isinstance(columns, TextColumns) and learner.contrast_classes(stored) is not None
    few = contrasted and len(stored.truth) <= FEW_TEXTS and reads_mean(backend) and not backend.shared
    setup = TrainingSetup(spec, backend, learner, columns, training, few)
    cost = READ
    if shown() and not backend.shared:
        warms_up = contrasted and reads_mean(backend) and not setup.continues(before)
        drawn = InitialHead(setup.random_head(backend), None, contrast=contrast_updates(len(stored.truth)) * warms_up)
        trial = HeadTraining(setup, before, used, drawn)
        fitting = partial(fitting_seconds, drawn.backend.head_model, stored.store, setup.linear)
        cost = announce_training(trial.objective, training, backend.model, trial.reads, fitting).cost
    return HeadTraining(setup, before, used, _initial_head(setup, before, used), cost)


def _initial_head(setup: TrainingSetup, before: TrainedHead | None, data: HeadData) -> InitialHead:
    """Continue with the previous head, or create a head as suits the encoder and the data."""
    backend, learner, stored = setup.backend, setup.learner, data.stored
    if before is not None and setup.continues(before):
        head = deepcopy(with_weights(before.backend, "train").head_model.head)
        standardize(learner.outputs.row_target, head)
        continued = backend.with_head(head)
        return InitialHead(continued, setup.measured(CONTINUED, continued, data.held))
    if backend.shared or not reads_mean(backend):
        started = setup.linear_head(stored)
        return InitialHead(
            started, None if learner.start_strength is None else setup.measured(LINEAR, started, data.held)
        )
    if isinstance(setup.columns, PairColumns):
        # A linear model is worse on jointly than on separately encoded texts, and so is fine-tuning from it.
        started, apart = setup.random_head(backend), setup.linear_head(stored, above_embedder(backend, pairs=True))
        return InitialHead(started, setup.measured(APART, apart, data.held), lambda: apart, margin=1.0)
    classes_N = learner.contrast_classes(stored)
    if classes_N is None:
        started = setup.linear_head(stored)
        return InitialHead(started, setup.measured(LINEAR, started, data.held))
    frozen, encoder = setup.linear_head(stored), backend.model.encoder
    weights, measured = copy_weights(encoder), setup.measured(LINEAR, frozen, data.held)

    def before_contrast() -> TorchBackend:
        restore_weights(encoder, weights)
        return frozen

    contrasted = setup.contrastive_head(stored, classes_N)
    return InitialHead(contrasted, measured, before_contrast, contrast_updates(len(classes_N)))


def measured_head(
    spec: TaskSpec,
    backend: TorchBackend,
    learner: AnyLearner,
    columns: AnyColumns,
    scores: Sequence[Scores[object]],
    used: HeadData,
    held: StoredInputs,
    record: TrainingRecord,
    *,
    notes: Sequence[str] = (),
    limits: Sequence[str] = (),
    of: str = VALIDATION,
    enough: int = FEW_UPDATES,
    baseline: MeasuredBaseline | None = None,
) -> TrainedHead:
    """Evaluate a trained head on held-out rows, and return it with its card.

    ``notes`` and ``limits`` come first among the card's notes on the training and limits of the metrics. ``of`` is the
    noun phrase for the evaluated rows. A note warns if there were fewer updates than ``enough``.
    """
    outputs, seed = learner.outputs, record.settings.seed
    with stage("evaluating on the held-out rows"):
        measured = CardMetrics(outputs.outcomes(scores, held.truth).report(seed=seed), (*limits, *learner.limits))
        labelled = of == VALIDATION
        more, issues = learner.diagnostics(scores, held.truth, used.examples, used.held_out) if labelled else ([], ())
    data = DataUsed(columns, _facts_of(learner, used.stored), _facts_of(learner, held), split=used.split)
    card = written_card(backend.model, record, data, measured, of=of)
    course = notes_on_training(record, len(used.held_out), lambda: learner.validate(scores, held.truth), enough)
    notes = [*notes, *used.notes, *course, *more]
    card = {**card, **learner.card(), **({} if baseline is None else baseline.card()), "notes": notes}
    golden = choose_inputs(
        ((each.text, each.label) for each in used.held_out), (each.text for each in used.examples), seed
    )
    saved = saved_baseline(None if record.kept_epoch == 0 else baseline, learner.constant(used.stored))
    known, backend = TrainingRows(used.known), backend.with_layers(outputs.layers)
    return TrainedHead(spec, backend, outputs, columns, card, issues, golden, saved, known)


def _facts_of(learner: AnyLearner, stored: StoredInputs) -> dict[str, object]:
    """Return counts and checksums of inputs for the card."""
    return {**data_part(stored.store.texts, stored.store), **learner.data_facts(stored)}


def _cross_validated(setup: TrainingSetup, initial: InitialHead, data: HeadData, record: TrainingRecord) -> TrainedHead:
    """Return a model trained on all of a few texts, evaluated and calibrated by cross-validation.

    Each text is scored by a model trained on the other folds. The linear model of the frozen encoder is kept instead if
    it is better by more than a standard error. If the training was interrupted or diverged, the model is not evaluated.
    """
    learner, stored, encoder = setup.learner, data.stored, setup.backend.model.encoder
    truth, seed = stored.truth, setup.training.seed
    used = DataUsed(setup.columns, _facts_of(learner, stored), None, split=False)
    card = written_card(setup.backend.model, record, used, CardMetrics(None, FOLDS_UNMEASURED))
    card = {**card, **learner.card(), "notes": []}
    known = TrainingRows(data.known)
    unmeasured_head = TrainedHead(setup.spec, initial.backend, learner.outputs, setup.columns, card, known=known)
    if record.interrupted or record.diverged is not None:
        return unmeasured_head
    trained = copy_weights(encoder)
    frozen, folds_N = initial.fallback(), folds(data.examples, seed, lambda each: normalised(each.text))
    weights = copy_weights(encoder)
    loss, identity = learner.loss(stored), str(dict(learner.identity))
    linear_rows = held_out_scores(frozen.head_model, stored.store, loss, setup.linear, folds_N, identity)
    linear_scores = stored.merged(learner.outputs, linear_rows)
    try:
        scores = _scores_of_folds(setup, stored, folds_N, weights)
    except TrainingDiverged:
        restore_weights(encoder, trained)
        return unmeasured_head
    measured = MeasuredBaseline.scored(LINEAR, frozen, learner, linear_scores, truth)
    validation, of_frozen = learner.validate(scores, truth), measured.validation
    keeps_frozen = validation.score < of_frozen.score - of_frozen.standard_error
    backend, scores = (frozen, linear_scores) if keeps_frozen else (initial.backend, scores)
    restore_weights(encoder, weights if keeps_frozen else trained)
    fitted = learner.fit_confidence_of_folds(scores, truth, seed)
    report = fitted.outputs.outcomes(scores, truth).report(seed=seed)
    card = written_card(setup.backend.model, record, used, CardMetrics(report, FOLDS_LIMITS), of=OF_FOLDS)
    more, issues = fitted.diagnostics(scores, truth, [], data.examples)
    notes = [*([note_on_frozen(of_frozen)] if keeps_frozen else []), *more]
    card |= {**fitted.card(), "validation": BY_FOLDS, **measured.card(CROSS_VALIDATED), "notes": notes}
    saved = saved_baseline(None if keeps_frozen else measured, learner.constant(stored))
    return TrainedHead(setup.spec, backend, fitted.outputs, setup.columns, card, issues, baseline=saved, known=known)


def _scores_of_folds(
    setup: TrainingSetup, stored: StoredInputs, folds_N: NDArray[np.int64], weights: Weights
) -> list[Scores[object]]:
    """Return the score of each text from a model trained on the other folds; the encoder's weights change."""
    encoder, outputs = setup.backend.model.encoder, setup.learner.outputs
    quiet = replace(setup, training=replace(setup.training, show_progress=False))
    scores: dict[int, Scores[object]] = {}
    identity = f"{recorded_options(quiet.training)} {dict(setup.learner.identity)}"
    for number, fold in enumerate(np.unique(folds_N), start=1):
        restore_weights(encoder, weights)
        part, held_M = stored.take(np.flatnonzero(folds_N != fold)), np.flatnonzero(folds_N == fold)
        held = stored.take(held_M)

        def compute(bar: Progress, part: StoredInputs = part, held: StoredInputs = held) -> list[NDArray[np.float64]]:
            with reporting(False):
                started = quiet.contrastive_head(part, part.truth)
            initial = InitialHead(started, None, contrast=contrast_updates(len(part.truth)))
            train_within(quiet.objective(initial, part, lambda: None, {}), quiet.training, setup.backend.model, bar)
            return window_scores(started.head_model, held.store, quiet.training.max_tokens)

        name = f"cross-validation, fold {number} of {folds_N.max() + 1}"
        settings = f"{part.store.digest} {setup.learner.loss(part).digest} {held.store.digest} {identity}"
        found = held.merged(outputs, kept(name, ROWS, compute, encoder, settings))
        scores |= dict(zip(held_M.tolist(), found, strict=True))
    return [scores[number] for number in range(len(folds_N))]
