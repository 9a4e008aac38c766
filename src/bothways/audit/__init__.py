"""Audits of trained models: detectors that say, with evidence, whether a model may be trusted."""

from bothways.audit.finding import AuditReport, DetectorResult, Evidence, Finding, Severity
from bothways.audit.registry import DETECTORS
from bothways.audit.scanning import scan

__all__ = ["DETECTORS", "AuditReport", "DetectorResult", "Evidence", "Finding", "Severity", "scan"]
