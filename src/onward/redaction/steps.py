"""Reports the steps of a redaction, so that whoever supervises a long one sees that it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def _ignore() -> None:
    pass


_report: ContextVar[Callable[[], None]] = ContextVar("redaction_step", default=_ignore)


@contextmanager
def reported(report: Callable[[], None]) -> Iterator[None]:
    """Within the block, ``report`` is called at each step of a redaction of this thread or task."""
    before = _report.set(report)
    try:
        yield
    finally:
        _report.reset(before)


def step() -> None:
    _report.get()()
