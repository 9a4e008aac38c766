"""The training of a head and the encoder below it: what it begins with, what it is compared with, what it ends as."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data import Example
from bothways.errors import TrainingDiverged
from bothways.progress import phase, reporting
from bothways.tasks.card import NOTICES_NOTHING, VALIDATION, CardMetrics, DataUsed, unmeasured, written_card
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.contrast import FEW_TEXTS, bring_together, contrast_updates
from bothways.tasks.findings import FEW_UPDATES, notes_on_training
from bothways.tasks.head import StoredInputs, TrainedHead, TrainingData
from bothways.tasks.learning import Preparation, train_within
from bothways.tasks.linear_start import STRENGTH, LinearStart, held_out_scores, start_head
from bothways.tasks.objective import LEAST_UPDATES, WindowObjective, passes_in_epoch
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.tasks.splits import folds
from bothways.training.objective import Baseline, Validation
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded
from bothways.training.weights import Weights, copy_weights, restore_weights

# What a model is before the first update.
LINEAR, CONTINUED = "linear model of frozen hidden states", "model before the training"
APART = "linear model of frozen hidden states, the texts of a pair also read apart"
CROSS_VALIDATED = "linear model of frozen hidden states, in cross-validation"

# Updates of a head above few texts that were brought together; more make some data sets worse.
_AFTER_CONTRAST = 20

# Long texts teach more in an update and take longer: the least number of updates reads no more tokens than these.
_LEAST_TOKENS = 600_000

# What the card of a model of few texts says, and of one that is trained further.
LEARNT_BEFORE = (
    "The model had learnt from all rows of the training before this one: where some of them are held out now, the "
    "metrics are optimistic. Give validation data that it has never met."
)
OF_FOLDS, BY_FOLDS = "the rows in cross-validation", "cross-validation"
KEPT_FROZEN = (
    "Fine-tuning did worse in cross-validation than a linear model of the frozen encoder, which is kept: more rows, or "
    "another encoder, would help."
)
LIMITS = (
    "All rows were learnt from, as they are few. Metrics, calibration, coverage and the out-of-domain threshold are "
    "of cross-validation: of models that learnt from three quarters of the rows each, so they are approximate.",
)
UNMEASURED = (
    unmeasured("all rows were learnt from, and the training, or one to measure it, did not come to its end"),
    "Probabilities are not calibrated.",
    NOTICES_NOTHING,
)


def prepare_head(
    spec: TaskSpec,
    kind: type[HeadOutputs[Any, Any]],
    opened: OpenedModel,
    before: TrainedHead | None,
    data: TrainingData,
    columns: object,
    options: object,
    training: TrainingOptions,
) -> Preparation[WindowObjective, TrainedHead]:
    """Read the data, begin a head or go on with the one there was, and lay out the training.

    Args:
        spec: What the task declares.
        kind: What the head's outputs mean.
        opened: The encoder, which is trained in place.
        before: The head that it had; it is trained further where its outputs mean the same.
        data: What to learn from.
        columns: Where the parts of a row stand.
        options: The task's options of `fit`.
        training: Options of the training.

    Raises:
        InvalidInput: The data are not usable, and the message names the row; or an option does not go with them.
    """
    known = None if before is None else before.outputs
    outputs, examples, held_out = kind.begin(opened, data, columns, options, training.seed, known)
    stored = StoredInputs.of(opened, outputs, examples)
    held = StoredInputs.of(opened, outputs, held_out) if held_out else None
    if held is not None and (left_out := outputs.check_data(stored, held)):
        kept = [example for number, example in enumerate(examples) if number not in left_out]
        stored = StoredInputs.of(opened, outputs, kept)
    contrasted = isinstance(columns, TextColumns) and outputs.contrasted_classes(stored) is not None
    few = contrasted and len(stored.truth) <= FEW_TEXTS and opened.reads_mean and not opened.shared
    setting = _Setting(spec, opened, outputs, columns, training, few)

    def validated(trained: TrainedHead) -> Validation | None:
        if held is None:
            return None
        return outputs.validate(held.scores(outputs, trained.model, training.max_tokens), held.truth)

    begun = _begin(setting, before, stored, validated)

    def finish(record: TrainingRecord) -> TrainedHead:
        if held is None:
            return _cross_validated(setting, begun, stored, examples, record)
        trained = begun.fallback() if record.kept_epoch == 0 else begun.trained
        learnt, scores = outputs.unstandardize(trained.model.head).learn(
            trained.model, stored, held, training.seed, opened.batch_tokens
        )
        before_all = before is not None and before.card.get("validation") == BY_FOLDS and data.validation is None
        used = HeadData(stored, held, examples, held_out, split=data.validation is None)
        notes, enough = [LEARNT_BEFORE] if before_all else [], min(FEW_UPDATES, setting.least_updates(begun, stored))
        return measured_head(trained, learnt, scores, used, record, notes=notes, enough=enough)

    digest = None if held is None else f"{held.digest} {outputs.answers(held).digest}"
    objective = setting.objective(begun, stored, partial(validated, begun.trained), {"validation data": digest})
    return Preparation(objective, finish, outputs.unit(stored.truth))


@dataclass(frozen=True, slots=True, eq=False)
class HeadData:
    """The rows that a head learns from, and those that are held out.

    Attributes:
        stored: Training inputs.
        held: Held-out inputs.
        examples: Those of the training inputs that have labels.
        held_out: The held-out examples.
        split: Whether they were drawn from the training data.
    """

    stored: StoredInputs
    held: StoredInputs
    examples: Sequence[Example[Any]]
    held_out: Sequence[Example[Any]]
    split: bool


def measured_head(
    trained: TrainedHead,
    learnt: HeadOutputs[Any, Any],
    scores: Sequence[Scores[Any]],
    used: HeadData,
    record: TrainingRecord,
    *,
    notes: Sequence[str] = (),
    limits: Sequence[str] = (),
    of: str = VALIDATION,
    enough: int = FEW_UPDATES,
) -> TrainedHead:
    """Return a head at the end of its training, with a card.

    Args:
        trained: Encoder and head.
        learnt: Their outputs, with what held-out rows taught.
        scores: Of the held-out rows.
        used: The data.
        record: The course of the training.
        notes: Sentences to say first.
        limits: What else a reader of the metrics has to know.
        of: The rows that the metrics are of.
        enough: Updates that are not called few.
    """
    phase("evaluating on the held-out rows")
    seed, truth = record.settings.seed, used.held.truth
    measured = CardMetrics(learnt.outcomes(scores, truth).report(seed=seed), (*limits, *learnt.limits))
    training, validation = (each.part(trained.outputs) for each in (used.stored, used.held))
    data = DataUsed(trained.columns, training, validation, split=used.split)
    card = {**written_card(trained.opened.model, record, data, measured, of=of), **learnt.card()}
    labelled = of == VALIDATION
    more, mistakes = learnt.findings(scores, truth, used.examples, used.held_out) if labelled else ([], ())
    notes = [*notes, *notes_on_training(record, len(used.held_out), enough), *more]
    return replace(trained, outputs=learnt, card={**card, "notes": notes}, mistakes=mistakes)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A head and an encoder before the first update.

    Attributes:
        trained: What is trained.
        baseline: What it is compared with, where that is measured on held-out rows.
        other: Gives another model that is the baseline, once the module is what it was before the first update.
        contrast: Updates that brought texts of a label together.
    """

    trained: TrainedHead
    baseline: Baseline | None
    other: Callable[[], TrainedHead] | None = None
    contrast: int = 0

    def fallback(self) -> TrainedHead:
        """Return what is kept where no epoch is as good."""
        return self.trained if self.other is None else self.other()


