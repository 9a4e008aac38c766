"""Tasks on top of an encoder, such as classification and tagging: fit, predict, evaluate, save.

Classes are imported on first use (PEP 562), so the declarations of tasks can be read without torch.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.tasks.card import training_baseline
    from bothways.tasks.classification.classifiers import PairClassifier, TextClassifier
    from bothways.tasks.embedding.embedder import SentenceEmbedder
    from bothways.tasks.evaluate import check_class, compare, operating_points, out_of_domain, predict_or_none
    from bothways.tasks.heads.splits import split_fit_options
    from bothways.tasks.heads.targets import Regression
    from bothways.tasks.masked_lm.fill_mask import FillMask
    from bothways.tasks.masked_lm.pseudo_likelihood import PseudoLikelihood
    from bothways.tasks.multiple_choice.chooser import MultipleChoice
    from bothways.tasks.outputs import TrainedHead
    from bothways.tasks.question_answering.answerer import QuestionAnswerer
    from bothways.tasks.schemas import DIALECT, Schemas
    from bothways.tasks.tagging.tagger import TextTagger

__all__ = [
    "DIALECT",
    "FillMask",
    "MultipleChoice",
    "PairClassifier",
    "PseudoLikelihood",
    "QuestionAnswerer",
    "Regression",
    "Schemas",
    "SentenceEmbedder",
    "TextClassifier",
    "TextTagger",
    "TrainedHead",
    "check_class",
    "compare",
    "operating_points",
    "out_of_domain",
    "predict_or_none",
    "split_fit_options",
    "training_baseline",
]

_MODULES = {
    "card": ("training_baseline",),
    "classification.classifiers": ("PairClassifier", "TextClassifier"),
    "embedding.embedder": ("SentenceEmbedder",),
    "evaluate": ("check_class", "compare", "operating_points", "out_of_domain", "predict_or_none"),
    "heads.splits": ("split_fit_options",),
    "heads.targets": ("Regression",),
    "masked_lm.fill_mask": ("FillMask",),
    "masked_lm.pseudo_likelihood": ("PseudoLikelihood",),
    "multiple_choice.chooser": ("MultipleChoice",),
    "outputs": ("TrainedHead",),
    "question_answering.answerer": ("QuestionAnswerer",),
    "schemas": ("DIALECT", "Schemas"),
    "tagging.tagger": ("TextTagger",),
}
__getattr__ = loader(__name__, _MODULES)
