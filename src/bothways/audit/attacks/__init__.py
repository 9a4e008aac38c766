"""Attacks on classifiers by edited texts, the detector that runs them, and attacked rows to train with."""

from bothways.audit.attacks.edits import CharacterEdits, Draft, MaskedWords, NearestWords
from bothways.audit.attacks.robustness import AdversarialRobustness
from bothways.audit.attacks.search import Recipe, SameSentence, adversarial_rows, attack_texts, cached

__all__ = [
    "AdversarialRobustness",
    "CharacterEdits",
    "Draft",
    "MaskedWords",
    "NearestWords",
    "Recipe",
    "SameSentence",
    "adversarial_rows",
    "attack_texts",
    "cached",
]
