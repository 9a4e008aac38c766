"""Audits of trained models: detectors of tampering, leaks and weaknesses, with evidence."""

from typing import TYPE_CHECKING

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.scanning import DETECTORS, scan
from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.audit.backdoor.candidates import suspicious_inputs
    from bothways.audit.backdoor.poisoned import audit_data as audit_data
    from bothways.audit.provenance import sign as sign
    from bothways.audit.provenance import write_manifest as write_manifest
    from bothways.audit.provenance.checker import verified as verified
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

# Imported on first use: some need torch or the signing library, and a scan of files needs neither.
_MODULES = {
    "backdoor.candidates": ("suspicious_inputs",),
    "backdoor.poisoned": ("audit_data",),
    "provenance": ("sign", "write_manifest"),
    "provenance.checker": ("verified",),
    "shift": ("compare_texts",),
}
__getattr__ = loader(__name__, _MODULES)
