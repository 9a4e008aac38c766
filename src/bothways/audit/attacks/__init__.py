"""Attacks on classifiers by edited texts, the detector that runs them, and attacked rows to train with."""

from bothways.audit.attacks.robustness import AdversarialRobustness
from bothways.audit.attacks.search import adversarial_rows

__all__ = ["AdversarialRobustness", "adversarial_rows"]
