"""Self-contained HTML reports with charts as inline SVG.

Drawing and rendering need the extra ``report``. Names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.report.audit import audit_page as audit_page
    from bothways.report.charts import Bar as Bar
    from bothways.report.charts import bars as bars
    from bothways.report.charts import confusion_matrix as confusion_matrix
    from bothways.report.charts import learning_curve as learning_curve
    from bothways.report.charts import reliability_diagram as reliability_diagram
    from bothways.report.drawing import require_extra as require_extra
    from bothways.report.evaluation import Evaluated as Evaluated
    from bothways.report.evaluation import evaluation_page as evaluation_page
    from bothways.report.evaluation import key_figure as key_figure
    from bothways.report.explanation import explanation_page as explanation_page
    from bothways.report.explanation import explanation_picture as explanation_picture
    from bothways.report.judging import ranking_page as ranking_page
    from bothways.report.judging import score_page as score_page
    from bothways.report.mistakes import wrong_predictions as wrong_predictions
    from bothways.report.page import Block as Block
    from bothways.report.page import Code as Code
    from bothways.report.page import Figure as Figure
    from bothways.report.page import KeyFigure as KeyFigure
    from bothways.report.page import KeyFigures as KeyFigures
    from bothways.report.page import Page as Page
    from bothways.report.page import Paragraph as Paragraph
    from bothways.report.page import Section as Section
    from bothways.report.page import Table as Table
    from bothways.report.page import TextItem as TextItem
    from bothways.report.page import TextList as TextList
    from bothways.report.page import render as render
    from bothways.report.page import write as write

_MODULES = {
    "audit": ("audit_page",),
    "charts": (
        "Bar",
        "bars",
        "confusion_matrix",
        "learning_curve",
        "reliability_diagram",
    ),
    "drawing": ("require_extra",),
    "evaluation": ("Evaluated", "evaluation_page", "key_figure"),
    "explanation": ("explanation_page", "explanation_picture"),
    "judging": ("ranking_page", "score_page"),
    "mistakes": ("wrong_predictions",),
    "page": (
        "Block",
        "Code",
        "Figure",
        "KeyFigure",
        "KeyFigures",
        "Page",
        "Paragraph",
        "Section",
        "Table",
        "TextItem",
        "TextList",
        "render",
        "write",
    ),
}
__getattr__ = loader(__name__, _MODULES)
