"""The end of an attempt: its code, and whether it counts towards the job's attempts.

Errors are classified by their type, by the exit code of the job child, and by the kernel's own count of
processes that it killed for memory in the child's control group. What the next attempt does differently is in
``remedies``.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onward.errors import BusError, ObjectError, OnwardError, RefusedError, TrainingError, WarehouseError
from onward.files import is_disk_failure
from onward.memory import KillWatch
from onward.training.job.worker import STOPPED
from onward.training.role.job_table import JobError

KILLS = frozenset(signal.Signals) - {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
"""Signals that end a process from outside; the others are its own crashes."""
Cause = Literal["failed", "refused", "killed", "outage", "final"]
"""Reason why an attempt ended without a result. ``refused``: a part answered, and refused. This one and
``failed`` count towards ``training.max_attempts``. ``final``: no further attempt could succeed."""


class ChildError(TrainingError):
    """The job child failed. ``traceback`` is where, or what it wrote last, before redaction."""

    def __init__(self, code: str, message: str, traceback: str | None = None) -> None:
        super().__init__(code, message)
        self.traceback = traceback


class ChildKilledError(ChildError):
    """The job child was ended from outside, and not for lack of memory."""


@dataclass(frozen=True)
class Ending:
    """The end of an attempt without a result."""

    error: JobError
    cause: Cause
    pauses: bool = False
    """True: the job waits for a while before its next attempt."""


def classify(error: OnwardError | OSError, folder: Path) -> Ending:
    """Returns how an attempt ended that raised ``error``. ``folder``: the data folder."""
    cause = _cause(error, folder)
    return Ending(_job_error(error), cause, pauses=cause in ("refused", "killed", "outage"))


def _cause(error: OnwardError | OSError, folder: Path) -> Cause:
    if isinstance(error, ChildKilledError):
        return "killed"
    if isinstance(error, RefusedError):
        return "refused"
    if isinstance(error, BusError | ObjectError | WarehouseError):
        return "outage"
    if isinstance(error, OSError):
        return "outage" if is_disk_failure(error, folder) else "failed"
    if isinstance(error, TrainingError):
        if error.code == "INFRA":
            return "outage"
        return "failed" if isinstance(error, ChildError) else "final"
    return "failed"  # a store has wrong content: the next attempt may succeed


def _job_error(error: OnwardError | OSError) -> JobError:
    if isinstance(error, TrainingError):
        return JobError.from_error(error)
    if isinstance(error, OSError):
        return JobError(code="INFRA", message=f"The job's folder cannot be used ({error.strerror}).")
    return JobError(code="INFRA", message=str(error))


def of_exit(code: int, kills: KillWatch, log: str, written: str | None = None) -> ChildError:
    """Returns the error of a child that ended with ``code`` and reported nothing.

    ``kills``: watched since it started. ``log``: name of its log, for the sentence. ``written``: what it
    wrote to its log last.
    """
    if code == -signal.SIGKILL and kills.has_seen_one:
        return ChildError("OOM", "The kernel killed the training process for lack of memory.")
    how = f"The training process ended with code {code} and no result: see {log}."
    if code == STOPPED or -code in KILLS:
        return ChildKilledError("INFRA", how)
    return ChildError("UNKNOWN", how, written)
