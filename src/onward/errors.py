"""Every error that Onward raises on purpose.

A message states in one sentence what was received, what was expected and what to do. It carries no secret.
The command line prints that sentence and exits with code 2. A traceback therefore always means a defect,
never bad input.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def install_command(what: str) -> str:
    """Returns the command that installs ``what`` for this interpreter: a package, or an extra: ``[lm]``.

    Onward is on no registry, so an extra is installed from the clone that Onward came from. If that clone is
    unknown (installed from a wheel), the command is for the folder of a clone.
    """
    python = Path(sys.executable)
    beside = python.with_name("pip")
    pip = short_path(beside) if beside.exists() else f"{short_path(python)} -m pip"
    if not what.startswith("["):
        return f"{pip} install {shlex.quote(what)}"
    clone = Path(__file__).parents[2]
    folder = short_path(clone) if (clone / "pyproject.toml").is_file() else "."
    return f"{pip} install -e '{folder}{what}'"


def program() -> str:
    """Returns ``onward``, or its path if a shell cannot find it by that name, as in a clone's ``.venv``."""
    beside = Path(sys.executable).with_name("onward")
    return short_path(beside) if shutil.which("onward") is None and beside.exists() else "onward"


def runnable(sentence: str) -> str:
    """Returns ``sentence`` with each quoted command ready to paste: ``onward`` becomes the program's path."""
    return re.sub(r"(?<=['`])onward(?= [a-z])", lambda _: program(), sentence)


def ever_ran(data_dir: Path) -> bool:
    """Returns whether a service ran on a data folder before, or runs now."""
    return any((data_dir / name).is_dir() for name in ("nats", "run"))


def nothing_runs(data_dir: Path, other: str = "") -> str:
    """Returns the message about a data folder on which no service runs; it says whether one ever did.

    ``other``: another thing to do, such as "set AGENTGYM_RL_URL".
    """
    verb = "runs" if ever_ran(data_dir) else "ever ran"
    advice = f"{folder_advice(data_dir)}, or {other}" if other else f"or {folder_advice(data_dir)}"
    return f"Nothing {verb} on {data_dir}: start it with 'onward up', {advice}."


def folder_advice(data_dir: Path) -> str:
    """Returns the end of a message about a folder without data; names a data folder that lies inside it."""
    inside = sorted(path.parent for path in data_dir.glob("*/nats") if path.is_dir())
    example = f" ({inside[-1]} is one)" if inside else ""
    return f"name its folder with --dir{example}"


_ADDRESS = re.compile(r"""(?<=://)(?:(?!://)(?:[^\s"<>\\]|\\[^nrt]))+""")
_QUERY = re.compile(r"""\?[^,'"=]*=[^,'"]*""")


def hide_login(text: str) -> str:
    """Removes user, password and query from the addresses in ``text``: a query may hold a key or a signature.

    A password that should have been escaped (``p@ss``, ``p/ss``) is removed as well.
    """
    return _ADDRESS.sub(lambda found: _QUERY.sub("?…", found[0].rpartition("@")[2]), text)


def short_path(path: Path) -> str:
    """Returns ``path`` relative to the working folder if it lies in there."""
    try:
        return str(path.relative_to(os.getcwd()))
    except (ValueError, OSError):
        return str(path)


class OnwardError(Exception):
    """Base of all errors whose message is meant for a person. The message shows no login of an address."""

    def __str__(self) -> str:
        return hide_login(super().__str__())


class ConfigError(OnwardError):
    """A setting is missing, unknown or out of range."""


class MissingExtraError(OnwardError, ModuleNotFoundError):
    """An optional part is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the optional part {extra!r}, which is not installed: "
            f"run {install_command(f'[{extra}]')}."
        )
        self.extra = extra


class PortBusyError(OnwardError):
    """A requested port is used by another process."""

    def __init__(self, host: str, port: int, what: str) -> None:
        super().__init__(
            f"{what} cannot listen on {host}:{port} because another program does: "
            f"choose another port, or stop that program."
        )


class ContractError(OnwardError):
    """A message does not follow its contract. ``reason`` is a short machine-readable word."""

    def __init__(self, reason: str, message: str, faults: Sequence[str] = ()) -> None:
        """``faults``: each field that is wrong, with what was expected, if they are few enough to list."""
        super().__init__(message)
        self.reason = reason
        self.faults = tuple(faults)


class NotFoundError(OnwardError):
    """A named object does not exist."""


class ConflictError(OnwardError):
    """A compare-and-set failed: the record changed since it was read."""


class RefusedError(OnwardError):
    """A part answered, and refused. It is not away, so waiting for it does not help."""


class BusError(OnwardError):
    """NATS refused or did not answer."""


class NotServedError(BusError):
    """No role serves the subject of a request."""


class BusRefusedError(BusError, RefusedError):
    """NATS, or its client, refuses what was asked of it."""


class StreamDriftError(BusError):
    """A stream or consumer on the server differs from what is declared, in a way that loses data."""


class StreamReplacedError(BusError):
    """A stream was deleted and created again while its reader kept the position itself."""


class OutboxFullError(OnwardError):
    """The local outbox reached its byte limit; nothing was dropped."""


class WarehouseError(OnwardError):
    """ClickHouse refused a query or is unavailable."""


class WarehouseRefusedError(WarehouseError, RefusedError):
    """ClickHouse refused a statement: it is wrong, not permitted, or needs more than the server gives."""


class ObjectError(OnwardError):
    """The object store refused a request or is unavailable."""


class ObjectRefusedError(ObjectError, RefusedError):
    """The object store refused one request: the object cannot be read, or the request is not permitted."""


class RedactionError(OnwardError):
    """The redactor failed; the document must be quarantined, never forwarded."""


class EngineError(OnwardError):
    """The inference engine failed or is unavailable."""


class TamperedError(OnwardError):
    """A file does not match its manifest; it must not be loaded."""


class IllegalTransitionError(OnwardError):
    """A state machine received a transition that its table does not allow."""


class TrainingError(OnwardError):
    """A training job failed. ``code`` is one of OOM, CONVERGENCE, DATA, INFRA, TIMEOUT, UNKNOWN."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ControlError(OnwardError):
    """A control policy, its environment or its file is not usable."""


class EnvironmentFault(ControlError):
    """An environment raised an error, or returned data that its spaces do not declare.

    ``trace`` is the traceback of its own code, without the frames of Onward; empty where it raised nothing.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace
