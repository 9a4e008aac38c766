"""`MembershipInferenceAuditor`: do a model's predictions reveal which rows it was trained on (its members)?

Carlini et al. 2022, arXiv:2112.03570: a mean over all rows hides an attack that is certain about a few, so the true
positive rate at low false positive rates is reported beside the AUC.

Shapes: N texts or rows, M members, C labels, H hidden, F features, S shadow models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bothways.audit.answers import (
    Numbers,
    answers,
    drawn,
    reference_classifier,
    reference_masked_lm,
    sentence_vectors,
    table_vectors,
)
from bothways.audit.context import Context, Need, NeedUnmet, Undecided
from bothways.audit.finding import Checked, Evidence, Finding, Rule, Rules, Severity
from bothways.data import Example, Row, read_rows
from bothways.data.known_rows import ALIKE, KnownRows
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.out_of_domain import auroc, out_of_domain_report
from bothways.tasks import FillMask, TextClassifier
from bothways.tasks.heads.linear_start import fit_linear
from bothways.text import Words

_MAX_ROWS, _MIN_ROWS = 300, 20
_SHADOWS = 16
_MASKS = 4
# Thresholds for the lower end of the AUC's interval. Published attacks have .66 to .90; .5 is chance. A leak comes from
# few rows or many epochs, not from tampering, so it is medium at most.
_MEDIUM, _LOW = 0.7, 0.6
# Share of a 95 % interval's width that a value needs beyond a threshold, for its lower end to exceed it 4 times in 5.
_Z = 0.71
_BY_WORDS = 0.6  # AUC of the words alone above which attacks prove little
_RESAMPLES = 500
_RATES = (0.01, 0.001)
_FEATURES, _FOLDS, _RIDGE = 512, 5, 10.0

_LIRA = "Carlini et al. 2022, Membership inference from first principles, arXiv:2112.03570"
_PAPERS: Mapping[str, tuple[str, ...]] = {
    "loss": ("Yeom et al. 2018, Privacy risk in machine learning, arXiv:1709.01604",),
    "highest softmax": ("Salem et al. 2019, ML-Leaks, arXiv:1806.01246",),
    "loss relative to the reference": (
        "Watson et al. 2022, Difficulty calibration in membership inference, arXiv:2111.08440",
    ),
    "likelihood ratio, offline": (_LIRA,),
    "likelihood ratio, online": (_LIRA,),
    "pseudo-likelihood": (
        "Mireshghallah et al. 2022, Membership inference of masked language models, arXiv:2203.03929",
    ),
    "pseudo-likelihood relative to the reference": ("Mireshghallah et al. 2022, arXiv:2203.03929",),
    "highest softmax of [MASK]": (),
}


def _rule_id(attack: str) -> str:
    return f"membership-{attack.replace(',', '').replace(' ', '-')}"


RULES = Rules(
    "MembershipInferenceAuditor",
    *(
        Rule(
            _rule_id(attack),
            Severity.LOW,
            f"{attack}: separates members from non-members with an AUC of {{auc:.2f}}",
            "Train for fewer updates or on more rows, with early stopping and weight decay; remove confidential rows; "
            "return labels without probabilities; use differential privacy if a guarantee is needed.",
            papers,
        )
        for attack, papers in _PAPERS.items()
    ),
)


# --- measures ---


@dataclass(frozen=True, slots=True)
class Separation:
    """The separation of members and non-members by one score."""

    auc: Estimate  # area under the ROC curve
    rates: dict[float, Estimate]  # True positive rate at each false positive rate
    chance: float  # 99 % quantile of the AUC under random membership

    @classmethod
    def of(cls, members_M: Numbers, others_N: Numbers, rng: np.random.Generator) -> "Separation":
        """Measure how well the scores separate members from non-members; a higher score means "member"."""
        seed = int(rng.integers(2**31))
        report = out_of_domain_report(others_N, members_M, resamples=_RESAMPLES, seed=seed)
        resampled = [
            (rng.choice(members_M, len(members_M)), rng.choice(others_N, len(others_N))) for _ in range(_RESAMPLES)
        ]
        rates = {}
        for rate in _RATES:
            values_R = [true_positives(some, others, rate) for some, others in resampled]
            low, high = np.quantile(values_R, [0.025, 0.975])
            rates[rate] = Estimate(true_positives(members_M, others_N, rate), float(low), float(high))
        everyone, cut = np.concatenate([members_M, others_N]), len(members_M)
        mixed = (rng.permutation(everyone) for _ in range(_RESAMPLES))
        chance = float(np.quantile([auroc(each[cut:], each[:cut]) for each in mixed], 0.99))
        return cls(report.auroc, rates, chance)

    def details(self) -> dict[str, float]:
        """Return the measures as flat JSON values."""
        numbers = self.auc.named("auc")
        for rate, each in self.rates.items():
            numbers |= each.named(f"tpr_at_{100 * rate:g}_percent_fpr")
        return numbers


def true_positives(members_M: Numbers, others_N: Numbers, rate: float) -> float:
    """Return the true positive rate at the lowest threshold whose false positive rate is at most ``rate``."""
    passing = int(rate * len(others_N))
    threshold = np.sort(others_N)[::-1][passing]
    return float((members_M > threshold).mean())


def blind_scores(texts: Sequence[str], member_N: NDArray[np.bool_], rng: np.random.Generator) -> Numbers:
    """Return cross-validated membership scores from the words alone, without the model.

    If these separate the two sets, the sets themselves differ and attacks prove little (Das et al. 2024, Blind
    baselines beat membership inference attacks for foundation models, arXiv:2406.16201).
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    words = [[word.lower() for word in Words.of_text(text).listed()] for text in texts]
    hashed = HashingVectorizer(analyzer=list, n_features=_FEATURES, binary=True, norm=None, alternate_sign=False)
    features_NF = np.c_[hashed.transform(words).toarray(), np.log1p([len(each) for each in words])]
    # Stratified, since a fold with more members than the others would get lower scores.
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=int(rng.integers(2**31)))
    scores_N: Numbers = cross_val_predict(Ridge(_RIDGE), features_NF, member_N.astype(float), cv=folds)
    return scores_N


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """The scores of shadow models: linear heads on frozen vectors, each trained on half of the rows.

    This is the likelihood ratio attack (LiRA; Carlini et al. 2022, arXiv:2112.03570), with few shadows and therefore
    one variance for all rows. Shadows are weaker and less confident than a fine-tuned model, so the model's scores are
    first mapped linearly to the shadows' scale; the map is fitted to all rows, without using membership.
    """

    out_N: Numbers  # mean score of each row by the shadows that were not trained on it
    in_N: Numbers  # mean score of each row by the shadows that were trained on it
    spread: float  # standard deviation of the scores behind ``out_N`` around their means

    def offline(self, scores_N: Numbers) -> Numbers:
        """Return the standard deviations by which scores exceed those of shadows that were not trained on the rows."""
        return (self._scaled(scores_N) - self.out_N) / self.spread

    def online(self, scores_N: Numbers) -> Numbers:
        """Return the log likelihood ratios of membership, for normal distributions with one variance."""
        gap_N = self.in_N - self.out_N
        ratios_N: Numbers = (self._scaled(scores_N) - (self.in_N + self.out_N) / 2) * gap_N / self.spread**2
        return ratios_N

    def _scaled(self, scores_N: Numbers) -> Numbers:
        """Scale the scores to the mean and deviation of the shadows' scores."""
        deviation = max(float(scores_N.std()), 1e-12)
        scaled_N: Numbers = (scores_N - scores_N.mean()) / deviation * self.out_N.std() + self.out_N.mean()
        return scaled_N


