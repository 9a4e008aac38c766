"""Understanding tasks on top of an encoder: fit, predict, evaluate, save."""

from bothways.tasks.answering.answerer import QuestionAnswerer
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.embedding.few_shot import FewShotClassifier
from bothways.tasks.ensembles.ensemble import Ensemble
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.masks.fill_mask import FillMask
from bothways.tasks.sharing.data import TaggingData, TaskData
from bothways.tasks.sharing.multitask import MultiTask
from bothways.tasks.tagging.tagger import TextTagger
from bothways.tasks.trained import open_trained

__all__ = [
    "Ensemble",
    "FewShotClassifier",
    "FillMask",
    "MultiTask",
    "PairClassifier",
    "QuestionAnswerer",
    "SentenceEmbedder",
    "TaggingData",
    "TaskData",
    "TextClassifier",
    "TextTagger",
    "open_trained",
]