@dataclass(frozen=True, slots=True)
class _Setting:
    """The parts of a training that folds and whole share; see `prepare_head`."""

    spec: TaskSpec
    opened: OpenedModel
    outputs: HeadOutputs[Any, Any]
    columns: object
    training: TrainingOptions
    few: bool = False

    @property
    def linear(self) -> LinearStart:
        """Options of a linear model; of few texts with the usual strength, so that all folds have the same."""
        strength, training = self.outputs.start_strength or STRENGTH, self.training
        return LinearStart(strength, training.seed, training.max_tokens, searched=not self.few)

    def drawn(self, reading: OpenedModel) -> TrainedHead:
        """Return a new head above an encoder."""
        with seeded(self.training.seed):
            head = reading.checkpoint.new_score_head(self.outputs.head, self.outputs.size)
        return TrainedHead.of(self.spec, reading, head, self.outputs, self.columns)

    def started(self, stored: StoredInputs, reading: OpenedModel | None = None) -> TrainedHead:
        """Return a new head, begun at a linear model of the encoder's hidden states where the outputs want that."""
        new = self.drawn(reading or self.opened)
        if self.outputs.start_strength is not None:
            self.say("fitting a linear model to the encoder's hidden states")
            start_head(new.model, stored.store, self.outputs.answers(stored), self.linear)
        return new

    def brought_together(self, stored: StoredInputs, classes_N: NDArray[np.int64]) -> TrainedHead:
        """Bring texts of a label together, and return a head that begins above them."""
        self.say("bringing texts of a label together")
        read = self.drawn(self.opened).model.head.kind.read
        bring_together(self.opened.model, read, stored.store, classes_N, self.training)
        return self.started(stored)

    def objective(
        self,
        begun: _Beginning,
        stored: StoredInputs,
        validate: Callable[[], Validation | None],
        identity: Mapping[str, str | None],
    ) -> WindowObjective:
        """Return the training of a head that was begun."""
        texts, training = stored.store.texts, self.training
        size = training.rows_in_update(texts)
        more = {"contrast": begun.contrast} if begun.contrast else {}
        least = self.least_updates(begun, stored)
        return WindowObjective(
            begun.trained.model,
            stored.store,
            self.outputs.answers(stored),
            validate,
            batch_size=size,
            tokens=training.max_tokens,
            seed=training.seed,
            identity={**identity, **self.outputs.identity, **more},
            passes=1 if training.has_length else passes_in_epoch(texts, size, least),
            baseline=begun.baseline,
            least_updates=least,
        )

    def least_updates(self, begun: _Beginning, stored: StoredInputs) -> int:
        """Return how many updates a training of default length takes at least: fewer where texts are long."""
        if self.few and begun.contrast:
            return _AFTER_CONTRAST
        texts = stored.store.texts
        tokens = int(stored.store.lengths.sum()) / texts * self.training.rows_in_update(texts)
        return min(LEAST_UPDATES, int(_LEAST_TOKENS / tokens))

    def say(self, what: str) -> None:
        """Show what is being done."""
        with reporting(self.training.show_progress):
            phase(what)


