"""Language models that answer in a pydantic type: in this process, or behind a chat API."""

from onward.rubrics.backends.base import (
    AnswerT,
    Backend,
    ModelAnswerError,
    RefusedAnswerError,
    TruncatedAnswerError,
    Usage,
)
from onward.rubrics.backends.chat import DIALECTS, ChatBackend
from onward.rubrics.backends.naming import open_backend

__all__ = [
    "DIALECTS", "AnswerT", "Backend", "ChatBackend", "ModelAnswerError", "RefusedAnswerError",
    "TruncatedAnswerError", "Usage", "open_backend",
]  # fmt: skip
