"""Files of a workflow: their formats, expressions over their cells, and the checks that judge them."""

from onward.rubrics.gym.files import documents, tables
from onward.rubrics.gym.files.check import CHECKS, DIMENSIONS, FileCheck, Files, Requirement

__all__ = ["CHECKS", "DIMENSIONS", "FileCheck", "Files", "Requirement", "documents", "tables"]
