"""Self-contained HTML reports: charts as inline SVG, and a page to set them in.

Drawing and rendering need the extra ``report``.
"""

from bothways.report.charts import (
    Bar,
    TrainLoss,
    ValidationScore,
    bars,
    learning_curve,
    reliability_diagram,
)
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

__all__ = [
    "Bar",
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
    "learning_curve",
    "reliability_diagram",
    "render",
    "write",
]
