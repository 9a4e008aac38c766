"""Recommendation of models for a task under a constraint, with reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bothways.advice.cards import Language, ModelCard, catalogue, find_config, published_facts
from bothways.advice.costs import (
    FLOAT32,
    RUNTIME_BYTES,
    TRAINING_COPIES,
    TRAINING_RUNTIME_BYTES,
    fine_tuning_flops,
    flops_per_token,
    inference_bytes,
)
from bothways.advice.hardware import Hardware, training_flops
from bothways.advice.local_models import LocalModel
from bothways.advice.measuring import job_for, measure
from bothways.advice.ranking import (
    CONSTRAINTS,
    MAX_TEXT_TOKENS,
    TEXT_TOKENS,
    YARDSTICKS,
    Constraint,
    FineTuning,
    ModelCandidate,
    Ranked,
    in_order,
    published_accuracy,
    with_reasons,
)
from bothways.advice.tasks import TaskAdvice, find_task
from bothways.errors import BothwaysError, InvalidInput, one_of
from bothways.progress import duration, progress

TRAINING_ROWS, TRAINING_HOURS = 2000, 2.0
_NAMED = 3  # models to name of those that come last


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A model that exceeds a limit or does not suit the task, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation for a task.

    Attributes:
        task: The task, with the kind of model that it needs, why, and examples.
        constraint: Criterion for ranking the models.
        length: Text length in tokens for operations and speed.
        yardstick: Benchmark, split and metric of the accuracies; the catalogue also has results on other benchmarks.
        ranked: Models that fit, the best first; empty if the task needs another kind of model.
        left_out: Models that exceed a limit or do not suit the task.
        notes: Remarks, such as a limit that no model meets.
        local_models: Models that load without a download.
        hardware: The machine whose memory and speed were considered, or None.
        training_rows: Number of texts for the time of fine-tuning.
        max_training_hours: The user's time; models that take longer on the hardware come last.
    """

    task: TaskAdvice
    constraint: Constraint
    length: int
    yardstick: str
    ranked: tuple[Ranked, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    local_models: tuple[LocalModel, ...] = ()
    hardware: Hardware | None = None
    training_rows: int = TRAINING_ROWS
    max_training_hours: float = TRAINING_HOURS


@dataclass(frozen=True, slots=True)
class _Limits:
    latency_ms: float | None = None
    memory_mb: float | None = None
    context: int | None = None
    training_rows: int = TRAINING_ROWS
    training_hours: float = TRAINING_HOURS
    hardware: Hardware | None = None

    def __post_init__(self) -> None:
        for name in ("latency_ms", "memory_mb", "context", "training_rows", "training_hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"the limit {name} must be above 0, got {value}.")

    @property
    def free_mb(self) -> float | None:
        return None if self.hardware is None else self.hardware.free_mb

    def excess(self, memory_mb: float, takes: str) -> str:
        """Return the reason why the memory is too much; empty if it is not."""
        if self.memory_mb is not None and memory_mb > self.memory_mb:
            return f"{takes} {memory_mb:,.0f} MB, above the limit of {self.memory_mb:,.0f}"
        if self.free_mb is not None and memory_mb > self.free_mb:
            return f"{takes} {memory_mb:,.0f} MB, more than the {self.free_mb:,.0f} MB that are free here"
        return ""


def recommend(
    task: str,
    constraint: Constraint = "accuracy",
    *,
    max_latency_ms: float | None = None,
    max_memory_mb: float | None = None,
    context: int | None = None,
    training_rows: int = TRAINING_ROWS,
    max_training_hours: float = TRAINING_HOURS,
    language: Language = "english",
    most: int = 5,
    measured: bool = False,
    hardware: Hardware | None = None,
    local_models: Sequence[LocalModel] = (),
    show_progress: bool | None = None,
) -> Recommendation:
    """Recommend the kind of model that a task needs, and rank models for it, each with reasons.

    Args:
        task: A task such as ``"classification"``; the error for an unknown one lists the known ones.
        constraint: Criterion for ranking the models.
        max_latency_ms: Maximum time for one text; needs ``measured``.
        max_memory_mb: Maximum memory of a process that reads one text, in MB of a million bytes.
        context: Number of tokens that a model must read at once.
        training_rows: Number of texts to fine-tune on.
        max_training_hours: Time for fine-tuning. Models that would take longer on the hardware come last.
        language: Language of the texts.
        most: Maximum number of models to recommend.
        measured: Measure speed and memory on this machine, with each candidate built with random weights in a process
            of its own.
        hardware: A machine, such as `this_machine()`. Models that exceed its free memory are left out; the speed of the
            others and the time to fine-tune them are estimated. On this machine, two layers of each are timed for that.
        local_models: Models that need no download, such as `find_local_models()`.
        show_progress: Force the progress bar on or off; by default it shows on a terminal only.

    Raises:
        InvalidInput: The task or constraint is unknown, a limit is not above 0, or a latency is given without
            ``measured``.
    """
    advice = find_task(task)
    limits = _Limits(max_latency_ms, max_memory_mb, context, training_rows, max_training_hours, hardware)
    _check_choices(constraint, language, most)
    if max_latency_ms is not None and not measured:
        raise InvalidInput("a limit on latency needs a measurement on this machine: add measured=True (--measure).")
    empty = _without_models(advice, constraint, language, limits, local_models)
    if advice.architecture != "encoder":
        return replace(empty, notes=(advice.beyond_encoders,))
    return _with_models(empty, limits, language, most, measured=measured, show=show_progress)


def _without_models(
    advice: TaskAdvice,
    constraint: Constraint,
    language: Language,
    limits: _Limits,
    local_models: Sequence[LocalModel],
) -> Recommendation:
    return Recommendation(
        advice,
        constraint,
        TEXT_TOKENS,
        str(YARDSTICKS[language]),
        local_models=tuple(local_models),
        hardware=limits.hardware,
        training_rows=limits.training_rows,
        max_training_hours=limits.training_hours,
    )


def _with_models(
    empty: Recommendation, limits: _Limits, language: Language, most: int, *, measured: bool, show: bool | None
) -> Recommendation:
    """Add the models for the task: those that fit the limits, ranked with reasons, and those left out."""
    advice, constraint, hardware, local = empty.task, empty.constraint, empty.hardware, empty.local_models
    tokens = min(limits.context or TEXT_TOKENS, MAX_TEXT_TOKENS)
    candidates, left_out, notes = _candidates(advice, constraint, limits, language, tokens)
    length = max((each.length(tokens) for each in candidates), default=tokens)
    tuning = FineTuning(limits.training_rows, limits.training_hours, length, limits.free_mb)
    ordered = in_order(candidates, advice, constraint)
    if hardware is not None:
        best = [each.card.name for each in ordered]
        ordered = _trainable_first(ordered, advice, constraint, hardware, tuning, most, show)
        notes += _last(sorted(ordered, key=lambda each: best.index(each.card.name)), tuning)
    if measured:
        ordered, too_slow = _measured(ordered, limits, most, length, show)
        left_out += too_slow
        ordered = in_order(ordered, advice, constraint)
    chosen = [_here(each, each.length(length), hardware, local) for each in ordered[:most]]
    yardstick = YARDSTICKS[language]
    ranked = tuple(with_reasons(each, ordered, advice, constraint, yardstick, tuning) for each in chosen)
    if not ranked:
        notes.append("no model fits these limits: relax one of them.")
    return replace(empty, length=length, ranked=ranked, left_out=tuple(left_out), notes=tuple(notes))


def _check_choices(constraint: str, language: str, most: int) -> None:
    one_of("constraint", constraint, CONSTRAINTS)
    one_of("language", language, YARDSTICKS)
    if most < 1:
        raise InvalidInput(f"most must be at least 1, got {most}.")


def _candidates(
    advice: TaskAdvice, constraint: Constraint, limits: _Limits, language: Language, length: int
) -> tuple[list[ModelCandidate], list[LeftOut], list[str]]:
    fitting, left_out, notes = [], [], []
    languages = {language, "multilingual"} if language == "french" else {language}
    cards = [card for card in catalogue() if card.language in languages and card.made_for != "replacing tokens"]
    if limits.context is not None and not any(_reads(card, limits.context) for card in cards):
        notes.append(f"no model reads {limits.context} tokens at once: use a recommended one with windows.")
        limits = replace(limits, context=None)
    for card in cards:
        if limits.context is not None and not _reads(card, limits.context):
            reason = f"reads {card.counted.context} tokens at once, fewer than the required {limits.context}"
        else:
            candidate = _candidate(card, language, length)
            reason = _misfit(candidate, advice, constraint, limits)
            fitting += [] if reason else [candidate]
        if reason:
            left_out.append(LeftOut(card.name, reason))
    return fitting, left_out, notes


def _reads(card: ModelCard, tokens: int) -> bool:
    return card.counted.context is None or card.counted.context >= tokens


def _candidate(card: ModelCard, language: Language, length: int) -> ModelCandidate:
    _, config = find_config(card.name)
    score, weights = published_accuracy(card, language), card.counted.parameters * FLOAT32
    length = min(length, config.max_length or length)
    figures = Ranked(
        name=card.name,
        reasons=(),
        accuracy=None if score is None else score.value,
        context=config.max_length,
        flops_per_token=flops_per_token(config, length),
        memory_mb=(RUNTIME_BYTES + weights + inference_bytes(config, 1, length)) / 1e6,
        training_mb=(TRAINING_RUNTIME_BYTES + TRAINING_COPIES * weights) / 1e6,
    )
    return ModelCandidate(card, score, figures)


def _misfit(candidate: ModelCandidate, advice: TaskAdvice, constraint: Constraint, limits: _Limits) -> str:
    """Return the reason why a model does not fit, before any measurement; empty if it fits."""
    card = candidate.card
    if excess := limits.excess(candidate.figures.memory_mb, "needs about"):
        return excess
    if constraint == "pretraining" and card.lineage is not None and card.lineage.distilled:
        return "is distilled, so it needs a trained teacher first"
    if advice.cased and card.cased is False:
        return "ignores case, which this task needs"
    return ""


def _trainable_first(
    candidates: Sequence[ModelCandidate],
    advice: TaskAdvice,
    constraint: Constraint,
    hardware: Hardware,
    tuning: FineTuning,
    most: int,
    show: bool | None,
) -> list[ModelCandidate]:
    """Estimate the time to fine-tune each candidate, and return those first that can be trained.

    On this machine the first ``most`` are timed, each on two layers; their order, and so the first ones, may change.
    """

    def timed(candidate: ModelCandidate, flops: float) -> ModelCandidate:
        _, config = find_config(candidate.card.name)
        seconds = fine_tuning_flops(config, tuning.rows, candidate.length(tuning.length)) / flops
        figures = replace(candidate.figures, training_seconds=seconds)
        ready = advice.ready or (advice.embeds and candidate.card.made_for == "embedding")
        return replace(candidate, figures=replace(figures, trainable=ready or not tuning.excess(figures)))

    ordered = in_order([timed(each, hardware.flops_batch) for each in candidates], advice, constraint)
    known = set() if hardware.here else {each.card.name for each in candidates}
    with progress("timing a training step", show=show) as bar:
        while (new := next((each for each in ordered[:most] if each.card.name not in known), None)) is not None:
            bar.advance(1, new.card.name)
            known.add(new.card.name)
            flops = training_flops(find_config(new.card.name)[1])
            ordered = in_order([timed(each, flops) if each is new else each for each in ordered], advice, constraint)
    return ordered


def _last(candidates: Sequence[ModelCandidate], tuning: FineTuning) -> list[str]:
    """Return a remark on the models that come last although they are the best by the constraint."""
    late = [each for each in candidates if not each.figures.trainable]
    if not late:
        return []
    first = ", ".join(f"{each.card.name} ({duration(each.figures.training_seconds or 0)})" for each in late[:_NAMED])
    more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    which = "all models" if len(late) == len(candidates) else f"{len(late)} models come last: they"
    return [
        f"{which} need more than {tuning.hours:g} h or more than the free memory to be fine-tuned here on "
        f"{tuning.rows:,} texts of {tuning.length:,} tokens: {first}{more}. Other numbers: training_rows "
        "(--training-rows), max_training_hours (--max-training-hours)."
    ]


def _measured(
    candidates: Sequence[ModelCandidate], limits: _Limits, most: int, length: int, show: bool | None
) -> tuple[list[ModelCandidate], list[LeftOut]]:
    """Measure candidates in order until enough of them fit."""
    fitting: list[ModelCandidate] = []
    left_out: list[LeftOut] = []
    with progress("measuring", len(candidates), show=show) as bar:
        for candidate in candidates:
            if len(fitting) == most:
                break
            name = candidate.card.name
            bar.advance(0, name)
            try:
                found = measure(job_for(name, lengths=(candidate.length(length),)))
            except BothwaysError as error:
                left_out.append(LeftOut(name, f"could not be measured: {error}"))
            else:
                (speed,), limit = found.speeds, limits.latency_ms
                latency, rate = speed.latency_ms, speed.tokens_per_second
                memory = candidate.figures.memory_mb if found.peak_bytes is None else found.peak_bytes / 1e6
                if limit is not None and latency > limit:
                    left_out.append(LeftOut(name, f"takes {latency:,.0f} ms a text, above the limit of {limit:,.0f}"))
                elif excess := limits.excess(memory, "took"):
                    left_out.append(LeftOut(name, excess))
                else:
                    figures = replace(candidate.figures, memory_mb=memory, latency_ms=latency, tokens_per_second=rate)
                    fitting.append(replace(candidate, figures=figures))
            bar.advance(1)
    return fitting, left_out


def _here(
    candidate: ModelCandidate, length: int, hardware: Hardware | None, local_models: Sequence[LocalModel]
) -> ModelCandidate:
    """Add the estimated speed on the hardware, the commit, and the command to download the model."""
    figures, name = candidate.figures, candidate.card.name
    facts = published_facts().models.get(name)
    # A model that loads by its name alone comes first.
    held = sorted((each for each in local_models if each.name == name), key=lambda each: not each.by_name)
    known = (facts and facts.commit) or None
    figures = replace(figures, commit=held[0].commit if held else known, local=bool(held))
    if not held:
        pinned = f" --revision {known}" if known else ""
        pickled = " --allow-pickle" if facts and facts.pickled else ""
        figures = replace(figures, command=f"bothways models {name}{pinned} --download{pickled}")
    if hardware is not None:
        figures = replace(
            figures,
            estimated_latency_ms=figures.flops_per_token * length / hardware.flops_one * 1e3,
            estimated_tokens_per_second=hardware.flops_batch / figures.flops_per_token,
        )
    return replace(candidate, figures=figures)
