"""Attacks on the privacy of training rows, and the detector that runs them."""

from bothways.audit.membership.auditor import MembershipInferenceAuditor

__all__ = ["MembershipInferenceAuditor"]
