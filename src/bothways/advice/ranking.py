"""The order of recommended models, and the reasons for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from bothways.advice.cards import ModelCard
from bothways.advice.costs import find_config
from bothways.advice.dry import count_flops
from bothways.advice.facts import Measure, Score, published_facts
from bothways.advice.tasks import TaskAdvice
from bothways.choices import Constraint as Constraint
from bothways.encoder.config import EncoderConfig

CONSTRAINTS: tuple[Constraint, ...] = get_args(Constraint)
BASELINE = "google-bert/bert-base-uncased"
TEXT_TOKENS = 128
LONGEST = 8192  # of a text that figures are given for; more only where somebody asks what it costs


@dataclass(frozen=True, slots=True)
class Ranked:
    """One model that fits, with what speaks for and against it.

    Attributes:
        name: Its hub name.
        reasons: Why it stands where it stands.
        accuracy: Published, on the recommendation's yardstick, in percent; None where the catalogue has none.
        context: Most tokens that it reads at once; None where there is no limit.
        flops_per_token: Counted, at the recommendation's length.
        memory_mb: Of a process that reads one text, in MB: estimated; where it was measured, with batches of 8 texts.
        latency_ms: Of one text, measured; None where that was not asked for.
        tokens_per_second: Of a batch, measured; None likewise.
        estimated_latency_ms: Of one text, from its counted operations and the speed of a machine; None without one.
        estimated_tokens_per_second: Of a batch, likewise.
        training_mb: The least memory of a process that fine-tunes it with AdamW in float32, in MB: the runtime and five
            times the weights. Activations come on top.
        commit: On the hub: the one that is at hand, else one that the catalogue knows; None where neither does.
        at_hand: Whether it can be loaded without a download.
        command: How to get it on the command line; empty where it is at hand.
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
    commit: str | None = None
    at_hand: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True)
class ModelCandidate:
    """A model with what is known of it before anything is measured."""

    card: ModelCard
    score: Score | None
    figures: Ranked

    def length(self, wanted: int) -> int:
        """Tokens of a text that its figures are given for: as many as wanted, if it reads them at once."""
        return min(wanted, self.figures.context or wanted)


def in_order(candidates: Sequence[ModelCandidate], advice: TaskAdvice, constraint: Constraint) -> list[ModelCandidate]:
    """Candidates, the best first."""

    def key(candidate: ModelCandidate) -> tuple[float, ...]:
        embedder_last = advice.embeds and candidate.card.made_for != "embedding"
        return (float(embedder_last), *_ORDERS[constraint](candidate, candidates))

    return sorted(candidates, key=key)


def _by_accuracy(candidate: ModelCandidate, _: Sequence[ModelCandidate]) -> tuple[float, ...]:
    return (-(candidate.figures.accuracy or 0.0), candidate.figures.flops_per_token)


def _by_price(
    price: Callable[[Ranked], float],
) -> Callable[[ModelCandidate, Sequence[ModelCandidate]], tuple[float, ...]]:
    """Those that no other beats in price and accuracy first, the cheapest of them in front."""

    def order(candidate: ModelCandidate, all_of_them: Sequence[ModelCandidate]) -> tuple[float, ...]:
        beaten = _beaten_by(candidate, all_of_them, price) is not None
        return (float(beaten), price(candidate.figures), -(candidate.figures.accuracy or 0.0))

    return order


def _beaten_by(
    candidate: ModelCandidate, others: Sequence[ModelCandidate], price: Callable[[Ranked], float]
) -> ModelCandidate | None:
    """Return a model that is no dearer and no less accurate, and better in one of the two."""
    mine = (price(candidate.figures), -(candidate.figures.accuracy or 0.0))
    for other in others:
        theirs = (price(other.figures), -(other.figures.accuracy or 0.0))
        if theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1]:
            return other
    return None


def _by_pretraining(candidate: ModelCandidate, _: Sequence[ModelCandidate]) -> tuple[float, ...]:
    lineage = candidate.card.lineage
    return (float(lineage is None or not lineage.pretraining), candidate.figures.flops_per_token)


def _by_research(candidate: ModelCandidate, others: Sequence[ModelCandidate]) -> tuple[float, ...]:
    """Return the model of each lineage nearest to BERT-base, then the second nearest, the older first."""
    card = candidate.card
    without = card.lineage is None or not card.lineage.research
    relatives = [other for other in others if other.card.title == card.title]
    nearer = sorted(relatives, key=_from_base).index(candidate)
    return (float(without), float(nearer), float(card.year or 9999), _from_base(candidate))


