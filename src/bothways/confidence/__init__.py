"""Confidence in predictions, fitted on held-out rows: calibration, coverage, out-of-domain detection."""
