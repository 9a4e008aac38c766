"""The out-of-domain threshold."""

import numpy as np
import pytest

from bothways.confidence.fitting import fit_threshold
from bothways.evaluation.detectors import DetectorInput


class Scores:
    def score(self, evidence):
        return evidence.logits_NC[:, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_row_that_sets_the_border_is_inside_whatever_its_last_bits(sign):
    scores = sign * np.linspace(1.0, 3.0, 40)
    found = fit_threshold(Scores(), DetectorInput(scores[:, None], np.zeros((40, 0, 0))), 0.9)
    kept = np.sort(scores)[:37]
    assert (kept * (1 + sign * 1e-6) <= found.threshold).all()
    assert (np.sort(scores)[37:] > found.threshold).all()
