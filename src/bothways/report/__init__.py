"""Self-contained HTML reports: charts as inline SVG, and a page to set them in.

The charts need the extra ``report``; the page itself needs nothing.
"""

from bothways.report.curves import Bar, TrainLoss, ValidationScore, bars, learning_curve
from bothways.report.grouped import BarGroup, grouped_bars
from bothways.report.matrices import attention_map, attention_pair, confusion_matrix
from bothways.report.page import (
    Block,
    Code,
    Fact,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    TextItem,
    TextList,
    render,
    write,
)
from bothways.report.reliability import reliability_diagram

__all__ = [
    "Bar",
    "BarGroup",
    "Block",
    "Code",
    "Fact",
    "Figure",
    "KeyFigure",
    "KeyFigures",
    "Page",
    "Paragraph",
    "Section",
    "Table",
    "TextItem",
    "TextList",
    "TrainLoss",
    "ValidationScore",
    "attention_map",
    "attention_pair",
    "bars",
    "confusion_matrix",
    "grouped_bars",
    "learning_curve",
    "reliability_diagram",
    "render",
    "write",
]
