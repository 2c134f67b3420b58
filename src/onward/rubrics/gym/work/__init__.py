"""Work of the gym: operations that turn input files into output files, without a language model."""

from onward.rubrics.gym.work import on_documents, on_tables
from onward.rubrics.gym.work.operation import OPERATIONS, Job, Operation, operation_of, requirements_of

__all__ = ["OPERATIONS", "Job", "Operation", "on_documents", "on_tables", "operation_of", "requirements_of"]