def train_shadows(
    vectors_NH: Numbers,
    labels_N: NDArray[np.int64],
    labels: int,
    count: int,
    rng: np.random.Generator,
    check_time: Callable[[], None],
) -> Shadows:
    """Train ``count`` shadow models in pairs, each pair on two complementary halves of the rows."""
    vectors, truth = torch.from_numpy(vectors_NH), torch.from_numpy(labels_N)
    member_SN, scores_SN = [], []
    for _ in range(count // 2):
        half_N = rng.permutation(len(labels_N)) < len(labels_N) // 2
        for inside_N in (half_N, ~half_N):
            check_time()
            chosen = torch.from_numpy(inside_N)
            loss = partial(cross_entropy, target=truth[chosen], reduction="sum")
            weight_CH, bias_C = fit_linear(vectors[chosen], labels, loss, units=float(inside_N.sum()))
            logits_NC = (vectors.to(weight_CH.dtype) @ weight_CH.T + bias_C).double().numpy()
            member_SN.append(inside_N)
            scores_SN.append(scaled_confidence(logits_NC, labels_N))
    member, scores = np.stack(member_SN), np.stack(scores_SN)
    out_N = np.where(member, 0.0, scores).sum(0) / (~member).sum(0)
    in_N = np.where(member, scores, 0.0).sum(0) / member.sum(0)
    spread = float(np.sqrt(((scores - out_N) ** 2)[~member].mean()))
    return Shadows(out_N, in_N, max(spread, 1e-6))


def scaled_confidence(logits_NC: Numbers, labels_N: NDArray[np.int64]) -> Numbers:
    """Return log(p / (1 - p)) of the right labels (N), which is nearly normal (Carlini et al. 2022, section V-A).

    It ranks rows as the loss does, without the ties of probabilities near 1.
    """
    rows = np.arange(len(labels_N))
    others_NC = logits_NC.astype(np.float64).copy()
    right_N = others_NC[rows, labels_N]
    others_NC[rows, labels_N] = -np.inf
    confidence_N: Numbers = right_N - np.logaddexp.reduce(others_NC, axis=1)
    return confidence_N


# --- the detector ---


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Members and non-members, members first."""

    texts: tuple[str, ...]
    labels_N: NDArray[np.int64] | None  # None for a masked language model
    member_N: NDArray[np.bool_]
    shared: int  # number of given non-members that are members or training rows; they are left out

    @classmethod
    def of(cls, context: Context, rng: np.random.Generator, *, labelled: bool) -> "_Rows":
        given = context.settings.get("non_members")
        if given is None:
            raise NeedUnmet(
                "non-members: rows of the same kind that the model was not trained on. Give them with --non-members, "
                "and the rows that it was trained on with --data."
            )
        members, member_labels = _read(context, context.rows or (), labelled=labelled)
        others, other_labels = _read(context, list(read_rows(given)), labelled=labelled)
        known = KnownRows.of(Example(text, None, 0) for text in members) | context.model.fitted.known.rows()
        apart = np.flatnonzero(known.find([Example(text, None, 0) for text in others]) < ALIKE)
        shared = len(others) - len(apart)
        inside = drawn(len(members), _MAX_ROWS, rng)
        outside = apart[drawn(len(apart), _MAX_ROWS, rng)]
        if min(len(inside), len(outside)) < _MIN_ROWS:
            raise Undecided(
                f"expected at least {_MIN_ROWS} members and {_MIN_ROWS} non-members, got {len(inside)} and "
                f"{len(outside)}{f' ({shared} given non-members are members)' if shared else ''}. Give more rows."
            )
        texts = tuple([members[number] for number in inside] + [others[number] for number in outside])
        labels_N = None
        if member_labels is not None and other_labels is not None:
            labels_N = np.concatenate([member_labels[inside], other_labels[outside]])
        return cls(texts, labels_N, np.arange(len(texts)) < len(inside), shared)


def _read(context: Context, rows: Sequence[Row], *, labelled: bool) -> tuple[list[str], NDArray[np.int64] | None]:
    """Return the texts that are not blank, and the indices of their labels."""
    if not labelled:
        return [text for text in context.read_texts(rows, "rows with texts") if text.strip()], None
    read = context.read_labelled(rows)
    return list(read.texts), read.labels_N


@dataclass(frozen=True, slots=True, eq=False)
class _Attack:
    """The scores of one attack; a higher score means "member"."""

    name: str
    scores_N: Numbers
    note: str = ""


class MembershipInferenceAuditor:
    """Tries to recognise the training rows of a classifier or a masked language model by its predictions."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("encoder", "texts")
    rule: ClassVar[str] = (
        f"fails if an attack separates members from non-members with an AUC above {_MEDIUM:g}; low above {_LOW:g} "
        "(lower ends of 95 % intervals), and low at most if the words alone separate them"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each attack."""
        rng = context.rng(self.name)
        model = _masked_lm(context)
        if model is None:
            _ = context.classifier  # raises `NeedUnmet` for other models
        rows = _Rows.of(context, rng, labelled=model is None)
        member_N = rows.member_N
        blind_N = blind_scores(rows.texts, member_N, rng)
        blind = Separation.of(blind_N[member_N], blind_N[~member_N], rng)
        attacks = _on_classifier(context, rows, rng) if model is None else _on_masked_lm(context, model, rows, rng)
        leaks = False
        for attack in attacks:
            context.check_time()
            measured = Separation.of(attack.scores_N[member_N], attack.scores_N[~member_N], rng)
            reach = _MEDIUM + _Z * (measured.auc.high - measured.auc.low)
            smallest = reach if reach < 1 else None
            context.run.checks.append(Checked(f"attack by {attack.name}", len(member_N), "rows", "AUC", smallest))
            finding = _finding(attack, measured, blind, rows)
            leaks = leaks or finding.severity > Severity.INFO
            yield finding
        if leaks and blind.auc.low > _BY_WORDS:
            raise Undecided(
                f"the words alone separate members from non-members (AUC {blind.auc.value:.2f}), so "
                "attacks prove little: give non-members drawn from the same source as the training rows."
            )


def _finding(attack: _Attack, measured: Separation, blind: Separation, rows: _Rows) -> Finding:
    auc, members = measured.auc, int(rows.member_N.sum())
    others = len(rows.member_N) - members
    severity = Severity.MEDIUM if auc.low > _MEDIUM else Severity.LOW if auc.low > _LOW else Severity.INFO
    if blind.auc.low > _BY_WORDS:
        severity = min(severity, Severity.LOW)
    details: dict[str, object] = {
        **measured.details(),
        "members": members,
        "non_members": others,
        "auc_of_the_words_alone": blind.auc.value,
    }
    if others * 0.001 < 1:
        details["few_rows"] = (
            f"with {others} non-members, a false positive rate below {1 / others:.2%} means no false positive"
        )
    if rows.shared:
        details["rows_of_both"] = rows.shared
    if attack.note:
        details["how"] = attack.note
    evidence = Evidence(
        f"AUC ({attack.name})",
        auc.value,
        _LOW,
        f"random membership: 99 % of draws stay below {measured.chance:.3f}; severity low if the interval lies above "
        ".6, medium if above .7",
        members + others,
        details,
    )
    return RULES.finding(_rule_id(attack.name), evidence, severity=severity, auc=auc.value)


# --- classifiers ---


def _on_classifier(context: Context, rows: _Rows, rng: np.random.Generator) -> Iterator[_Attack]:
    labels_N, labels = rows.labels_N, context.classifier.fitted.outputs.labels
    if labels_N is None:
        raise TypeError("expected labels for the rows of a classifier, got None")
    logits_NC = _logits(context, context.classifier, rows.texts)
    scores_N = scaled_confidence(logits_NC, labels_N)
    yield _Attack("loss", scores_N)
    log_NC = logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    yield _Attack("highest softmax", scaled_confidence(logits_NC, log_NC.argmax(axis=1)), "a naive attack: no labels")
    other = reference_classifier(context)
    if other is not None:
        numbers_N = np.array([other.fitted.outputs.labels.index(labels[number]) for number in labels_N])
        reference_N = _log_probability(_logits(context, other, rows.texts), numbers_N)
        yield _Attack("loss relative to the reference", _log_probability(logits_NC, labels_N) - reference_N)
    shadows = train_shadows(_vectors(context, rows.texts), labels_N, len(labels), _SHADOWS, rng, context.check_time)
    base = "encoder" if context.reference_name is not None else "embedding table, since no reference was given"
    note = f"{_SHADOWS} shadow models: linear heads on vectors of the {base}"
    yield _Attack("likelihood ratio, offline", shadows.offline(scores_N), note)
    yield _Attack("likelihood ratio, online", shadows.online(scores_N), note)


def _logits(context: Context, classifier: TextClassifier, texts: tuple[str, ...]) -> Numbers:
    """Return uncalibrated logits, since rounding in a calibration blurs differences between members and non-members."""
    answered = answers(context, classifier, texts)
    return np.concatenate([each.logits_RC for each in answered.scores]).astype(np.float64)


def _log_probability(logits_NC: Numbers, labels_N: NDArray[np.int64]) -> Numbers:
    right_N: Numbers = logits_NC[np.arange(len(labels_N)), labels_N] - np.logaddexp.reduce(logits_NC, axis=1)
    return right_N


def _vectors(context: Context, texts: tuple[str, ...]) -> Numbers:
    """Return vectors for the shadow models: from the reference's encoder, else from the model's embedding table.

    The hidden states of a fine-tuned model already reflect its members, so shadow models trained on them would hardly
    differ. Its embedding table has hardly moved.
    """
    alone = context.reference_name is None
    vectors = table_vectors(context.encoder) if alone else sentence_vectors(context.base_encoder)
    parts = []
    for start in range(0, len(texts), 64):
        context.check_time()
        parts.append(vectors(texts[start : start + 64]))
    return np.concatenate(parts)


# --- masked language models ---


def _masked_lm(context: Context) -> FillMask | None:
    """Return the model as a masked language model; None if it has another task."""
    try:
        model = context.model
    except NeedUnmet:
        if "masked_lm" not in context.encoder.family.heads:
            return None
        model = FillMask.from_pretrained(context.name, **context.open_options)
    return model if isinstance(model, FillMask) and model.has_head else None


def _on_masked_lm(context: Context, model: FillMask, rows: _Rows, rng: np.random.Generator) -> Iterator[_Attack]:
    own_N = _likelihoods(context, model, rows.texts)
    yield _Attack("pseudo-likelihood", own_N)
    other = reference_masked_lm(context)
    if other is not None:
        reference_N = _likelihoods(context, other, rows.texts)
        yield _Attack("pseudo-likelihood relative to the reference", own_N - reference_N)
    softmax_N = np.array([_highest_softmax(context, model, text, rng) for text in rows.texts])
    yield _Attack("highest softmax of [MASK]", softmax_N, f"a naive attack: mean over {_MASKS} random words")


def _likelihoods(context: Context, model: FillMask, texts: tuple[str, ...]) -> Numbers:
    """Return the mean log-probability of each text's tokens, each masked in turn."""
    means = []
    for text in texts:
        context.check_time()
        measured = model.pseudo_log_likelihood(text, show_progress=False)
        means.append(measured.log_likelihood / max(measured.tokens, 1))
    return np.array(means)


def _highest_softmax(context: Context, model: FillMask, text: str, rng: np.random.Generator) -> float:
    context.check_time()
    words = text.split()
    masked = [
        " ".join([*words[:number], "[MASK]", *words[number + 1 :]])
        for number in rng.permutation(len(words))[:_MASKS].tolist()
    ]
    predictions = model.predict(masked, top=1, show_progress=False)
    return float(np.mean([each.masks[0][0].probability for each in predictions]))
