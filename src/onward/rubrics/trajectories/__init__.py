"""Trajectories scored by rubrics: what a document, a family of tasks or a rubric writer says about them."""

from onward.rubrics.trajectories.engine import Rubrics, needs_released, rubrics_of
from onward.rubrics.trajectories.written import WriterSource
from onward.rubrics.writers import RELEASED

__all__ = ["RELEASED", "Rubrics", "WriterSource", "needs_released", "rubrics_of"]