def _begin(
    setting: _Setting,
    before: TrainedHead | None,
    stored: StoredInputs,
    validated: Callable[[TrainedHead], Validation | None],
) -> _Beginning:
    """Go on with the head that there was, or begin one at a linear model, in the way that suits encoder and data."""
    opened, outputs = setting.opened, setting.outputs
    if before is not None and outputs.continues(before.outputs):
        head = deepcopy(before.model.head)
        outputs.standardize(head)
        begun = TrainedHead.of(setting.spec, opened, head, outputs, setting.columns)
        return _Beginning(begun, Baseline(CONTINUED))
    if opened.shared or not opened.reads_mean:
        begun = setting.started(stored)
        return _Beginning(begun, None if outputs.start_strength is None else Baseline(LINEAR))
    if isinstance(setting.columns, PairColumns):
        # A linear model of the texts read together says less than one of the texts apart, and fine-tuning ends lower.
        begun, apart = setting.drawn(opened), setting.started(stored, opened.above_embedder(pairs=True))
        return _Beginning(begun, Baseline(APART, 1.0, partial(validated, apart)), lambda: apart)
    classes_N = outputs.contrasted_classes(stored)
    if classes_N is None:
        return _Beginning(setting.started(stored), Baseline(LINEAR))
    frozen, encoder = setting.started(stored), opened.model.encoder
    weights, validation = copy_weights(encoder), validated(frozen)

    def before_contrast() -> TrainedHead:
        restore_weights(encoder, weights)
        return frozen

    baseline = None if validation is None else Baseline(LINEAR, validate=lambda: validation)
    return _Beginning(
        setting.brought_together(stored, classes_N), baseline, before_contrast, contrast_updates(len(classes_N))
    )


