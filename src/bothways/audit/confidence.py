"""`ClassifierConfidenceAnalyzer`: may the probabilities of a classifier be believed, on its own texts and on others?

Overconfidence is judged by what a calibrated model would show on as many rows: labels are drawn from the model's own
probabilities (consistency resampling; Bröcker and Smith 2007).

Shapes: N texts, D draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answering import ClassifierAnswers, answers, drawn, drawn_texts, quantiles
from bothways.audit.context import Context, Need, NeedUnmet
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.texts import FOREIGN
from bothways.evaluation import MaxSoftmax, Report, out_of_domain_report
from bothways.evaluation.intervals import bootstrap_estimates

_NAME = "ClassifierConfidenceAnalyzer"
_MOST = 300
_MADE = 30
_DRAWS = 2000
# Less overconfidence than this is no finding, however sure it is: users would not notice it.
_WORTH_A_FINDING = 0.05
_SURE = 0.9
_FEWEST = 20
_RESAMPLES = 300
# AUROC of a detector by chance, and of one that is of use.
_KNOWS_NOTHING, _USEFUL = 0.5, 0.8

_GUO = "Guo et al. 2017, On calibration of modern neural networks, arXiv:1706.04599"
_HENDRYCKS = "Hendrycks and Gimpel 2017, arXiv:1610.02136"
_HEIN = "Hein et al. 2019, Why ReLU networks yield high-confidence predictions far away, arXiv:1812.05720"


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The texts, their answers and, where there are any, their labels.

    Attributes:
        texts: The N texts.
        answered: The answers to them.
        truth_N: Indices of the right labels; None without.
        without_labels: Why there are none.
    """

    texts: tuple[str, ...]
    answered: ClassifierAnswers
    truth_N: NDArray[np.int64] | None
    without_labels: str = ""


class ClassifierConfidenceAnalyzer:
    """Analyzes the confidence of a classifier on the user's texts and on foreign ones."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Calibration, overconfidence and detection of foreign texts"
    needs: ClassVar[tuple[Need, ...]] = ("classifier", "texts")
    gains: ClassVar[tuple[Need, ...]] = ("labels",)
    cost: ClassVar[str] = "seconds for MiniLM"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield findings on calibration, overconfidence and foreign texts."""
        rng = context.rng(_NAME)
        yield from _learnt(context)
        rows = _rows(context, rng)
        yield _distribution(rows)
        if rows.truth_N is not None:
            yield from _calibration(context, rows, rows.truth_N, rng)
        yield from _foreign(context, rows, rng)


def _rows(context: Context, rng: np.random.Generator) -> _Rows:
    try:
        labelled = context.labelled
    except NeedUnmet as error:
        texts = drawn_texts(context, _MOST, rng)
        return _Rows(texts, answers(context, context.classifier, texts), None, str(error))
    kept = drawn(len(labelled.texts), _MOST, rng)
    texts = tuple(labelled.texts[number] for number in kept)
    return _Rows(texts, answers(context, context.classifier, texts), labelled.labels_N[kept])


def _learnt(context: Context) -> Iterator[Finding]:
    confidence = context.classifier.confidence
    if confidence.calibration is None:
        yield Finding(
            _NAME,
            Severity.LOW,
            "the probabilities are not calibrated",
            Evidence("calibration"),
            "confidence-uncalibrated",
            remedy="Fit the model with validation rows, which calibrate it: bothways train --validation FILE.",
            references=(_GUO,),
        )
    if confidence.out_of_domain is None:
        yield Finding(
            _NAME,
            Severity.LOW,
            "the model has no detector of texts unlike those of its training",
            Evidence("out-of-domain detector"),
            "confidence-no-detector",
            remedy="Fit it with held-out rows and the default detector, and refuse texts that it calls outside.",
            references=(_HENDRYCKS,),
        )


def _distribution(rows: _Rows) -> Finding:
    confidence_N = rows.answered.confidence_N
    mean = float(confidence_N.mean())
    details: dict[str, object] = {**quantiles(confidence_N), "share_above_0.99": float((confidence_N > 0.99).mean())}
    if rows.without_labels:
        details["calibration_not_measured"] = f"needs {rows.without_labels}"
    return Finding(
        _NAME,
        Severity.INFO,
        f"mean confidence {mean:.3f} on the texts",
        Evidence("mean confidence", mean, n=len(confidence_N), details=details),
        "confidence-distribution",
    )


