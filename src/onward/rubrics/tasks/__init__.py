"""Tasks whose rubric is known: families, checks, artefacts that break chosen checks, and a stakeholder."""

from onward.rubrics.tasks.artefacts import Artefact
from onward.rubrics.tasks.checks import CHECKS, DIMENSIONS, CheckKind, describe
from onward.rubrics.tasks.family import HELD_OUT_FAMILIES, TRAINING_FAMILIES
from onward.rubrics.tasks.stakeholder import TOPICS, Reply, TaskStakeholder, Turn
from onward.rubrics.tasks.task import BLOCK, SEED_SPLITS, RubricTask, make_task, split_of, task_with
from onward.rubrics.tasks.worker import guided_bits, guided_score

__all__ = [
    "BLOCK", "CHECKS", "DIMENSIONS", "HELD_OUT_FAMILIES", "SEED_SPLITS", "TOPICS", "TRAINING_FAMILIES",
    "Artefact", "CheckKind", "Reply", "RubricTask", "TaskStakeholder", "Turn", "describe", "guided_bits",
    "guided_score", "make_task", "split_of", "task_with",
]  # fmt: skip
