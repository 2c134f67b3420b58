"""Trajectories scored by rubrics: what a document, a family of tasks or a rubric writer says about them."""

from onward.rubrics.trajectories.engine import Rubrics, rubrics_of

__all__ = ["Rubrics", "rubrics_of"]
