"""Work that may fail on a document: it gets one more try, and of what fails again only a word is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from onward.errors import ContractError

T = TypeVar("T")


def twice(work: Callable[[], T]) -> T:
    """``work()``, once more where it fails. Raises what the second try raises."""
    try:
        return work()
    except Exception:
        return work()


def reason_of(error: Exception) -> str:
    """Why a document is held, as a fixed word: the text of an error may repeat the document."""
    return error.reason if isinstance(error, ContractError) else "redaction"
