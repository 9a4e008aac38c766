"""The order of recommended models, and the reasons for each model's rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from bothways.advice.cards import Language, Measure, ModelCard, Score, find_config, published_facts
from bothways.advice.costs import flops_per_token
from bothways.advice.tasks import TaskAdvice
from bothways.choices import Constraint as Constraint
from bothways.progress import duration

CONSTRAINTS: tuple[Constraint, ...] = get_args(Constraint)
BASELINE = "google-bert/bert-base-uncased"
TEXT_TOKENS = 128
MAX_TEXT_TOKENS = 8192  # figures for longer texts are given only on request

# For each language, the one benchmark with published results of nearly all of its models.
YARDSTICKS: dict[Language, Measure] = {
    "english": Measure("MNLI", "accuracy, matched", "dev"),
    "multilingual": Measure("XNLI", "mean accuracy over 15 languages, trained in English", "test"),
    "french": Measure("XNLI", "accuracy in French", "test"),
}


@dataclass(frozen=True, slots=True)
class Ranked:
    """A recommended model with its figures.

    Attributes:
        name: Its hub name.
        reasons: Why it has its rank.
        accuracy: Published accuracy on the benchmark in `Recommendation.yardstick`, in percent; None if unpublished.
        context: Maximum tokens read at once; None without a limit.
        flops_per_token: Operations per token, counted for texts of the recommendation's ``length``.
        memory_mb: Memory of a process in MB, estimated for one text, or measured with batches of 8 texts.
        latency_ms: Measured time for one text; None without a measurement.
        tokens_per_second: Measured speed of a batch; None without a measurement.
        estimated_latency_ms: Time for one text, from its operations and the hardware's speed; None without hardware.
        estimated_tokens_per_second: Speed of a batch, estimated in the same way; None without hardware.
        training_mb: Minimum memory of a process that fine-tunes it with AdamW in float32, in MB, without activations.
        training_seconds: Estimated time to fine-tune it on the hardware; None without hardware.
        trainable: False if that takes longer than the given time, or more than the free memory; such models come last.
        commit: Hub commit of the local copy, else the commit in the catalogue; None if neither is known.
        local: True if it loads without a download.
        command: The command to download it; empty if it is local.
    """

    name: str
    reasons: tuple[str, ...]
    accuracy: float | None
    context: int | None
    flops_per_token: float
    memory_mb: float
    latency_ms: float | None = None
    tokens_per_second: float | None = None
    estimated_latency_ms: float | None = None
    estimated_tokens_per_second: float | None = None
    training_mb: float = 0.0
    training_seconds: float | None = None
    trainable: bool = True
    commit: str | None = None
    local: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True)
class FineTuning:
    """The fine-tuning that a user has in mind, and the limits of time and memory."""

    rows: int  # number of training texts
    hours: float  # the time that the user has
    length: int  # tokens of a text
    free_mb: float | None = None  # free memory of the machine; None if unknown

    def excess(self, figures: Ranked) -> str:
        """Return the reason why a model cannot be fine-tuned; empty if it can."""
        if self.free_mb is not None and figures.training_mb > self.free_mb:
            return "more than the free memory"
        late = figures.training_seconds is not None and figures.training_seconds > 3600 * self.hours
        return f"longer than {self.hours:g} h" if late else ""


@dataclass(frozen=True, slots=True)
class ModelCandidate:
    """A model with its figures before any measurement."""

    card: ModelCard
    score: Score | None
    figures: Ranked

    def length(self, tokens: int) -> int:
        """Return the text length that the figures refer to: ``tokens``, or the model's limit if that is less."""
        return min(tokens, self.figures.context or tokens)


def published_accuracy(card: ModelCard, language: Language) -> Score | None:
    """Return a model's score on the benchmark of a language in `YARDSTICKS`; None if unpublished."""
    return next((score for score in card.scores if score.measure == YARDSTICKS[language]), None)


def in_order(candidates: Sequence[ModelCandidate], advice: TaskAdvice, constraint: Constraint) -> list[ModelCandidate]:
    """Return the candidates, best first; those that cannot be trained come last, the quickest of them first."""

    def key(candidate: ModelCandidate) -> tuple[float, ...]:
        figures = candidate.figures
        last = 0.0 if figures.trainable else 1.0 + (figures.training_seconds or 0.0)
        other_than_embedder = advice.embeds and candidate.card.made_for != "embedding"
        return (last, float(other_than_embedder), *_key(candidate, candidates, constraint))

    return sorted(candidates, key=key)


