"""`MembershipInferenceAuditor`: can somebody tell from a model's answers which rows it was trained on?

Shapes: N texts, M members, C labels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answering import answers
from bothways.audit.context import Context, Need, NeedUnmet, Undecided
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.membership.estimates import Separation, blind_scores
from bothways.audit.membership.rows import Sides, sides
from bothways.audit.membership.shadows import scaled_confidence, train_shadows
from bothways.audit.vectors import sentence_vectors, table_vectors

if TYPE_CHECKING:
    from bothways.tasks import FillMask, TextClassifier

Numbers = NDArray[np.float64]

_NAME = "MembershipInferenceAuditor"
_SHADOWS = 16
_MASKS = 4
# By the lower end of the interval of the AUC. Published attacks have .66 to .90; .5 is chance.
# A leak tells of few rows or many passes, not of a model that somebody has tampered with: it is medium at most.
_SEVERITIES = ((0.7, Severity.MEDIUM), (0.6, Severity.LOW))
_BY_WORDS = 0.6

_PAPERS: Mapping[str, str] = {
    "loss": "Yeom et al. 2018, Privacy risk in machine learning, arXiv:1709.01604",
    "highest softmax": "Salem et al. 2019, ML-Leaks, arXiv:1806.01246",
    "loss relative to the reference": "Watson et al. 2022, Difficulty calibration in membership inference, "
    "arXiv:2111.08440",
    "likelihood ratio, offline": "Carlini et al. 2022, Membership inference from first principles, arXiv:2112.03570",
    "likelihood ratio, online": "Carlini et al. 2022, Membership inference from first principles, arXiv:2112.03570",
    "pseudo-likelihood": "Mireshghallah et al. 2022, Membership inference of masked language models, arXiv:2203.03929",
    "pseudo-likelihood relative to the reference": "Mireshghallah et al. 2022, arXiv:2203.03929",
}
_REMEDY = (
    "Train fewer updates or on more rows, with early stopping and weight decay; leave out rows that nobody may know; "
    "give labels without probabilities; train with differential privacy where a guarantee is needed."
)


@dataclass(frozen=True, slots=True, eq=False)
class _Attack:
    """Scores of one attack, the higher the more likely a member.

    Attributes:
        name: The name in reports.
        scores_N: The scores.
        note: Remark on the way they were made.
    """

    name: str
    scores_N: Numbers
    note: str = ""


class MembershipInferenceAuditor:
    """Attacks the privacy of the training rows of a classifier or a masked language model."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Rows of the training that answers give away"
    needs: ClassVar[tuple[Need, ...]] = ("encoder", "texts")
    gains: ClassVar[tuple[Need, ...]] = ("labels", "reference")
    cost: ClassVar[str] = "half a minute for MiniLM, minutes for a masked language model"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each attack."""
        rng = context.rng(_NAME)
        model = _masked_lm(context)
        if model is None:
            _ = context.classifier  # says what is missing
        rows = sides(context, rng, labelled=model is None)
        member_N = rows.member_N
        blind_N = blind_scores(rows.texts, member_N, rng)
        blind = Separation.of(blind_N[member_N], blind_N[~member_N], rng)
        differ = blind.auc.low > _BY_WORDS
        attacks = _on_classifier(context, rows, rng) if model is None else _on_masked_lm(context, model, rows, rng)
        found = False
        for attack in attacks:
            context.check_time()
            measured = Separation.of(attack.scores_N[member_N], attack.scores_N[~member_N], rng)
            finding = _finding(attack, measured, blind, rows)
            found = found or finding.severity > Severity.INFO
            yield finding
        if found and differ:
            raise Undecided(
                f"members and non-members differ by their words alone (AUC {blind.auc.value:.2f}), so attacks say "
                "little: give non-members drawn from the same source as the training rows."
            )


def _finding(attack: _Attack, measured: Separation, blind: Separation, rows: Sides) -> Finding:
    auc, members = measured.auc, int(rows.member_N.sum())
    others = len(rows.member_N) - members
    severity = next((each for least, each in _SEVERITIES if auc.low > least), Severity.INFO)
    if blind.auc.low > _BY_WORDS:
        severity = min(severity, Severity.LOW)
    details: dict[str, Any] = {
        **measured.details(),
        "members": members,
        "non_members": others,
        "auc_of_the_words_alone": blind.auc.value,
    }
    if others * 0.001 < 1:
        details["few_rows"] = (
            f"of {others} non-members, a rate below {1 / others:.2%} is read where none of them passes"
        )
    if rows.shared:
        details["rows_of_both"] = rows.shared
    if attack.note:
        details["how"] = attack.note
    return Finding(
        _NAME,
        severity,
        f"{attack.name}: members are told from others with an AUC of {auc.value:.2f}",
        Evidence(
            f"AUC ({attack.name})",
            auc.value,
            _SEVERITIES[-1][0],
            f"membership drawn by lot: 99 % of draws stay below {measured.chance:.3f}; low and medium where the "
            "interval lies above .6 and .7",
            members + others,
            details,
        ),
        f"membership-{attack.name.replace(',', '').replace(' ', '-')}",
        remedy=_REMEDY if severity > Severity.INFO else "",
        references=(_PAPERS[attack.name],) if attack.name in _PAPERS else (),
    )


# --- classifiers ---


def _on_classifier(context: Context, rows: Sides, rng: np.random.Generator) -> Iterator[_Attack]:
    labels_N, labels = rows.labels_N, context.classifier.labels
    if labels_N is None:
        raise TypeError("a classifier's rows have labels")
    logits_NC = _logits(context, context.classifier, rows.texts)
    scores_N = scaled_confidence(logits_NC, labels_N)
    yield _Attack("loss", scores_N)
    log_NC = logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    yield _Attack("highest softmax", scaled_confidence(logits_NC, log_NC.argmax(axis=1)), "the naive attack: no labels")
    other = _reference_classifier(context)
    if other is not None:
        numbers_N = np.array([other.labels.index(labels[number]) for number in labels_N])
        theirs_N = _log_probability(_logits(context, other, rows.texts), numbers_N)
        yield _Attack("loss relative to the reference", _log_probability(logits_NC, labels_N) - theirs_N)
    vectors_NH = _vectors(context, rows.texts)
    shadows = train_shadows(vectors_NH, labels_N, len(labels), _SHADOWS, rng, context.check_time)
    base = "encoder" if context.reference_name is not None else "embedding table, for want of a reference"
    note = f"{_SHADOWS} shadow models: linear heads on vectors of the {base}"
    yield _Attack("likelihood ratio, offline", shadows.offline(scores_N), note)
    yield _Attack("likelihood ratio, online", shadows.online(scores_N), note)


def _logits(context: Context, classifier: "TextClassifier", texts: tuple[str, ...]) -> Numbers:
    """Return uncalibrated logits: calibration brings members and others nearer to each other by rounding alone."""
    answered = answers(context, classifier, texts)
    return np.concatenate([each.logits_RC for each in answered.scores]).astype(np.float64)


def _log_probability(logits_NC: Numbers, labels_N: NDArray[np.int64]) -> Numbers:
    right_N: Numbers = logits_NC[np.arange(len(labels_N)), labels_N] - np.logaddexp.reduce(logits_NC, axis=1)
    return right_N


def _reference_classifier(context: Context) -> "TextClassifier | None":
    """Return the reference where it is a classifier with the same labels."""
    from bothways.tasks import TextClassifier

    if context.reference_name is None or not isinstance(context.reference, TextClassifier):
        return None
    same = set(context.reference.labels) == set(context.classifier.labels)
    return context.reference if same else None


def _vectors(context: Context, texts: tuple[str, ...]) -> Numbers:
    """Return the vectors that shadow models stand on: of the reference's encoder, else of the model's embedding table.

    The hidden states of a model that was fine-tuned hold what it learnt of its members, and shadows on them see little:
    its table has hardly moved.
    """
    alone = context.reference_name is None
    vectors = table_vectors(context.encoder) if alone else sentence_vectors(context.base_encoder)
    parts = []
    for start in range(0, len(texts), 64):
        context.check_time()
        parts.append(vectors(texts[start : start + 64]))
    return np.concatenate(parts)


# --- masked language models ---


def _masked_lm(context: Context) -> "FillMask | None":
    """Return the model as a masked language model; None where it is one of another task."""
    from bothways.tasks import FillMask

    try:
        model = context.model
    except NeedUnmet:
        if "masked_lm" not in context.encoder.family.heads:
            return None
        model = FillMask.from_pretrained(context.name, **context.open_options)
    return model if isinstance(model, FillMask) and model.has_head else None


def _on_masked_lm(context: Context, model: "FillMask", rows: Sides, rng: np.random.Generator) -> Iterator[_Attack]:
    own_N = _likelihoods(context, model, rows.texts)
    yield _Attack("pseudo-likelihood", own_N)
    if context.reference_name is not None and "masked_lm" in context.base_encoder.family.heads:
        from bothways.tasks import FillMask

        other = FillMask.from_pretrained(context.reference_name, **context.open_options)
        if other.has_head:
            theirs_N = _likelihoods(context, other, rows.texts)
            yield _Attack("pseudo-likelihood relative to the reference", own_N - theirs_N)
    softmax_N = np.array([_highest_softmax(context, model, text, rng) for text in rows.texts])
    yield _Attack("highest softmax of [MASK]", softmax_N, f"the naive attack: mean over {_MASKS} words that are drawn")


def _likelihoods(context: Context, model: "FillMask", texts: tuple[str, ...]) -> Numbers:
    """Return the mean log-probability of each text's tokens, each masked in turn."""
    means = []
    for text in texts:
        context.check_time()
        found = model.pseudo_log_likelihood(text, show_progress=False)
        means.append(found.log_likelihood / max(found.tokens, 1))
    return np.array(means)


def _highest_softmax(context: Context, model: "FillMask", text: str, rng: np.random.Generator) -> float:
    """Return the mean over some masked words of the highest probability in their place."""
    context.check_time()
    words = text.split()
    masked = [
        " ".join([*words[:number], "[MASK]", *words[number + 1 :]])
        for number in rng.permutation(len(words))[:_MASKS].tolist()
    ]
    found = model.predict(masked, top=1, show_progress=False)
    return float(np.mean([each.masks[0][0].probability for each in found]))
