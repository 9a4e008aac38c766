"""`ClassifierConfidenceAnalyzer`: are probabilities calibrated on the user's texts, and low out of domain?

Overconfidence is compared with that of a calibrated model on the same number of rows, simulated by drawing labels from
the model's own probabilities (consistency resampling; Bröcker and Smith 2007).

Shapes: N texts, M foreign (out-of-domain) texts, D draws, R resamples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import ClassifierAnswers, answers, drawn_labelled
from bothways.audit.context import Context, Need
from bothways.audit.finding import Checked, Evidence, Finding, Rule, Rules, Severity
from bothways.audit.texts import FOREIGN
from bothways.evaluation.detectors import MaxSoftmax
from bothways.evaluation.intervals import bootstrap_estimates
from bothways.evaluation.out_of_domain import out_of_domain_report
from bothways.evaluation.report import Report, flat_estimates

_MAX_TEXTS = 300
_FOREIGN_TEXTS = 30
_DRAWS = 2000
# Less overconfidence is no fault, even if it is significant, since users would not notice it.
_MIN_GAP = 0.05
_SURE = 0.9
_MIN_TEXTS = 20
_RESAMPLES = 300
# AUROC of chance, and of a useful detector.
_CHANCE, _USEFUL = 0.5, 0.8
_Z = 0.43  # half width of a 95 % interval that a value needs beyond a threshold, to exceed it in four of five cases
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

_GUO = "Guo et al. 2017, On calibration of modern neural networks, arXiv:1706.04599"
_HENDRYCKS = "Hendrycks and Gimpel 2017, arXiv:1610.02136"
_HEIN = "Hein et al. 2019, Why ReLU networks yield high-confidence predictions far away, arXiv:1812.05720"

_GAP = "confidence is {gap:.3f} {side} accuracy"
RULES = Rules(
    "ClassifierConfidenceAnalyzer",
    Rule(
        "confidence-uncalibrated",
        Severity.LOW,
        "the probabilities are not calibrated",
        "Fit the model with validation rows, which calibrate it: bothways train --validation FILE.",
        (_GUO,),
    ),
    Rule(
        "confidence-no-detector",
        Severity.LOW,
        "the model has no detector for texts unlike its training texts",
        "Fit the model with held-out rows and the default detector, and refuse texts that are marked as out of domain.",
        (_HENDRYCKS,),
    ),
    Rule("confidence-distribution", Severity.INFO, "mean confidence {mean:.3f} on the texts"),
    Rule("confidence-calibration", Severity.INFO, _GAP, references=(_GUO,)),
    Rule(
        "confidence-overconfident",
        Severity.LOW,
        _GAP,
        "Calibrate the model on rows like these: fit it with validation data, or fit a temperature.",
        (_GUO,),
    ),
    Rule(
        "confidence-foreign-texts",
        Severity.LOW,
        "mean confidence {foreign:.3f} on foreign texts, {own:.3f} on the given ones{warning}",
        "Do not rely on low probabilities to recognise foreign texts; use an out-of-domain detector.",
        (_HENDRYCKS, _HEIN),
    ),
    Rule(
        "confidence-detector",
        Severity.LOW,
        "the model's out-of-domain detector ({kind}) has an AUROC of {auroc:.3f} on foreign texts",
        "Fit the detector again, or set its threshold with fit_threshold.",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    texts: tuple[str, ...]
    answered: ClassifierAnswers
    truth_N: NDArray[np.int64] | None
    without_labels: str  # the reason for missing labels; empty with labels


class ClassifierConfidenceAnalyzer:
    """Measures the confidence of a classifier on the user's texts and on foreign texts."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("classifier", "texts")
    rule: ClassVar[str] = (
        "fails if the model's detector ranks foreign texts worse than chance (upper end of the 95 % interval); low if "
        f"mean confidence exceeds accuracy by more than {_MIN_GAP:g} and by more than 99 % of draws of a calibrated "
        "model, or without calibration or detector"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield findings on calibration, overconfidence and foreign texts."""
        rng = context.rng(self.name)
        confidence = context.classifier.confidence
        if confidence.calibration is None:
            yield RULES.finding("confidence-uncalibrated", Evidence("calibration"))
        if confidence.out_of_domain is None:
            yield RULES.finding("confidence-no-detector", Evidence("out-of-domain detector"))
        texts, truth_N, reason = drawn_labelled(context, _MAX_TEXTS, rng)
        rows = _Rows(texts, answers(context, context.classifier, texts), truth_N, reason)
        yield _distribution(rows)
        if rows.truth_N is not None:
            yield _calibration(context, rows, rows.truth_N, rng)
        else:
            context.run.not_checked.append(f"calibration (needs {rows.without_labels.rstrip('.')})")
        yield from _foreign(context, rows, rng)


def _distribution(rows: _Rows) -> Finding:
    confidence_N = rows.answered.confidence_N
    mean = float(confidence_N.mean())
    details: dict[str, object] = {
        **{f"q{round(100 * each):02d}": float(np.quantile(confidence_N, each)) for each in _QUANTILES},
        "share_above_0.99": float((confidence_N > 0.99).mean()),
    }
    if rows.without_labels:
        details["calibration_not_measured"] = f"needs {rows.without_labels}"
    evidence = Evidence("mean confidence", mean, n=len(confidence_N), details=details)
    return RULES.finding("confidence-distribution", evidence, mean=mean)


def _calibration(context: Context, rows: _Rows, truth_N: NDArray[np.int64], rng: np.random.Generator) -> Finding:
    answered, confidence_N = rows.answered, rows.answered.confidence_N
    report: Report = context.classifier.fitted.outputs.outcomes(answered.scores, truth_N).report(seed=context.seed)
    metrics = {name: each for name, each in report.estimates.items() if name in ("accuracy", "ece", "mce", "nll")}
    gap_N = confidence_N - (answered.labels_N == truth_N).astype(np.float64)
    (gap,) = bootstrap_estimates(
        lambda counts_RN: (counts_RN @ gap_N / len(gap_N))[:, None], rows=len(gap_N), seed=context.seed
    )
    null_D = confidence_N.mean() - (rng.random((_DRAWS, len(confidence_N))) < confidence_N).mean(axis=1)
    chance = float(np.quantile(null_D, 0.99))
    threshold = max(_MIN_GAP, chance)
    smallest = threshold + _Z * (gap.high - gap.low) / 2
    context.run.checks.append(
        Checked("confidence minus accuracy", len(gap_N), "labelled texts", "gap", smallest if smallest < 1 else None)
    )
    return RULES.finding(
        "confidence-overconfident" if gap.value > threshold else "confidence-calibration",
        Evidence.of(
            "mean confidence minus accuracy",
            gap,
            threshold,
            f"a calibrated model on as many rows: 99 % of {_DRAWS:,} draws stay below {chance:.3f}",
            len(gap_N),
            **flat_estimates(metrics),
        ),
        gap=abs(gap.value),
        side="above" if gap.value > 0 else "below",
    )


def _foreign(context: Context, rows: _Rows, rng: np.random.Generator) -> Iterator[Finding]:
    """Yield findings on three kinds of input: foreign texts, shuffled words of the user's texts, random characters."""
    texts = {
        "foreign": list(FOREIGN),
        "mixed words": mixed(rows.texts, rng),
        "random characters": noise(rows.texts, rng),
    }
    answered = {name: answers(context, context.classifier, each) for name, each in texts.items()}
    # Mixed words have the vocabulary of the domain, so models need not recognise them: the AUROC leaves them out.
    evidence = context.classifier.fitted.outputs.evidence
    inside = evidence(rows.answered.scores)
    outside = evidence([*answered["foreign"].scores, *answered["random characters"].scores])
    score = MaxSoftmax().score
    yield _max_softmax(
        rows, answered, out_of_domain_report(score(inside), score(outside), resamples=_RESAMPLES, seed=context.seed)
    )
    detector = context.classifier.confidence.out_of_domain
    untold = "those out of domain are short texts of other domains and random characters"
    if len(rows.texts) < _MIN_TEXTS:
        untold = f"the AUROCs decide with {_MIN_TEXTS} given texts or more"
    context.run.checks.append(
        Checked("confidence in and out of domain", len(rows.texts) + len(FOREIGN) + _FOREIGN_TEXTS, untold=untold)
    )
    if detector is not None:
        score = detector.detector.score
        report = out_of_domain_report(
            score(inside), score(outside), threshold=detector.threshold, resamples=_RESAMPLES, seed=context.seed
        )
        yield _detector(rows, detector.detector.kind, report)


def _max_softmax(rows: _Rows, answered: Mapping[str, ClassifierAnswers], report: Report) -> Finding:
    own_N = rows.answered.confidence_N
    foreign_M = np.concatenate([answered["foreign"].confidence_N, answered["random characters"].confidence_N])
    unaware = len(own_N) >= _MIN_TEXTS and report.auroc.low < _CHANCE
    shares = {
        f"{name}: {measure}": value
        for name, each in answered.items()
        for measure, value in (
            ("mean confidence", float(each.confidence_N.mean())),
            (f"share above {_SURE}", float((each.confidence_N > _SURE).mean())),
        )
    }
    return RULES.finding(
        "confidence-foreign-texts",
        Evidence(
            "AUROC of 1 - max softmax, foreign against given texts",
            report.auroc.value,
            _CHANCE,
            "0.5 for a model as confident on foreign texts as on given ones; a fault if the interval starts below this",
            len(own_N) + len(foreign_M),
            {**shares, **_numbers(report)},
            fault_below=True,
        ),
        severity=Severity.LOW if unaware else Severity.INFO,
        foreign=foreign_M.mean(),
        own=own_N.mean(),
        warning=": the model may be as confident on unknown texts" if unaware else "",
    )


def _detector(rows: _Rows, kind: str, report: Report) -> Finding:
    severity = Severity.INFO
    if len(rows.texts) >= _MIN_TEXTS and report.auroc.high < _USEFUL:
        severity = Severity.MEDIUM if report.auroc.high < _CHANCE else Severity.LOW
    evidence = Evidence(
        "AUROC of the model's detector, foreign against given texts",
        report.auroc.value,
        _CHANCE,
        "an uninformative detector: 0.5",
        report.n + report.counts["n_out_of_domain"],
        {f"detector_{name}": value for name, value in _numbers(report).items()},
        fault_below=True,
    )
    return RULES.finding("confidence-detector", evidence, severity=severity, kind=kind, auroc=report.auroc.value)


def _numbers(report: Report) -> dict[str, float]:
    return flat_estimates(report.estimates) | {
        name: value for name, value in report.values.items() if value is not None
    }


def mixed(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return 30 texts of words drawn from the given texts, each as long as one of these (at most 40 words)."""
    words = [word for text in texts for word in text.split()] or ["word"]
    lengths = [max(1, min(40, len(text.split()))) for text in texts]
    return [" ".join(rng.choice(words, rng.choice(lengths))) for _ in range(_FOREIGN_TEXTS)]


def noise(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return 30 texts of random letters and digits, each with as many words as a given text (at most 20)."""
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
    lengths = [max(1, min(20, len(text.split()))) for text in texts]
    return [
        " ".join("".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(int(rng.choice(lengths))))
        for _ in range(_FOREIGN_TEXTS)
    ]