def _from_base(candidate: ModelCandidate) -> float:
    _, base = find_config(BASELINE)
    return abs(candidate.figures.flops_per_token - flops_per_token(base, TEXT_TOKENS))


def _latency(figures: Ranked) -> float:
    return figures.flops_per_token if figures.latency_ms is None else figures.latency_ms


def _memory(figures: Ranked) -> float:
    return figures.memory_mb


def _arithmetic(figures: Ranked) -> float:
    return figures.flops_per_token


_PRICES: dict[Constraint, Callable[[Ranked], float]] = {
    "latency": _latency,
    "memory": _memory,
    "compute": _arithmetic,
}
_ORDERS: dict[Constraint, Callable[[ModelCandidate, Sequence[ModelCandidate]], tuple[float, ...]]] = {
    "accuracy": _by_accuracy,
    **{constraint: _by_price(price) for constraint, price in _PRICES.items()},
    "pretraining": _by_pretraining,
    "research": _by_research,
}


def with_reasons(
    candidate: ModelCandidate,
    others: Sequence[ModelCandidate],
    advice: TaskAdvice,
    constraint: Constraint,
    yardstick: Measure,
    free_mb: float | None = None,
) -> Ranked:
    """Return the figures of a candidate, with reasons; ``free_mb`` is what a machine has free for it."""
    figures, card, lineage = candidate.figures, candidate.card, candidate.card.lineage
    reasons = [_accuracy_reason(candidate, yardstick), _arithmetic_reason(figures)]
    if figures.latency_ms is not None and figures.tokens_per_second is not None:
        speed = f"{figures.latency_ms:,.1f} ms for one text, {figures.tokens_per_second:,.0f} tokens a second"
        reasons.append(f"measured here: {speed}, {figures.memory_mb:,.0f} MB at the most")
    else:
        reasons.append(f"about {figures.memory_mb:,.0f} MB to read one text{_training_memory(figures, free_mb)}")
        if figures.estimated_latency_ms is not None and figures.estimated_tokens_per_second is not None:
            reasons.append(
                f"estimated here: {figures.estimated_latency_ms:,.1f} ms for one text, "
                f"{figures.estimated_tokens_per_second:,.0f} tokens a second"
            )
    if constraint in _PRICES:
        reasons.append(_price_reason(candidate, _beaten_by(candidate, others, _PRICES[constraint])))
    if lineage is not None:
        extra = {"pretraining": lineage.pretraining, "research": lineage.research}.get(constraint, "")
        reasons += [extra] if extra else []
        reasons += [f"for it: {lineage.strengths[0]}", f"against it: {lineage.weaknesses[0]}"]
    if advice.embeds and card.made_for != "embedding":
        reasons.append("gives no useful sentence vectors before it is trained for that")
    return replace(figures, reasons=tuple(reasons))


def _training_memory(figures: Ranked, free_mb: float | None) -> str:
    too_much = free_mb is not None and figures.training_mb > free_mb
    return f", more than {figures.training_mb:,.0f} MB to fine-tune it" + ", which are not free here" * too_much


def _accuracy_reason(candidate: ModelCandidate, yardstick: Measure) -> str:
    if candidate.score is None:
        return f"the catalogue has no value of it for {yardstick}"
    source = published_facts().sources[candidate.score.source]
    return f"{yardstick.benchmark} {yardstick.split} accuracy {candidate.score.value:g} ({source})"


def _arithmetic_reason(figures: Ranked) -> str:
    _, baseline = find_config(BASELINE)
    ratio = figures.flops_per_token / flops_per_token(baseline, TEXT_TOKENS)
    return f"{figures.flops_per_token / 1e6:,.0f} MFLOPs a token, {ratio:.2f} times BERT-base"


def _price_reason(candidate: ModelCandidate, better: ModelCandidate | None) -> str:
    if better is None:
        return "no model here is both cheaper and more accurate"
    if candidate.score is None:
        return "stands behind models whose accuracy is known"
    return f"{better.card.name} is no dearer and no less accurate"


def flops_per_token(config: EncoderConfig, length: int) -> float:
    """Floating-point operations of a forward pass over one text, for each of its tokens."""
    return count_flops(config, 1, length) / length
