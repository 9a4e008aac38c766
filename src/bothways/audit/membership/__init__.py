"""Attacks on the privacy of training rows, and the detector that runs them."""

from bothways.audit.membership.auditor import MembershipInferenceAuditor
from bothways.audit.membership.estimates import Separation, blind_scores, true_positives
from bothways.audit.membership.shadows import Shadows, scaled_confidence, train_shadows

__all__ = [
    "MembershipInferenceAuditor",
    "Separation",
    "Shadows",
    "blind_scores",
    "scaled_confidence",
    "train_shadows",
    "true_positives",
]
