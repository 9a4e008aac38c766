"""Audits of trained models: detectors that say, with evidence, whether a model may be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.registry import DETECTORS
from bothways.audit.scanning import scan

if TYPE_CHECKING:
    from bothways.audit.backdoor.inputs import suspicious_inputs
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

# A scan of files needs no torch, which these do.
_LATE = {"compare_texts": "bothways.audit.comparing", "suspicious_inputs": "bothways.audit.backdoor.inputs"}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