def _calibration(
    context: Context, rows: _Rows, truth_N: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[Finding]:
    classifier, answered = context.classifier, rows.answered
    outcomes = classifier.outputs.outcomes(answered.scores, truth_N)
    report: Report = outcomes.report(seed=context.seed)
    wanted = {name: each for name, each in report.estimates.items() if name in ("accuracy", "ece", "mce", "nll")}
    numbers = {key: number for name, each in wanted.items() for key, number in each.named(name).items()}
    right_N = (answered.labels_N == truth_N).astype(np.float64)
    confidence_N = answered.confidence_N
    gap_N = confidence_N - right_N
    (gap,) = bootstrap_estimates(
        lambda counts_RN: (counts_RN @ gap_N / len(gap_N))[:, None], rows=len(gap_N), seed=context.seed
    )
    null_D = confidence_N.mean() - (rng.random((_DRAWS, len(confidence_N))) < confidence_N).mean(axis=1)
    chance = float(np.quantile(null_D, 0.99))
    threshold = max(_WORTH_A_FINDING, chance)
    over = gap.value > threshold
    yield Finding(
        _NAME,
        Severity.MEDIUM if over else Severity.INFO,
        f"confidence is {abs(gap.value):.3f} {'above' if gap.value > 0 else 'below'} accuracy",
        Evidence(
            "mean confidence minus accuracy",
            gap.value,
            threshold,
            f"a calibrated model on as many rows: 99 % of {_DRAWS:,} draws stay below {chance:.3f}",
            len(gap_N),
            {"low": gap.low, "high": gap.high, **numbers},
        ),
        "confidence-overconfident" if over else "confidence-calibration",
        remedy="Calibrate it on rows like these: fit it with validation data, or learn a temperature." if over else "",
        references=(_GUO,),
    )


def _foreign(context: Context, rows: _Rows, rng: np.random.Generator) -> Iterator[Finding]:
    """Ask foreign texts, words of the texts mixed up, and random characters."""
    made = {
        "foreign": list(FOREIGN),
        "mixed words": mixed(rows.texts, rng),
        "random characters": noise(rows.texts, rng),
    }
    answered = {name: answers(context, context.classifier, texts) for name, texts in made.items()}
    # Mixed words are of the domain's vocabulary: a model need not tell them from texts, so they are shown alone.
    outside = [*answered["foreign"].scores, *answered["random characters"].scores]
    evidence = context.classifier.outputs.evidence
    inside, elsewhere = evidence(rows.answered.scores), evidence(outside)
    score = MaxSoftmax().score
    yield _unaware(
        rows, answered, out_of_domain_report(score(inside), score(elsewhere), resamples=_RESAMPLES, seed=context.seed)
    )
    detector = context.classifier.confidence.out_of_domain
    if detector is not None:
        score = detector.detector.score
        found = out_of_domain_report(
            score(inside), score(elsewhere), threshold=detector.threshold, resamples=_RESAMPLES, seed=context.seed
        )
        yield _detector(rows, detector.kind, found)


def _unaware(rows: _Rows, answered: Mapping[str, ClassifierAnswers], found: Report) -> Finding:
    own = rows.answered.confidence_N
    confidence_M = np.concatenate([answered["foreign"].confidence_N, answered["random characters"].confidence_N])
    unaware = len(own) >= _FEWEST and found.auroc.low < _KNOWS_NOTHING
    title = f"mean confidence {confidence_M.mean():.3f} on foreign texts, {own.mean():.3f} on its own"
    shares = {
        f"{name}: {measure}": value
        for name, each in answered.items()
        for measure, value in (
            ("mean confidence", float(each.confidence_N.mean())),
            (f"share above {_SURE}", float((each.confidence_N > _SURE).mean())),
        )
    }
    return Finding(
        _NAME,
        Severity.LOW if unaware else Severity.INFO,
        title + (": the model may be as sure of what it does not know" if unaware else ""),
        Evidence(
            "AUROC of 1 - max softmax, foreign against own",
            found.auroc.value,
            _KNOWS_NOTHING,
            "a model that is as sure of foreign texts as of its own: 0.5; a finding where the interval reaches it",
            len(own) + len(confidence_M),
            {**shares, **_numbers(found)},
        ),
        "confidence-foreign-texts",
        remedy="Do not read a low probability as a warning of foreign texts; use an out-of-domain detector."
        if unaware
        else "",
        references=(_HENDRYCKS, _HEIN),
    )


def _detector(rows: _Rows, kind: str, found: Report) -> Finding:
    severity = Severity.INFO
    if len(rows.texts) >= _FEWEST and found.auroc.high < _USEFUL:
        severity = Severity.MEDIUM if found.auroc.high < _KNOWS_NOTHING else Severity.LOW
    return Finding(
        _NAME,
        severity,
        f"the model's own detector ({kind}) has an AUROC of {found.auroc.value:.3f} on foreign texts",
        Evidence(
            "AUROC of the model's detector, foreign against own",
            found.auroc.value,
            _KNOWS_NOTHING,
            "a detector that knows nothing: 0.5",
            found.n + found.counts["n_out_of_domain"],
            {f"detector_{name}": value for name, value in _numbers(found).items()},
        ),
        "confidence-detector",
        remedy="" if severity == Severity.INFO else "Fit the detector anew, or set its threshold: fit_threshold.",
    )


def _numbers(report: Report) -> dict[str, float]:
    numbers = {key: number for name, each in report.estimates.items() for key, number in each.named(name).items()}
    return numbers | {name: value for name, value in report.values.items() if value is not None}


def mixed(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return texts of words that are drawn from all of the texts, as long as those are."""
    words = [word for text in texts for word in text.split()] or ["word"]
    lengths = [max(1, min(40, len(text.split()))) for text in texts]
    return [" ".join(rng.choice(words, rng.choice(lengths))) for _ in range(_MADE)]


def noise(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return random letters in the place of words, as many as the texts have."""
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
    lengths = [max(1, min(20, len(text.split()))) for text in texts]
    return [
        " ".join("".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(int(rng.choice(lengths))))
        for _ in range(_MADE)
    ]
