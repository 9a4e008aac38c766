"""Choice of a model for a task: catalogue, recommendations, measurements on this machine, and costs.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.advice.cards import ModelCard, Score, StatedSize, card, catalogue, find_config
    from bothways.advice.cards import find_model as find_model
    from bothways.advice.cards import model_names as model_names
    from bothways.advice.cards import published_facts as published_facts
    from bothways.advice.costs import RUNTIME_BYTES as RUNTIME_BYTES
    from bothways.advice.costs import TRAINING_RUNTIME_BYTES as TRAINING_RUNTIME_BYTES
    from bothways.advice.costs import Cost, cost
    from bothways.advice.hardware import ACCELERATORS, Accelerator, Devices, Hardware, devices_of, this_machine
    from bothways.advice.local_models import LocalModel, find_local_models
    from bothways.advice.measuring import Measured, ModelComparison, Speed, compare_models
    from bothways.advice.planning import Plan, PlannedPhase, Rates, plan
    from bothways.advice.ranking import CONSTRAINTS, Ranked
    from bothways.advice.recommending import LeftOut, Recommendation, recommend
    from bothways.advice.tasks import TASKS, TaskAdvice
    from bothways.advice.tasks import find_task as find_task

__all__ = [
    "ACCELERATORS",
    "CONSTRAINTS",
    "TASKS",
    "Accelerator",
    "Cost",
    "Devices",
    "Hardware",
    "LeftOut",
    "LocalModel",
    "Measured",
    "ModelCard",
    "ModelComparison",
    "Plan",
    "PlannedPhase",
    "Ranked",
    "Rates",
    "Recommendation",
    "Score",
    "Speed",
    "StatedSize",
    "TaskAdvice",
    "card",
    "catalogue",
    "compare_models",
    "cost",
    "devices_of",
    "find_config",
    "find_local_models",
    "plan",
    "recommend",
    "this_machine",
]

_MODULES = {
    "cards": (
        "ModelCard",
        "Score",
        "StatedSize",
        "card",
        "catalogue",
        "find_config",
        "find_model",
        "model_names",
        "published_facts",
    ),
    "costs": ("Cost", "RUNTIME_BYTES", "TRAINING_RUNTIME_BYTES", "cost"),
    "hardware": ("ACCELERATORS", "Accelerator", "Devices", "Hardware", "devices_of", "this_machine"),
    "local_models": ("LocalModel", "find_local_models"),
    "measuring": ("Measured", "ModelComparison", "Speed", "compare_models"),
    "planning": ("Plan", "PlannedPhase", "Rates", "plan"),
    "ranking": ("CONSTRAINTS", "Ranked"),
    "recommending": ("LeftOut", "Recommendation", "recommend"),
    "tasks": ("TASKS", "TaskAdvice", "find_task"),
}
__getattr__ = loader(__name__, _MODULES)
