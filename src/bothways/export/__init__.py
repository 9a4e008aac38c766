"""Models for other programs: ONNX graphs that need no Python, and checkpoints that transformers opens.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.export.folder import FORMATS, Export, ExportFormat, export, export_checkpoint

__all__ = [
    "FORMATS",
    "Export",
    "ExportFormat",
    "export",
    "export_checkpoint",
]

_MODULES = {
    "folder": ("Export", "ExportFormat", "FORMATS", "export", "export_checkpoint"),
}
__getattr__ = loader(__name__, _MODULES)