def _key(candidate: ModelCandidate, candidates: Sequence[ModelCandidate], constraint: Constraint) -> tuple[float, ...]:
    figures, lineage = candidate.figures, candidate.card.lineage
    accuracy = figures.accuracy or 0.0
    match constraint:
        case "accuracy":
            return (-accuracy, figures.flops_per_token)
        case "pretraining":
            return (float(lineage is None or not lineage.pretraining), figures.flops_per_token)
        case "research":
            # First the model of each lineage nearest to BERT-base in cost, then the second nearest, oldest first.
            relatives = [other for other in candidates if other.card.title == candidate.card.title]
            nearer = sorted(relatives, key=_from_base).index(candidate)
            without = lineage is None or not lineage.research
            return (float(without), float(nearer), float(candidate.card.year), _from_base(candidate))
        case _:
            # Pareto-optimal models in price and accuracy first, from cheap to expensive.
            price = _PRICES[constraint]
            return (float(_beaten_by(candidate, candidates, price) is not None), price(figures), -accuracy)


def _beaten_by(
    candidate: ModelCandidate, others: Sequence[ModelCandidate], price: Callable[[Ranked], float]
) -> ModelCandidate | None:
    """Return a model that is better in price or accuracy, and not worse in the other; None if there is none."""
    mine = (price(candidate.figures), -(candidate.figures.accuracy or 0.0))
    for other in others:
        theirs = (price(other.figures), -(other.figures.accuracy or 0.0))
        if theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1]:
            return other
    return None


def _from_base(candidate: ModelCandidate) -> float:
    _, base = find_config(BASELINE)
    return abs(candidate.figures.flops_per_token - flops_per_token(base, TEXT_TOKENS))


_PRICES: dict[Constraint, Callable[[Ranked], float]] = {
    "latency": lambda figures: figures.flops_per_token if figures.latency_ms is None else figures.latency_ms,
    "memory": lambda figures: figures.memory_mb,
    "compute": lambda figures: figures.flops_per_token,
}


def with_reasons(
    candidate: ModelCandidate,
    others: Sequence[ModelCandidate],
    advice: TaskAdvice,
    constraint: Constraint,
    yardstick: Measure,
    tuning: FineTuning,
) -> Ranked:
    """Return the figures of a candidate with reasons."""
    figures, card, lineage = candidate.figures, candidate.card, candidate.card.lineage
    _, baseline = find_config(BASELINE)
    ratio = figures.flops_per_token / flops_per_token(baseline, TEXT_TOKENS)
    arithmetic = f"{figures.flops_per_token / 1e6:,.0f} MFLOPs a token, {ratio:.2f} times BERT-base"
    reasons = [_accuracy_reason(candidate, yardstick), arithmetic]
    if figures.latency_ms is not None and figures.tokens_per_second is not None:
        speed = f"{figures.latency_ms:,.1f} ms for one text, {figures.tokens_per_second:,.0f} tokens a second"
        reasons.append(f"measured here: {speed}, {figures.memory_mb:,.0f} MB at most")
    else:
        free = tuning.free_mb
        too_much = ", which exceeds the free memory" if free is not None and figures.training_mb > free else ""
        memory = f"more than {figures.training_mb:,.0f} MB to fine-tune it{too_much}"
        reasons.append(f"about {figures.memory_mb:,.0f} MB to read one text, {memory}")
        if figures.estimated_latency_ms is not None and figures.estimated_tokens_per_second is not None:
            reasons.append(
                f"estimated here: {figures.estimated_latency_ms:,.1f} ms for one text, "
                f"{figures.estimated_tokens_per_second:,.0f} tokens a second"
            )
    if figures.training_seconds is not None:
        texts = f"{tuning.rows:,} texts of {candidate.length(tuning.length):,} tokens"
        late = "" if figures.trainable else f": {tuning.excess(figures)}, so it comes last"
        reasons.append(f"estimated here: {duration(figures.training_seconds)} to fine-tune it on {texts}{late}")
    if constraint in _PRICES:
        reasons.append(_price_reason(candidate, _beaten_by(candidate, others, _PRICES[constraint])))
    if lineage is not None:
        extra = {"pretraining": lineage.pretraining, "research": lineage.research}.get(constraint, "")
        reasons += [extra] if extra else []
        reasons += [f"strength: {lineage.strengths[0]}", f"weakness: {lineage.weaknesses[0]}"]
    if advice.embeds and card.made_for != "embedding":
        reasons.append("gives no useful sentence vectors before it is trained for that")
    return replace(figures, reasons=tuple(reasons))


def _accuracy_reason(candidate: ModelCandidate, yardstick: Measure) -> str:
    if candidate.score is None:
        return f"no published value for {yardstick} in the catalogue"
    source = published_facts().sources[candidate.score.source]
    return f"{yardstick.benchmark} {yardstick.split} accuracy {candidate.score.value:g} ({source})"


def _price_reason(candidate: ModelCandidate, better: ModelCandidate | None) -> str:
    if better is None:
        return "no model here is both cheaper and more accurate"
    if candidate.score is None:
        return "ranked behind models with a published accuracy"
    return f"{better.card.name} is at least as cheap and as accurate"
