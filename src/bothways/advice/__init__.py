"""Choice of a model for a task: catalogue, recommendations, measurements on this machine, and costs."""

from bothways.advice.cards import ModelCard, Score, StatedSize, card, catalogue, find_config
from bothways.advice.costs import Cost, cost
from bothways.advice.hardware import ACCELERATORS, Accelerator, Devices, Hardware, devices_of, this_machine
from bothways.advice.local_models import LocalModel, find_local_models
from bothways.advice.measuring import Job, Measured, ModelComparison, Speed, compare_models, job_for, measure
from bothways.advice.planning import Plan, PlannedPhase, Rates, plan
from bothways.advice.ranking import CONSTRAINTS, Ranked
from bothways.advice.recommending import LeftOut, Recommendation, recommend
from bothways.advice.tasks import TASKS, TaskAdvice

__all__ = [
    "ACCELERATORS",
    "CONSTRAINTS",
    "TASKS",
    "Accelerator",
    "Cost",
    "Devices",
    "Hardware",
    "Job",
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
    "job_for",
    "measure",
    "plan",
    "recommend",
    "this_machine",
]
