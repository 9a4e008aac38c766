"""Understanding tasks on top of an encoder: fit, predict, evaluate, save."""

from bothways.tasks.classification import TextClassifier
from bothways.tasks.embedding import SentenceEmbedder
from bothways.tasks.ensemble import Ensemble
from bothways.tasks.fill_mask import FillMask
from bothways.tasks.multitask import MultiTask, TaskData
from bothways.tasks.pairs import PairClassifier

__all__ = ["Ensemble", "FillMask", "MultiTask", "PairClassifier", "SentenceEmbedder", "TaskData", "TextClassifier"]
