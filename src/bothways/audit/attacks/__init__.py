"""Attacks on classifiers by edited texts, the detector that runs them, and attacked rows to train with."""

from bothways.audit.attacks.edits import CharacterEdits, MaskedWords, NearestWords
from bothways.audit.attacks.robustness import AdversarialRobustness
from bothways.audit.attacks.search import ChangeAnswer, FewWords, GiveLabel, Greedy, Recipe, SameSentence, attack_texts
from bothways.audit.attacks.training_rows import adversarial_rows

__all__ = [
    "AdversarialRobustness",
    "ChangeAnswer",
    "CharacterEdits",
    "FewWords",
    "GiveLabel",
    "Greedy",
    "MaskedWords",
    "NearestWords",
    "Recipe",
    "SameSentence",
    "adversarial_rows",
    "attack_texts",
]
