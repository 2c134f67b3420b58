"""``Recorder``: settings, the outbox and its limits, the end of the process, forks."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from onward.bus.outbox import Outbox, Outgoing
from onward.capture.opt_out import VARIABLE, OptOut, user_hash
from onward.capture.recorder.sealed_tasks import Held, HeldTasks
from onward.capture.retrying import loggable, reason_of, with_one_retry
from onward.clock import Clock, SystemClock
from onward.contracts import subjects
from onward.errors import (
    ConfigError,
    ConflictError,
    ContractError,
    OnwardError,
    OutboxFullError,
    RedactionError,
)
from onward.forks import IMPORTING, Forking, register_fork_hooks
from onward.ids import new_id
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.recorder.delivery import Drainer
    from onward.capture.recorder.task import Task

HEADERS = {"Rl-Schema": "v1"}
USER_KEY = "ONWARD_USER_KEY"
EXIT_SECONDS = 2.0
"""Time that the end of the process waits for pending messages, if the server answers."""
_BLOCK_SECONDS = 0.05
_log = logs.get("recorder")


@dataclass(frozen=True)
class Stats:
    """Counts of finished tasks since the recorder was made."""

    recorded: int = 0
    """On disk before the agent went on."""
    opted_out: int = 0
    """Dropped by opt-out (``RL_CAPTURE_OPT_OUT``), before anything was written."""
    failed: int = 0
    """Tries that recorded nothing; the agent got an exception or, if it had one of its own, a log line."""
    pending: int = 0
    """In the outbox, not acknowledged yet."""
    refused: int = 0
    """In the outbox, rejected by the server in their present form: see the log."""
    waiting_bytes: int = 0
    held: int = 0
    """Could not be redacted or made to fit; stored encrypted beside the outbox: ``Recorder.held``."""


class Recorder(Forking):
    """Records the tasks of one process. Thread-safe; tasks from any number of threads or coroutines run in
    parallel.

    ``nats_url`` None only fills the outbox. ``on_full`` decides what happens if the outbox is full
    (``max_bytes``, or the disk): ``raise`` OutboxFullError, or ``block`` until there is room, for
    ``block_seconds`` at most, and then raise. Nothing is ever dropped silently. ``objects`` is the
    collector's object store, a folder or ``s3://…`` (credentials from the environment): trajectories of more
    than 1 MiB go through it, up to 64 MiB. Pictures, sounds and PDFs in base64 become notes in the
    trajectory; with ``keep_attachments`` their bytes go to that store, unredacted.
    """

    def __init__(
        self,
        outbox: Path | str,
        *,
        nats_url: str | None = None,
        nats_token: str | None = None,
        agent_id: str = "agent",
        subordinate_profile: str | None = None,
        max_bytes: int = 1 << 30,
        on_full: Literal["raise", "block"] = "raise",
        block_seconds: float | None = None,
        objects: Path | str | None = None,
        keep_attachments: bool = True,
        known_secrets: Iterable[str] | None = None,
        optional_kinds: Iterable[str] = (),
        redaction_rules: Path | str | None = None,
        opt_out: str | None = None,
        user_key: str | bytes | None = None,
        follow_threads: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Opens the outbox and starts the thread that publishes.

        ``known_secrets`` are removed wherever they occur; None uses those of the environment (variables named
        like ``OPENAI_API_KEY``, passwords in URLs). ``optional_kinds`` are redacted only if named here
        (``GPS``, ``WALLET`` …). ``redaction_rules`` is a file with own rules and an allow list. ``opt_out``
        are patterns; None uses ``RL_CAPTURE_OPT_OUT``. ``user_key`` (or ``ONWARD_USER_KEY``) hashes the
        ``user`` of a task. With ``follow_threads``, calls in the threads and thread pools that a task's block
        uses belong to the task: it extends ``Thread.start`` and ``ThreadPoolExecutor.submit`` in this
        process. Raises ConfigError, BusError.
        """
        # Imported here: building the message models and rules takes longer than all other imports.
        with IMPORTING:
            from onward.capture.recorder.preparation import Preparer, agents_redactor
            from onward.capture.recorder.task import Task

        if on_full not in ("raise", "block"):
            raise ConfigError(f"on_full is {on_full!r}: expected 'raise' or 'block'.")
        self.agent_id = agent_id
        self.subordinate_profile = subordinate_profile
        self.follows_threads = follow_threads
        self.clock: Clock = clock or SystemClock()
        self._task = Task
        self._nats = (nats_url, nats_token)
        self._objects = None if objects is None else str(objects)
        self._on_full = on_full
        self._block_seconds = block_seconds
        self._opt_out = OptOut.parse(os.environ.get(VARIABLE, "") if opt_out is None else opt_out)
        self._user_key = user_key or os.environ.get(USER_KEY)
        if self._user_key is not None:
            user_hash("", self._user_key)  # a key that is too short is reported at once
        self._own_key = secrets.token_bytes(32)
        redactor = agents_redactor(known_secrets, nats_url, nats_token, optional_kinds, redaction_rules)
        has_store = self._objects is not None
        self._preparer = Preparer(
            redactor, has_store=has_store, keeps_attachments=has_store and keep_attachments
        )
        self._outbox = Outbox(Path(outbox), max_bytes=max_bytes)
        self._outbox.retry_refused()
        self._attachments = None
        if has_store and keep_attachments:
            self._attachments = Outbox(Path(f"{outbox}.attachments"), max_bytes=max_bytes)
        self._held = HeldTasks(Path(outbox), max_bytes)
        if waiting := len(self._held.names()):
            _log.warning("tasks are held beside the outbox: call retry_held()", held=waiting)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {"recorded": 0, "opted_out": 0, "failed": 0}
        self._full_since: float | None = None
        self._misses_attachments = False
        """True while the outbox of attachments is full."""
        self._before_close: list[Callable[[], Callable[[], object] | None]] = []
        self._closed = threading.Event()
        self._drainer: Drainer | None = None
        _living.add(self)
        register_fork_hooks(self)
        self._start_drainer()

    def task(
        self,
        instructions: str,
        *,
        task_id: str | None = None,
        session_id: str | None = None,
        domain: str | None = None,
        group_id: str | None = None,
        task_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        agent_id: str | None = None,
        user: str | None = None,
    ) -> Task:
        """Returns a context manager (``with`` and ``async with``) that records one trajectory when it ends.

        The default ``session_id`` is the session of the gateway's first answer, else a new id. Attempts at
        the same task from the same start share a ``group_id``. ``user`` is stored only as a hash. Raises
        ContractError for an unknown domain, ConfigError for a user without a key.
        """
        described = dict(metadata or {})
        if user is not None:
            described["user_hash"] = hashed = self.user_hash(user)
            if hashed is None:
                raise ConfigError(
                    "A task names its user, but there is no key to hash it: give user_key= or set "
                    f"{USER_KEY}."
                )
        context = {
            "task_id": task_id or new_id(),
            "instructions": instructions,
            "domain": domain,
            "group_id": group_id,
            "task_type": task_type,
        }
        return self._task(self, context, described, session_id, agent_id or self.agent_id)

    def user_hash(self, user: str) -> str | None:
        """Returns the hash of a user for the metadata; None without a key."""
        return None if self._user_key is None else user_hash(user, self._user_key)

    def session_of(self, user: str) -> str:
        """Returns the session of a user whose calls name no other: an id that does not reveal the user and is
        the same on each call; with a key also in each process. A user whom a pattern opts out by name keeps
        the name: it is matched when the task ends, and is stored nowhere."""
        if self._opt_out.matches(user, None, None):
            return user
        return "u-" + user_hash(user, self._user_key or self._own_key)

    def pending(self) -> int:
        """Returns the number of trajectories that wait for the server's acknowledgement."""
        return self._outbox.pending()

    def stats(self) -> Stats:
        with self._lock:
            counts = dict(self._counts)
        return Stats(
            **counts,
            pending=self._outbox.pending(),
            refused=len(self._outbox.refused()),
            waiting_bytes=self._outbox.waiting_bytes(),
            held=len(self._held.names()),
        )

    def held(self) -> list[Held]:
        """Returns the tasks that could not be redacted or made to fit, in order, without their content."""
        return self._held.all()

    def drop_held(self, held_id: str) -> None:
        """Deletes a held task for good. A missing one is no error."""
        self._held.drop(held_id)

    def retry_held(self) -> int:
        """Retries all held tasks, with the present rules and settings; returns the number recorded. Tasks
        that fail again stay held. Raises OutboxFullError, BusError."""
        recorded = 0
        for held in self.held():
            try:
                document = self._held.open(held.held_id)
                if self._opt_out.matches_document(document):
                    self._held.drop(held.held_id)
                    self._count("opted_out")
                    continue
                data, beside = self._prepare(document)
            except Exception as error:
                _log.warning("a task is still held", held_id=held.held_id, reason=loggable(error))
                continue
            self._start_drainer()
            # It may have been recorded already, by a process that was killed before it dropped the held copy.
            with suppress(ConflictError):
                self._put(document, data, beside)
            self._held.drop(held.held_id)
            self._count("recorded")
            recorded += 1
        return recorded

    @property
    def has_store(self) -> bool:
        """Returns whether there is an object store for trajectories above the size of a message."""
        return self._objects is not None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def flush(self, timeout: float = 30.0) -> bool:
        """Waits until all is acknowledged. Returns False after ``timeout`` seconds; publishing goes on."""
        return self._flush(timeout, while_away=True)

    def close(self, timeout: float = 5.0) -> None:
        """Ends open tasks, publishes as much as possible within ``timeout`` seconds, and stops. The rest
        stays in the outbox until a recorder opens the same file."""
        if self._closed.is_set():
            return
        for reference in list(self._before_close):
            try:
                if (step := reference()) is not None:
                    step()
            except Exception as error:
                _log.error("an open task was not recorded", reason=loggable(error))
        self._flush(timeout, while_away=False)
        self._closed.set()
        if self._drainer is not None:
            self._drainer.stop()
        for box in self._boxes():
            box.close()
        _living.discard(self)

    def before_close(self, step: Callable[[], object], *, weak: bool = False) -> None:
        """Registers ``step``, called when the recorder closes or the process ends, while it still records. A
        ``weak`` one, a method, is forgotten together with its object."""
        self._before_close = [one for one in self._before_close if one() is not None]
        self._before_close.append(weakref.WeakMethod(step) if weak else lambda: step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def accept(self, document: dict[str, Any]) -> None:
        """Redacts a finished trajectory, checks it against the contract, and makes it durable.

        A trajectory that cannot be redacted, for any reason, is retried once and then held (``held``). Raises
        ContractError if it breaks the contract or its limits; it is then held, too. Raises OutboxFullError,
        BusError, and RedactionError if it cannot even be held: it is then not recorded. Blocks for one fsync,
        and for longer only if the outbox is full and ``on_full`` is ``block``.
        """
        if self._opt_out.matches_document(document):
            self._count("opted_out")
            return
        try:
            try:
                data, beside = with_one_retry(lambda: self._prepare(document))
            except Exception as error:
                self._hold(document, error)
                return
            self._start_drainer()
            self._put(document, data, beside)
        except BaseException:
            self._count("failed")
            raise
        self._count("recorded")

    def _hold(self, document: dict[str, Any], error: Exception) -> None:
        """Stores the task encrypted, with only the class of the error: its text may repeat the document."""
        reason = reason_of(error)
        name = type(error).__name__
        try:
            held = self._held.hold(document, reason, name, self.clock.now())
        except Exception as failure:
            _log.error("a task could not be held", reason=loggable(failure), error=name)
            if isinstance(error, OnwardError):
                raise error from None
            raise RedactionError(
                f"The task could not be redacted ({name}) and not be held: see the log."
            ) from None
        _log.error("a task is held beside the outbox", held_id=held.held_id, reason=reason, error=name)
        if isinstance(error, ContractError):
            raise error

    def _prepare(self, document: dict[str, Any]) -> tuple[bytes, list[Outgoing]]:
        """Returns the message of a trajectory, and its attachments."""
        return self._preparer.prepare_with_attachments(document)

    def _put(self, document: dict[str, Any], data: bytes, beside: list[Outgoing]) -> None:
        if not self._put_attachments(beside):
            data = self._preparer.prepare(document)
        # Real time: an agent is blocked in real time, whatever the clock of its records.
        until = None if self._block_seconds is None else time.monotonic() + self._block_seconds
        while True:
            try:
                name = document["trajectory_id"]
                self._outbox.put(subjects.TRAJECTORY, data, msg_id=name, headers=HEADERS)
                self._full_since = None
                return
            except OutboxFullError as error:
                if self._full_since is None:
                    self._full_since = time.monotonic()
                    self._tell_full(str(error))
                late = until is not None and time.monotonic() >= until
                if self._on_full == "raise" or late or self._closed.is_set():
                    raise
            self._closed.wait(_BLOCK_SECONDS)

    def _put_attachments(self, beside: list[Outgoing]) -> bool:
        """Returns False if their outbox has no room: the trajectory is then recorded without them. It never
        waits: a store that is away for long must not stop the agent."""
        if self._attachments is None or not beside:
            return True
        try:
            self._attachments.put_all(beside)
        except OutboxFullError as error:
            if not self._misses_attachments:
                self._misses_attachments = True
                self._tell_full(f"Trajectories are recorded without the bytes of their pictures: {error}")
            return False
        self._misses_attachments = False
        return True

    def _tell_full(self, message: str) -> None:
        """Sends an alert: one each time that an outbox becomes full, not one for each task."""
        _log.error("alert", kind="outbox_full", message=message)
        if self._drainer is not None:
            self._drainer.alert("outbox_full", message)

    def _start_drainer(self) -> None:
        url, token = self._nats
        if url is None or self._drainer is not None or self._closed.is_set():
            return
        with IMPORTING:
            from onward.capture.recorder.delivery import Drainer

        with self._lock:
            if self._drainer is None:
                self._drainer = Drainer(
                    self._outbox, url, token, self._objects, attachments=self._attachments
                )

    def _flush(self, timeout: float, *, while_away: bool) -> bool:
        until = time.monotonic() + timeout
        while any(box.pending() for box in self._boxes()):
            drainer = self._drainer
            if drainer is None or time.monotonic() >= until or (drainer.is_offline and not while_away):
                return False
            self._closed.wait(0.005)
        return True

    def _boxes(self) -> list[Outbox]:
        return [self._outbox] if self._attachments is None else [self._outbox, self._attachments]

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def after_fork_in_child(self) -> None:
        """Removes the drainer, whose thread did not survive; the child makes its own when it records."""
        if self._drainer is not None:
            _of_parents.append(self._drainer)  # kept alive, so that nothing of the parent's is closed here
        self._drainer = None
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(self._counts, 0)
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()


_living: weakref.WeakSet[Recorder] = weakref.WeakSet()
_of_parents: list[object] = []


def _close_all() -> None:
    for recorder in list(_living):
        try:
            recorder.close(timeout=EXIT_SECONDS)
        except Exception as error:  # the others are closed anyway
            _log.error("a recorder could not be closed", reason=loggable(error))


atexit.register(_close_all)
