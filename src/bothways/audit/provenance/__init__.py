"""The files of a model: what is in them, whether it is what it says, and where it comes from. Needs no torch."""

from bothways.audit.provenance.checker import ModelProvenanceChecker

__all__ = ["ModelProvenanceChecker"]
