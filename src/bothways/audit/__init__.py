"""Audits of trained models: detectors that say, with evidence, whether a model may be trusted."""

from typing import TYPE_CHECKING

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.registry import DETECTORS
from bothways.audit.scanning import scan

if TYPE_CHECKING:
    from bothways.audit.backdoor.candidates import suspicious_inputs
    from bothways.audit.comparing import compare_texts

__all__ = [
    "DETECTORS",
    "AuditReport",
    "DetectorResult",
    "Evidence",
    "Finding",
    "Severity",
    "compare_texts",
    "scan",
    "suspicious_inputs",
]


def __getattr__(name: str) -> object:
    # A scan of files needs no torch, which these do.
    if name == "compare_texts":
        from bothways.audit.comparing import compare_texts

        return compare_texts
    if name == "suspicious_inputs":
        from bothways.audit.backdoor.candidates import suspicious_inputs

        return suspicious_inputs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
