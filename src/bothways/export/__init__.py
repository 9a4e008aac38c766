"""Models for other programs: ONNX graphs that need no Python, and checkpoints that transformers opens.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.export.folder import Export, ExportFormat, export

__all__ = ["Export", "ExportFormat", "export"]

_MODULES = {"folder": ("Export", "ExportFormat", "export")}
__getattr__ = loader(__name__, _MODULES)
