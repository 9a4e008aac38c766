"""Pre-training from raw text: recipes, new models, and the run from a corpus to an encoder.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.pretraining.courses import BatchWarmup as BatchWarmup
    from bothways.pretraining.distiller import Distiller as Distiller
    from bothways.pretraining.pretrainer import Pretrainer as Pretrainer
    from bothways.pretraining.recipes import ScaledRecipe as ScaledRecipe
    from bothways.pretraining.recipes import find_recipe as find_recipe
    from bothways.pretraining.recipes import scaled as scaled
    from bothways.pretraining.task_distiller import TaskDistiller as TaskDistiller
    from bothways.pretraining.task_distiller import task_to_distill as task_to_distill

_MODULES = {
    "distiller": ("Distiller",),
    "pretrainer": ("Pretrainer",),
    "courses": ("BatchWarmup",),
    "recipes": ("ScaledRecipe", "find_recipe", "scaled"),
    "task_distiller": ("TaskDistiller", "task_to_distill"),
}
__getattr__ = loader(__name__, _MODULES)
