"""The files of a model: what is in them, whether it is what it says, and where it comes from. Needs no torch."""

from bothways.audit.provenance.checker import ModelProvenanceChecker
from bothways.audit.provenance.manifest import write_manifest
from bothways.audit.provenance.signing import sign

__all__ = ["ModelProvenanceChecker", "sign", "write_manifest"]
