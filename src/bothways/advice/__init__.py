"""Choice of a model for a task: catalogue, recommendations, measurements on this machine, and costs."""

from bothways.advice.accelerators import ACCELERATORS, Accelerator, Devices, devices_of
from bothways.advice.advising import LeftOut, Recommendation, recommend
from bothways.advice.at_hand import AtHand, models_at_hand
from bothways.advice.cards import ModelCard, card, catalogue
from bothways.advice.comparing import ModelComparison, compare_models
from bothways.advice.costs import Cost, cost, find_config
from bothways.advice.decoder import Assumptions, DecoderComparison, against_decoder
from bothways.advice.facts import Score, StatedSize
from bothways.advice.hardware import Hardware, this_machine
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
    "AtHand",
    "Cost",
    "DecoderComparison",
    "Devices",
    "Hardware",
    "Job",
    "LeftOut",
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
    "job_for",
    "measure",
    "models_at_hand",
    "plan",
    "recommend",
    "this_machine",
]
