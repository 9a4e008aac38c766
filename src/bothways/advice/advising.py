"""Recommendation of a model for a task under a constraint, with reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bothways.advice.cards import ModelCard, catalogue
from bothways.advice.costs import FLOAT32, RUNTIME_BYTES, TRAINING_COPIES, TRAINING_RUNTIME_BYTES, find_config
from bothways.advice.dry import inference_bytes
from bothways.advice.facts import Language, Measure, published_facts
from bothways.advice.hardware import Hardware
from bothways.advice.local_models import LocalModel
from bothways.advice.measuring import Measured, job_for, measure
from bothways.advice.ranking import (
    CONSTRAINTS,
    LONGEST,
    TEXT_TOKENS,
    Constraint,
    ModelCandidate,
    Ranked,
    flops_per_token,
    in_order,
    with_reasons,
)
from bothways.advice.tasks import Architecture, TaskAdvice, find_task
from bothways.errors import BothwaysError, InvalidInput
from bothways.progress import progress

# The one result that nearly all models of a language have in common.
YARDSTICKS: dict[Language, Measure] = {
    "english": Measure("MNLI", "accuracy, matched", "dev"),
    "multilingual": Measure("XNLI", "mean accuracy over 15 languages, trained in English", "test"),
    "french": Measure("XNLI", "accuracy in French", "test"),
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A model that does not fit, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation for a task.

    Attributes:
        task: The task, with the kind of model that it wants, why, and examples.
        constraint: What the ranking goes by.
        length: Tokens of a text that arithmetic and speed are given for.
        yardstick: What the accuracies are of; results of other benchmarks are in the catalogue.
        ranked: Models that fit, the best first; empty where the task does not want an encoder.
        left_out: Models that do not fit.
        notes: What else to know.
        at_hand: Models that can be loaded without a download.
        hardware: The machine that was taken into account; None without one.
    """

    task: TaskAdvice
    constraint: Constraint
    length: int
    yardstick: str
    ranked: tuple[Ranked, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    at_hand: tuple[LocalModel, ...] = ()
    hardware: Hardware | None = None

    @property
    def architecture(self) -> Architecture:
        """The kind of model that the task wants."""
        return self.task.architecture


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a model must not exceed.

    Attributes:
        latency_ms: Of one text; needs a measurement.
        memory_mb: Of a process that reads one text.
        context: Tokens that must be read at once.
        free_mb: As ``memory_mb``, because no more is free.

    Raises:
        InvalidInput: A limit is not above 0.
    """

    latency_ms: float | None = None
    memory_mb: float | None = None
    context: int | None = None
    free_mb: float | None = None

    def __post_init__(self) -> None:
        for name in ("latency_ms", "memory_mb", "context"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"the limit {name} must be above 0, but it is {value}.")

    def too_much(self, memory_mb: float, takes: str) -> str:
        """Why so much memory is too much; empty where it is not."""
        if self.memory_mb is not None and memory_mb > self.memory_mb:
            return f"{takes} {memory_mb:,.0f} MB, more than {self.memory_mb:,.0f}"
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
    language: Language = "english",
    most: int = 5,
    measured: bool = False,
    hardware: Hardware | None = None,
    at_hand: Sequence[LocalModel] = (),
    show_progress: bool | None = None,
) -> Recommendation:
    """First the kind of model that a task wants, then models in order, each with reasons.

    Args:
        task: Such as ``"classification"``; an unknown one gets a list of the known ones.
        constraint: What the order goes by.
        max_latency_ms: Longest time for one text; only a measurement can tell, so it needs ``measured``.
        max_memory_mb: Most memory of a process that reads one text, in MB of a million bytes.
        context: Tokens that must be read at once.
        language: Of the texts.
        most: Models to name.
        measured: Build the candidates at random weights, each in a process of its own, and go by their speed and
            memory on this machine.
        hardware: A machine to take into account, such as `this_machine()`: models that its free memory does not hold
            are left out, and the speed of the others is estimated.
        at_hand: Models that need no download, such as `find_local_models()`.
        show_progress: Force the progress bar on or off; by default it shows on a terminal only.

    Raises:
        InvalidInput: The task or constraint is unknown, a limit is not above 0, or a latency is given without
            ``measured``.
    """
    advice = find_task(task)
    limits = Limits(max_latency_ms, max_memory_mb, context, None if hardware is None else hardware.free_mb)
    if constraint not in CONSTRAINTS:
        raise InvalidInput(f"the constraint must be one of {', '.join(CONSTRAINTS)}, but it is {constraint!r}.")
    if language not in YARDSTICKS:
        raise InvalidInput(f"the language must be one of {', '.join(YARDSTICKS)}, but it is {language!r}.")
    if max_latency_ms is not None and not measured:
        raise InvalidInput("a limit on latency can only be judged on this machine: ask for a measurement as well.")
    if most < 1:
        raise InvalidInput(f"at least one model must be wanted, but most is {most}.")
    yardstick = YARDSTICKS[language]
    if advice.architecture != "encoder":
        nothing = Recommendation(advice, constraint, TEXT_TOKENS, str(yardstick), (), (), (_instead(advice),))
        return replace(nothing, at_hand=tuple(at_hand), hardware=hardware)
    wanted = min(context or TEXT_TOKENS, LONGEST)
    candidates, left_out, notes = _candidates(advice, constraint, limits, language, wanted)
    length = max((each.length(wanted) for each in candidates), default=wanted)
    ordered = in_order(candidates, advice, constraint)
    if measured:
        ordered, too_slow = _measured(ordered, limits, most, length, show_progress)
        left_out += too_slow
        ordered = in_order(ordered, advice, constraint)
    chosen = [_here(each, each.length(length), hardware, at_hand) for each in ordered[:most]]
    ranked = tuple(with_reasons(each, ordered, advice, constraint, yardstick, limits.free_mb) for each in chosen)
    if not ranked:
        notes.append("no model fits these limits: loosen one of them.")
    advised = Recommendation(advice, constraint, length, str(yardstick), ranked, tuple(left_out), tuple(notes))
    return replace(advised, at_hand=tuple(at_hand), hardware=hardware)


def _here(
    candidate: ModelCandidate, length: int, hardware: Hardware | None, at_hand: Sequence[LocalModel]
) -> ModelCandidate:
    """Return the candidate with what this machine makes of it: its speed, and how to get it."""
    figures, name = candidate.figures, candidate.card.name
    facts = published_facts().models.get(name)
    # The one that its name alone finds, before others.
    held = sorted((each for each in at_hand if each.name == name), key=lambda each: not each.by_name)
    known = (facts and facts.commit) or None
    figures = replace(figures, commit=held[0].commit if held else known, at_hand=bool(held))
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


def _instead(advice: TaskAdvice) -> str:
    return (
        f"This package has encoders only. For {advice.name} look at {', '.join(advice.models)}; "
        f"an encoder can {advice.encoder_part}."
    )


def _candidates(
    advice: TaskAdvice, constraint: Constraint, limits: Limits, language: Language, length: int
) -> tuple[list[ModelCandidate], list[LeftOut], list[str]]:
    fitting, left_out, notes = [], [], []
    cards = [card for card in catalogue() if _speaks(card, language) and card.made_for != "replacing tokens"]
    unbuilt = [card.name for card in cards if card.family is None]
    if unbuilt:
        notes.append(f"known of, but not built here: {', '.join(unbuilt)}.")
    cards = [card for card in cards if card.family is not None]
    if limits.context is not None and not any(_reads(card, limits.context) for card in cards):
        notes.append(f"no model here reads {limits.context} tokens at once; these read such texts in windows.")
        limits = replace(limits, context=None)
    for card in cards:
        candidate = _candidate(card, language, length)
        reason = _misfit(candidate, advice, constraint, limits)
        if reason:
            left_out.append(LeftOut(card.name, reason))
        else:
            fitting.append(candidate)
    return fitting, left_out, notes


def _speaks(card: ModelCard, language: Language) -> bool:
    return card.language == language or (card.language == "multilingual" and language == "french")


def _reads(card: ModelCard, tokens: int) -> bool:
    return card.shape is None or card.shape.context is None or card.shape.context >= tokens


def _candidate(card: ModelCard, language: Language, length: int) -> ModelCandidate:
    _, config = find_config(card.name)
    score = next((score for score in card.scores if score.measure == YARDSTICKS[language]), None)
    parameters = 0 if card.counted is None else card.counted.parameters
    length = min(length, config.max_length or length)
    memory = RUNTIME_BYTES + parameters * FLOAT32 + inference_bytes(config, 1, length)
    figures = Ranked(
        name=card.name,
        reasons=(),
        accuracy=None if score is None else score.value,
        context=config.max_length,
        flops_per_token=flops_per_token(config, length),
        memory_mb=memory / 1e6,
        training_mb=(TRAINING_RUNTIME_BYTES + TRAINING_COPIES * parameters * FLOAT32) / 1e6,
    )
    return ModelCandidate(card, score, figures)


def _misfit(candidate: ModelCandidate, advice: TaskAdvice, constraint: Constraint, limits: Limits) -> str:
    """Why a model does not fit, before anything is measured; empty where it does."""
    card, figures = candidate.card, candidate.figures
    if limits.context is not None and not _reads(card, limits.context):
        return f"reads {figures.context} tokens at once, fewer than {limits.context}"
    if too_much := limits.too_much(figures.memory_mb, "needs about"):
        return too_much
    if constraint == "pretraining" and card.lineage is not None and card.lineage.distilled:
        return "is distilled, so it needs a trained teacher first"
    if advice.cased and card.cased is False:
        return "reads lower case only, and case tells names apart"
    return ""


def _measured(
    candidates: Sequence[ModelCandidate], limits: Limits, most: int, length: int, show: bool | None
) -> tuple[list[ModelCandidate], list[LeftOut]]:
    """Measure candidates in their order until enough of them fit."""
    fitting: list[ModelCandidate] = []
    left_out: list[LeftOut] = []
    with progress("measuring", len(candidates), show=show) as bar:
        for candidate in candidates:
            if len(fitting) == most:
                break
            bar.advance(0, candidate.card.name)
            try:
                found = measure(job_for(candidate.card.name, lengths=(candidate.length(length),)))
            except BothwaysError as error:
                left_out.append(LeftOut(candidate.card.name, f"could not be measured: {error}"))
            else:
                updated = replace(candidate, figures=_updated(candidate.figures, found))
                reason = _too_much(updated.figures, limits)
                if reason:
                    left_out.append(LeftOut(candidate.card.name, reason))
                else:
                    fitting.append(updated)
            bar.advance(1)
    return fitting, left_out


def _updated(figures: Ranked, found: Measured) -> Ranked:
    (speed,) = found.speeds
    memory = figures.memory_mb if found.peak_bytes is None else found.peak_bytes / 1e6
    return replace(figures, memory_mb=memory, latency_ms=speed.latency_ms, tokens_per_second=speed.tokens_per_second)


def _too_much(figures: Ranked, limits: Limits) -> str:
    if limits.latency_ms is not None and (figures.latency_ms or 0) > limits.latency_ms:
        return f"takes {figures.latency_ms:,.0f} ms for one text, more than {limits.latency_ms:,.0f}"
    return limits.too_much(figures.memory_mb, "took")
