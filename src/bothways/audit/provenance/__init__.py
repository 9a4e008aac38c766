"""The files of a model: their content, whether it is what it claims to be, and where it comes from. Needs no torch."""

from bothways.audit.provenance.checker import ModelProvenanceChecker, sign, write_manifest

__all__ = ["ModelProvenanceChecker", "sign", "write_manifest"]
