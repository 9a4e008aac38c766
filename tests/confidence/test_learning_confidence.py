"""What is learnt from held-out rows, on arrays: sets keep their promise on rows that nothing was fitted to."""

import numpy as np
import pytest

from bothways.confidence.confidence import ConfidenceOptions, TemperatureOptions
from bothways.confidence.fitting import learn_classification
from bothways.errors import InvalidInput
from bothways.evaluation.calibration import ConformalSets
from bothways.evaluation.detectors import DetectorInput
from bothways.evaluation.temperature import softmax

HELD_OUT, FRESH, DRAWS = 40, 1_000, 80


def drawn(rows, seed, classes=4):
    """Logits of a model that is twice as sure as it should be, and labels drawn from what it should have said."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, 3, (rows, classes))
    labels_N = (random.random((rows, 1)) > softmax(logits_NC / 2).cumsum(1)).sum(1).clip(max=classes - 1)
    return logits_NC, labels_N


# With probabilities that isotonic regression fitted to the rows themselves, sets hold 0.68 of fresh rows.
def test_sets_hold_fresh_rows_as_guaranteed_if_the_same_rows_fit_the_calibration():
    options = ConfidenceOptions(calibration="isotonic", detector=None)
    found = []
    for seed in range(DRAWS):
        logits_NC, labels_N = drawn(HELD_OUT + FRESH, seed)
        held = DetectorInput.of(logits_NC[:HELD_OUT])
        learnt = learn_classification(held, labels_N[:HELD_OUT], options, seed=seed, training=None)
        fresh_NC = learnt.calibration.apply(logits_NC[HELD_OUT:])
        included_NC = learnt.conformal.at(0.8).includes(fresh_NC, never_empty=False)
        found.append(included_NC[np.arange(len(included_NC)), labels_N[HELD_OUT:]].mean())
    noise = 3 * np.sqrt(0.8 * 0.2 / HELD_OUT / DRAWS)
    assert 0.8 - noise <= np.mean(found) <= 0.8 + 1 / (HELD_OUT + 1) + noise


def test_sets_of_a_model_without_calibration_are_learnt_from_its_probabilities_as_they_are():
    logits_NC, labels_N = drawn(HELD_OUT, 0)
    options = ConfidenceOptions(calibration=None, detector=None)
    found = learn_classification(DetectorInput.of(logits_NC), labels_N, options, seed=0, training=None).conformal
    np.testing.assert_allclose(found.held_out_M, ConformalSets.fit(softmax(logits_NC), labels_N).held_out_M)


def test_words_and_answers_are_calibrated_by_a_temperature_or_not_at_all():
    for calibration in ("auto", "temperature", None):
        assert TemperatureOptions(calibration=calibration).calibration == calibration
    with pytest.raises(InvalidInput, match="must be one of 'auto', 'temperature', None, got 'isotonic'"):
        TemperatureOptions(calibration="isotonic")
