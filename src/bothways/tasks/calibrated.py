"""Whether probabilities are given with a model's calibration."""

from bothways.errors import NotCalibrated


def with_calibration(calibration: object, calibrated: bool | None, name: str) -> bool:
    """Whether a model's calibration is to be used.

    Args:
        calibration: The model's; None without.
        calibrated: True insists on it, False wants the probabilities of the head as it is, None takes what there is.
        name: The model's.

    Raises:
        NotCalibrated: One was insisted on and there is none.
    """
    if calibrated and calibration is None:
        raise NotCalibrated(
            f"calibrated probabilities were asked for, but {name!r} was not calibrated. Fit it with validation data, "
            "or leave calibrated out."
        )
    return calibrated is not False
