"""Which temperature probabilities are given with."""

from bothways.errors import NotCalibrated
from bothways.evaluation import Temperature


def chosen_temperature(temperature: Temperature | None, calibrated: bool | None, name: str) -> Temperature | None:
    """The temperature of a model, or None for the probabilities of the head as it is.

    Args:
        temperature: The model's; None without.
        calibrated: True insists on one, False wants none, None takes what there is.
        name: The model's.

    Raises:
        NotCalibrated: One was insisted on and there is none.
    """
    if calibrated and temperature is None:
        raise NotCalibrated(
            f"calibrated probabilities were asked for, but {name!r} was not calibrated. Fit it with validation data, "
            "or leave calibrated out."
        )
    return None if calibrated is False else temperature
