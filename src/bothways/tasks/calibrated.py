"""Whether probabilities are given calibrated."""

from bothways.errors import NotCalibrated


def wants_calibration(there: bool, calibrated: bool | None, name: str) -> bool:
    """Whether a model's calibration is to be used.

    Args:
        there: Whether it has one.
        calibrated: True insists on one, False wants none, None takes what there is.
        name: The model's.

    Raises:
        NotCalibrated: One was insisted on and there is none.
    """
    if calibrated and not there:
        raise NotCalibrated(
            f"calibrated probabilities were asked for, but {name!r} was not calibrated. Fit it with validation data, "
            "or leave calibrated out."
        )
    return there and calibrated is not False
