"""The training of a head and the encoder below it: what it begins with, what it is compared with, what it ends as."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from bothways.data.windows import WindowStore
from bothways.encoder import ScoreHead
from bothways.progress import phase, reporting
from bothways.tasks.card import DataUsed, Worth, written_card
from bothways.tasks.columns import PairColumns
from bothways.tasks.findings import notes_on_training
from bothways.tasks.head import StoredInputs, TrainedHead, TrainingData
from bothways.tasks.learning import Preparation
from bothways.tasks.linear_start import LinearStart, start_head
from bothways.tasks.objective import Answers, HeadModel, WindowObjective, passes_in_epoch
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.spec import TaskSpec
from bothways.training.objective import Baseline, Validation
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

# What a model is before the first update.
LINEAR, CONTINUED = "linear model of frozen hidden states", "model before the training"
APART = "linear model of frozen hidden states, the texts of a pair also read apart"


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
    stored, held = (StoredInputs.of(opened, outputs, part) for part in (examples, held_out))
    if left_out := outputs.check_data(stored, held):
        kept = [example for number, example in enumerate(examples) if number not in left_out]
        stored = StoredInputs.of(opened, outputs, kept)
    answers, held_answers = outputs.answers(stored), outputs.answers(held)

    def validated(trained: TrainedHead) -> Validation:
        return outputs.validate(held.scores(outputs, trained.model, training.max_tokens), held.truth)

    begun, apart = _begun(spec, opened, outputs, before, columns, stored.store, answers, training)

    def finish(record: TrainingRecord) -> TrainedHead:
        # The encoder is again what it was before the first update, where the baseline is kept.
        begun_with = apart if apart and record.kept_epoch == 0 else begun
        model = begun_with.model
        learnt, scores = outputs.unstandardize(model.head).learn(
            model, stored, held, training.seed, opened.batch_tokens
        )
        phase("evaluating on the held-out rows")
        metrics = learnt.outcomes(scores, held.truth).report(seed=training.seed)
        used = DataUsed(columns, stored.part(outputs), held.part(outputs), split=data.validation is None)
        card = written_card(opened.model, record, used, Worth(metrics, learnt.limits))
        said, mistakes = learnt.findings(scores, held.truth, examples, held_out)
        notes = [*notes_on_training(record, len(held_out)), *said]
        return replace(begun_with, outputs=learnt, card={**card, **learnt.card(), "notes": notes}, mistakes=mistakes)

    texts = stored.store.texts
    size = training.rows_in_update(texts)
    objective = WindowObjective(
        begun.model,
        stored.store,
        answers,
        partial(validated, begun),
        batch_size=size,
        tokens=training.max_tokens,
        seed=training.seed,
        identity={"validation data": f"{held.digest} {held_answers.digest}", **outputs.identity},
        passes=passes_in_epoch(texts, size) if training.epochs is None else 1,
        baseline=_baseline(outputs, before, None if apart is None else partial(validated, apart)),
    )
    return Preparation(objective, finish, outputs.unit(stored.truth))


def _begun(
    spec: TaskSpec,
    opened: OpenedModel,
    outputs: HeadOutputs[Any, Any],
    before: TrainedHead | None,
    columns: object,
    store: WindowStore,
    answers: Answers,
    training: TrainingOptions,
) -> tuple[TrainedHead, TrainedHead | None]:
    """Return what is trained, and of pairs above a sentence embedder a linear model that also reads the texts apart."""
    if before is not None and outputs.continues(before.outputs):
        head = deepcopy(before.model.head)
        outputs.standardize(head)
        return TrainedHead.of(spec, opened, head, outputs, columns), None

    def started(reading: OpenedModel) -> TrainedHead:
        return TrainedHead.of(spec, reading, _started(reading, outputs, store, answers, training), outputs, columns)

    pairs = isinstance(columns, PairColumns) and opened.reads_mean
    return started(opened), started(opened.above_embedder(pairs=True)) if pairs else None


def _baseline(
    outputs: HeadOutputs[Any, Any], before: TrainedHead | None, apart: Callable[[], Validation] | None
) -> Baseline | None:
    """Return what there is before the first update.

    Args:
        outputs: What the head's outputs mean.
        before: The head that the model had.
        apart: Validates the linear model of texts that are read apart, where there is one.
    """
    if before is not None and outputs.continues(before.outputs):
        return Baseline(CONTINUED)
    if apart is not None:
        return Baseline(APART, 1.0, apart)
    return None if outputs.start_strength is None else Baseline(LINEAR)


def _started(
    opened: OpenedModel, outputs: HeadOutputs[Any, Any], store: WindowStore, answers: Answers, options: TrainingOptions
) -> ScoreHead:
    """Return a new head, begun at a linear model of the frozen encoder's hidden states where the outputs want that."""
    with seeded(options.seed):
        head = opened.checkpoint.new_score_head(outputs.head, outputs.size)
    if outputs.start_strength is None:
        return head
    encoder = opened.model.encoder
    head = head.to(opened.model.device, opened.head_dtype)
    with reporting(options.show_progress):
        phase("fitting a linear model to the frozen encoder's hidden states")
    start = LinearStart(outputs.start_strength, options.seed, options.max_tokens)
    start_head(HeadModel(encoder, head), store, answers, start)
    return head
