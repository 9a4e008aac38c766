"""Choice of a model for a task: catalogue, recommendations, measurements on this machine, and costs."""

from bothways.advice.accelerators import ACCELERATORS, Accelerator, Devices, devices_of
from bothways.advice.advising import LeftOut, Recommendation, recommend
from bothways.advice.cards import ModelCard, card, catalogue
from bothways.advice.comparing import ModelComparison, compare_models
from bothways.advice.costs import Cost, cost, find_config
from bothways.advice.decoder import Assumptions, DecoderComparison, against_decoder
from bothways.advice.facts import Score, StatedSize
from bothways.advice.hardware import Hardware, this_machine
from bothways.advice.local_models import LocalModel, find_local_models
from bothways.advice.measuring import Job, Measured, Speed, job_for, measure
from bothways.advice.planning import Plan, PlannedPhase, Rates, plan
from bothways.advice.ranking import CONSTRAINTS, Ranked
from bothways.advice.tasks import TASKS, TaskAdvice

__all__ = [
    "ACCELERATORS",
    "CONSTRAINTS",
    "TASKS",
    "Accelerator",
    "Assumptions",
    "Cost",
    "DecoderComparison",
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
    "against_decoder",
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
