"""Checks of a model's files without torch: their content, their claims, their signature and their origin."""

from bothways.audit.provenance.checker import ModelProvenanceChecker, sign, write_manifest

__all__ = ["ModelProvenanceChecker", "sign", "write_manifest"]
