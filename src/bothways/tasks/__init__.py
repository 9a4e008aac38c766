"""Understanding tasks on top of an encoder: fit, predict, evaluate, save."""

from bothways.tasks.answering import QuestionAnswerer
from bothways.tasks.classification import TextClassifier
from bothways.tasks.embedding import SentenceEmbedder
from bothways.tasks.fill_mask import FillMask
from bothways.tasks.pairs import PairClassifier

__all__ = ["FillMask", "PairClassifier", "QuestionAnswerer", "SentenceEmbedder", "TextClassifier"]
