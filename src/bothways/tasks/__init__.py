"""Understanding tasks on top of an encoder: fit, predict, evaluate, save."""

from bothways.tasks.answering import QuestionAnswerer
from bothways.tasks.classification import TextClassifier
from bothways.tasks.embedding import SentenceEmbedder
from bothways.tasks.ensemble import Ensemble
from bothways.tasks.few_shot import FewShotClassifier
from bothways.tasks.fill_mask import FillMask
from bothways.tasks.multitask import MultiTask, TaskData
from bothways.tasks.pairs import PairClassifier
from bothways.tasks.tagging import TextTagger

__all__ = [
    "Ensemble",
    "FewShotClassifier",
    "FillMask",
    "MultiTask",
    "PairClassifier",
    "QuestionAnswerer",
    "SentenceEmbedder",
    "TaskData",
    "TextClassifier",
    "TextTagger",
]
