"""Retries a step on a document once; after that only a reason code is stored, as texts could leak."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from onward.errors import ContractError, OnwardError

T = TypeVar("T")


def with_one_retry(work: Callable[[], T]) -> T:
    """Returns ``work()``, with one retry after a failure. Raises the error of the second try."""
    try:
        return work()
    except Exception:
        return work()


def reason_of(error: Exception) -> str:
    """Returns the reason code for holding a document: the text of an error may repeat the document."""
    return error.reason if isinstance(error, ContractError) else "redaction"


def loggable(error: BaseException) -> str:
    """Returns text that may be logged: our own messages contain no secret, others may."""
    return str(error) if isinstance(error, OnwardError) else type(error).__name__
