"""Composed models: ensembles of models, and several tasks on one encoder.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.compose.checking import check as check
    from bothways.compose.checking import record_answers as record_answers
    from bothways.compose.ensembles.ensemble import Ensemble as Ensemble
    from bothways.compose.multitask.data import Proportional as Proportional
    from bothways.compose.multitask.data import TaggingData as TaggingData
    from bothways.compose.multitask.data import TaskData as TaskData
    from bothways.compose.multitask.data import Tempered as Tempered
    from bothways.compose.multitask.data import Uniform as Uniform
    from bothways.compose.multitask.files import check_names as check_names
    from bothways.compose.multitask.multitask import MultiTask as MultiTask
    from bothways.compose.multitask.trained import MultiReport as MultiReport
    from bothways.compose.multitask.trained import rows_of_task as rows_of_task
    from bothways.compose.opening import ENSEMBLE as ENSEMBLE
    from bothways.compose.opening import SIMILARITY as SIMILARITY
    from bothways.compose.opening import open_trained as open_trained
    from bothways.compose.opening import parts_of as parts_of
    from bothways.compose.schemas import schemas_of as schemas_of

_MODULES = {
    "checking": ("check", "record_answers"),
    "ensembles.ensemble": ("Ensemble",),
    "multitask.data": ("Proportional", "TaggingData", "TaskData", "Tempered", "Uniform"),
    "multitask.files": ("check_names",),
    "multitask.multitask": ("MultiTask",),
    "multitask.trained": ("MultiReport", "rows_of_task"),
    "opening": ("ENSEMBLE", "SIMILARITY", "open_trained", "parts_of"),
    "schemas": ("schemas_of",),
}
__getattr__ = loader(__name__, _MODULES)
