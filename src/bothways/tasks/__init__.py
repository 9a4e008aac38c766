"""Understanding tasks on top of an encoder: fit, predict, evaluate, save.

The classes are imported when they are first used (PEP 562), so that what a task declares can be read without torch.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.tasks.classification.classifiers import PairClassifier, TextClassifier
    from bothways.tasks.embedding.embedder import SentenceEmbedder
    from bothways.tasks.masked_lm.fill_mask import FillMask
    from bothways.tasks.multiple_choice.chooser import MultipleChoice
    from bothways.tasks.question_answering.answerer import QuestionAnswerer
    from bothways.tasks.tagging.tagger import TextTagger

__all__ = [
    "FillMask",
    "MultipleChoice",
    "PairClassifier",
    "QuestionAnswerer",
    "SentenceEmbedder",
    "TextClassifier",
    "TextTagger",
]

_HOMES = {
    "FillMask": "bothways.tasks.masked_lm.fill_mask",
    "MultipleChoice": "bothways.tasks.multiple_choice.chooser",
    "PairClassifier": "bothways.tasks.classification.classifiers",
    "QuestionAnswerer": "bothways.tasks.question_answering.answerer",
    "SentenceEmbedder": "bothways.tasks.embedding.embedder",
    "TextClassifier": "bothways.tasks.classification.classifiers",
    "TextTagger": "bothways.tasks.tagging.tagger",
}

__getattr__ = loader(__name__, _HOMES)
