"""Options of training for how far a model's answers can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import Calibration, Columns, Detector, File, Format, Target, usage_error

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.labelling.trusting import TrustingTask
    from bothways.training.record import TrainingRecord


@Parameter(name="*", group="Trust (learnt on the held-out rows)")
@dataclass(frozen=True, slots=True)
class TrustOptions:
    """How probabilities are calibrated, and what tells texts from elsewhere."""

    calibration: Calibration = "auto"
    """'auto' keeps the temperature, which changes no prediction, unless another method is clearly better."""
    detector: Detector = "mahalanobis"
    """What tells texts from elsewhere, where one label is predicted; mahalanobis_layers reads every layer."""
    out_of_domain: File | None = None
    """Rows from elsewhere, without labels, to draw the border by; else 95 % of the held-out rows lie inside."""


AS_USUAL = TrustOptions()


def with_trust(options: "FitOptions", trust: TrustOptions) -> "FitOptions":
    """The options of ``fit`` with those of trust."""
    settings = replace(
        options["settings"],
        calibration=None if trust.calibration == "none" else trust.calibration,
        detector=None if trust.detector == "none" else trust.detector,
    )
    return {**options, "settings": settings}


def rows_from_elsewhere(
    trust: TrustOptions, target: Target, columns: Sequence[Columns], format_: Format | None
) -> "list[Row] | None":
    """The rows to draw the border by, read and looked at before a training whose result would be lost otherwise.

    Args:
        trust: Where they are; None is returned where they are nowhere.
        target: What is predicted.
        columns: Columns of each text of a row.
        format_: Of the file.

    Raises:
        CycloptsError: There will be no border to draw.
        InvalidInput: The rows are not usable; the message says where.
    """
    from bothways.data import read_rows, text_at

    if trust.out_of_domain is None:
        return None
    if target != "single" or trust.detector == "none":
        raise usage_error(
            "--out-of-domain draws the border of a detector, which takes one label for each text (--target single) and "
            "a --detector other than none."
        )
    rows = list(read_rows(trust.out_of_domain, format=format_))
    for row in rows:
        for column in columns:
            text_at(row, column)
    return rows


def draw_border(task: "TrustingTask", others: "list[Row] | None", record: "TrainingRecord") -> None:
    """Draw the border of the domain by rows from elsewhere, if there are any and a model to draw it for."""
    if others is not None and not record.finished_no_epoch:
        task.tell_from(others)
