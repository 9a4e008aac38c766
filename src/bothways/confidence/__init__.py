"""What held-out rows teach about a model's answers: calibration, coverage, out-of-domain detection."""
