"""Sentence embedders: texts as vectors whose cosine measures similarity.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.tasks.embedding.card_prompts import note_of_card as note_of_card
    from bothways.tasks.embedding.losses import CoSENT as CoSENT
    from bothways.tasks.embedding.losses import Distillation as Distillation
    from bothways.tasks.embedding.losses import Matryoshka as Matryoshka
    from bothways.tasks.embedding.losses import MultipleNegativesRanking as MultipleNegativesRanking
    from bothways.tasks.embedding.losses import PlainLoss as PlainLoss
    from bothways.tasks.embedding.losses import Triplet as Triplet
    from bothways.tasks.embedding.outputs import with_usual_kind as with_usual_kind
    from bothways.tasks.embedding.training import check_loss as check_loss
    from bothways.tasks.embedding.training import usual_loss as usual_loss
    from bothways.tasks.embedding.training import usual_scale as usual_scale

_MODULES = {
    "card_prompts": ("note_of_card",),
    "losses": ("CoSENT", "Distillation", "Matryoshka", "MultipleNegativesRanking", "PlainLoss", "Triplet"),
    "outputs": ("with_usual_kind",),
    "training": ("check_loss", "usual_loss", "usual_scale"),
}
__getattr__ = loader(__name__, _MODULES)
