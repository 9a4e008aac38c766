"""Audits of trained models: detectors of tampering, leaks and weaknesses, with evidence."""

from typing import TYPE_CHECKING

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.scanning import DETECTORS, scan
from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.audit.backdoor.candidates import suspicious_inputs
    from bothways.audit.shift import compare_texts

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

# A scan of files needs no torch, which these do.
__getattr__ = loader(
    __name__, {"compare_texts": "bothways.audit.shift", "suspicious_inputs": "bothways.audit.backdoor.candidates"}
)
