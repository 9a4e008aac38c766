"""Options of training for how far a model's answers can be trusted."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import Calibration, Detector, File, Format
from bothways.cli.reading import labelled_source

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.labelling.trusting import TrustingTask


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


def draw_border(task: "TrustingTask", trust: TrustOptions, format_: Format | None) -> None:
    """Draw the border of the domain by the rows from elsewhere, if there are any."""
    if trust.out_of_domain is not None:
        task.tell_from(labelled_source(trust.out_of_domain, format_))
