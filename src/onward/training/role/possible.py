"""Requests that can only fail as jobs are refused before their turn comes."""

from __future__ import annotations

from onward.config import Settings
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.training.role import control_attempt, rubrics_attempt
from onward.training.role.job_table import JobRequest
from onward.training.spec import request


def refuse_impossible(asked: JobRequest, settings: Settings) -> None:
    """Raises TrainingError for a request of any kind that can only fail here."""
    if isinstance(asked, ControlRequest):
        control_attempt.refuse_impossible(asked, settings)
    elif isinstance(asked, RubricsRequest):
        rubrics_attempt.refuse_impossible(asked)
    else:
        request.check(asked, settings)
