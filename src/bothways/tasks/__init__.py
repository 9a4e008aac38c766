"""Understanding tasks on top of an encoder: fit, predict, evaluate, save."""

from bothways.tasks.classification import TextClassifier
from bothways.tasks.embedding import SentenceEmbedder
from bothways.tasks.few_shot import FewShotClassifier
from bothways.tasks.pairs import PairClassifier

__all__ = ["FewShotClassifier", "PairClassifier", "SentenceEmbedder", "TextClassifier"]
