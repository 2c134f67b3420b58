"""Every error that Onward raises on purpose.

One rule: a message says what was given, what was expected and what to do, in one sentence, and
carries no secret. The command line prints that sentence and exits with code 2; a traceback
therefore always means a defect, never bad input.
"""

from __future__ import annotations


class OnwardError(Exception):
    """Base of all errors with a message meant for a person."""


class ConfigError(OnwardError):
    """A setting is missing, unknown or out of range."""


class MissingExtraError(OnwardError, ModuleNotFoundError):
    """An optional part is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the optional part {extra!r}, which is not installed: "
            f"run .venv/bin/pip install -e '.[{extra}]' in your clone of Onward."
        )
        self.extra = extra


class PortBusyError(OnwardError):
    """A port that was asked for is taken by another process."""

    def __init__(self, host: str, port: int, what: str) -> None:
        super().__init__(
            f"{what} cannot listen on {host}:{port} because another program does: "
            f"choose another port in onward.toml or stop that program."
        )


class ContractError(OnwardError):
    """A message does not follow its contract. ``reason`` is a short machine-readable word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFoundError(OnwardError):
    """Something named does not exist."""


class ConflictError(OnwardError):
    """A compare-and-set lost: the record changed since it was read."""


class BusError(OnwardError):
    """NATS refused or did not answer."""


class StreamDriftError(BusError):
    """A stream or consumer on the server differs from what is declared, in a way that loses data."""


class OutboxFullError(OnwardError):
    """The local outbox reached its byte limit; nothing was dropped."""


class WarehouseError(OnwardError):
    """ClickHouse refused a query or is away."""


class ObjectError(OnwardError):
    """The object store refused or is away."""


class RedactionError(OnwardError):
    """The redactor failed; the document must be quarantined, never passed on."""


class EngineError(OnwardError):
    """The inference engine failed or is away."""


class TamperedError(OnwardError):
    """A file does not match its manifest; it must not be loaded."""


class IllegalTransitionError(OnwardError):
    """A state machine was asked for a step that its table does not allow."""


class TrainingError(OnwardError):
    """A training job failed. ``code`` is one of OOM, CONVERGENCE, DATA, INFRA, TIMEOUT, UNKNOWN."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ControlError(OnwardError):
    """A control policy, its environment or its file is not usable as it was given."""
