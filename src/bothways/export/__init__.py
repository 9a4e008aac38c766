"""Models for other programs: ONNX graphs that need no Python, and checkpoints that transformers opens."""

from bothways.export.folder import FORMATS, Export, ExportFormat, export, export_checkpoint

__all__ = ["FORMATS", "Export", "ExportFormat", "export", "export_checkpoint"]