def _cross_validated(
    setting: _Setting,
    begun: _Beginning,
    stored: StoredInputs,
    examples: Sequence[Example[Any]],
    record: TrainingRecord,
) -> TrainedHead:
    """Return a model of few texts, which were all learnt from, measured and calibrated by cross-validation.

    Models of other texts answer each text. Kept is the linear model of the frozen encoder where that does better by
    more than a standard error. A training that did not come to its end is not measured, nor one whose folds diverge.
    """
    outputs, encoder, truth = setting.outputs, setting.opened.model.encoder, stored.truth
    used = DataUsed(setting.columns, stored.part(outputs), None, split=False)
    card = written_card(setting.opened.model, record, used, CardMetrics(None, UNMEASURED))
    unmeasured_head = replace(begun.trained, card={**card, **outputs.card(), "notes": []})
    if record.interrupted or record.diverged is not None:
        return unmeasured_head
    trained = copy_weights(encoder)
    frozen, folds_N = begun.fallback(), folds(examples, setting.training.seed, lambda each: each.text)
    weights = copy_weights(encoder)
    rows = held_out_scores(frozen.model, stored.store, outputs.answers(stored), setting.linear, folds_N)
    usual = stored.merged(outputs, rows)
    try:
        scores = _scores_of_folds(setting, stored, folds_N, weights)
    except TrainingDiverged:
        restore_weights(encoder, trained)
        return unmeasured_head
    validation, baseline = (outputs.validate(each, truth) for each in (scores, usual))
    keeps_frozen = validation.score < baseline.score - baseline.standard_error
    model, scores = (frozen, usual) if keeps_frozen else (begun.trained, scores)
    restore_weights(encoder, weights if keeps_frozen else trained)
    learnt = outputs.learn_from(scores, truth, setting.training.seed)
    report = learnt.outcomes(scores, truth).report(seed=setting.training.seed)
    card = written_card(setting.opened.model, record, used, CardMetrics(report, LIMITS), of=OF_FOLDS)
    more, mistakes = learnt.findings(scores, truth, [], examples)
    notes = [*([KEPT_FROZEN] if keeps_frozen else []), *more]
    measured = {"name": CROSS_VALIDATED, "metrics": dict(baseline.metrics)}
    card = {**card, **learnt.card(), "validation": BY_FOLDS, "baseline": measured, "notes": notes}
    return replace(model, outputs=learnt, card=card, mistakes=mistakes)


def _scores_of_folds(
    setting: _Setting, stored: StoredInputs, folds_N: NDArray[np.int64], weights: Weights
) -> list[Scores[Any]]:
    """Return scores of all texts, each by a model that learnt from the other folds; the encoder is spoilt."""
    outputs, encoder = setting.outputs, setting.opened.model.encoder
    quiet = replace(setting, training=replace(setting.training, show_progress=False))
    scores: dict[int, Scores[Any]] = {}
    for number, fold in enumerate(np.unique(folds_N), start=1):
        setting.say(f"cross-validation, fold {number} of {folds_N.max() + 1}")
        restore_weights(encoder, weights)
        part, held_M = stored.take(np.flatnonzero(folds_N != fold)), np.flatnonzero(folds_N == fold)
        trained = quiet.brought_together(part, part.truth)
        begun = _Beginning(trained, None, contrast=contrast_updates(len(part.truth)))
        train_within(quiet.objective(begun, part, lambda: None, {}), setting.opened.model, quiet.training)
        found = stored.take(held_M).scores(outputs, trained.model, quiet.training.max_tokens)
        scores |= dict(zip(held_M.tolist(), found, strict=True))
    return [scores[number] for number in range(len(folds_N))]
