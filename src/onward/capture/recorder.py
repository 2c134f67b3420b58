"""The recorder: what an agent embeds to hand its work to Onward.

Redacts, then writes to a local outbox that is durable on return; a background thread publishes. Without a
server, or with one that dies, the agent notices nothing and nothing is lost. No torch, no web server and
no engine is imported here. A task is recorded in one piece, when it ends::

    from onward import Recorder

    with Recorder(outbox="outbox.db", nats_url="nats://127.0.0.1:4222") as recorder:
        with recorder.task("Sum the column", task_id="sum-1", domain="data_analysis") as task:
            answer = client.chat.completions.create(...)
            task.turn(observation="Sum the column", action=answer, result={"success": True, "output": "42"})
            task.outcome("completed_successfully")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from onward.bus.outbox import Outbox
from onward.capture import turns
from onward.capture.redaction import redact_trajectory
from onward.clock import Clock, SystemClock, utc_text
from onward.contracts import MAX_BYTES, Trajectory, decode_document, encode, subjects, validate
from onward.contracts.trajectory import Domain
from onward.errors import BusError, ContractError, OutboxFullError
from onward.ids import new_id
from onward.telemetry import logs

Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]

_log = logs.get("recorder")
_RETRY_SECONDS = (0.2, 5.0)
_BLOCK_SECONDS = 0.2


class Recorder:
    """One per process. Thread-safe; tasks from any number of threads or coroutines run side by side.

    ``nats_url`` None only fills the outbox. ``on_full`` says what a full outbox does to the agent: ``raise``
    OutboxFullError, or ``block`` until there is room. Nothing is ever dropped in silence.
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
        clock: Clock | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.subordinate_profile = subordinate_profile
        self._clock: Clock = clock or SystemClock()
        self._outbox = Outbox(Path(outbox), max_bytes=max_bytes)
        self._on_full = on_full
        self._closed = threading.Event()
        self._drainer = _Drainer(self._outbox, nats_url, nats_token) if nats_url else None

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
    ) -> Task:
        """A context manager (``with`` and ``async with``) that records one trajectory when it ends.

        Without ``session_id`` the session of the gateway's first answer is taken, else a new id. Attempts
        at the same task from the same start share a ``group_id``. Raises ContractError for an unknown domain.
        """
        if domain is not None and domain not in get_args(Domain):
            raise ContractError(
                "domain", f"domain is {domain[:40]!r}: expected one of {', '.join(get_args(Domain))}."
            )
        context = {
            "task_id": task_id or new_id(),
            "instructions": instructions,
            "domain": domain,
            "group_id": group_id,
            "task_type": task_type,
        }
        return Task(
            self,
            session_id=session_id,
            agent_id=agent_id or self.agent_id,
            context={key: value for key, value in context.items() if value is not None},
            metadata=dict(metadata or {}),
        )

    def pending(self) -> int:
        """Trajectories that wait for the server's acknowledgement."""
        return self._outbox.pending()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything is acknowledged; False after ``timeout`` seconds (it goes on later)."""
        until = self._clock.monotonic() + timeout
        while self._outbox.pending():
            if self._drainer is None or self._clock.monotonic() >= until:
                return False
            self._closed.wait(0.01)
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Send what can be sent within ``timeout`` seconds and stop. What is left stays in the outbox."""
        if self._closed.is_set():
            return
        self.flush(timeout)
        self._closed.set()
        if self._drainer is not None:
            self._drainer.stop()
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _accept(self, document: dict[str, Any]) -> None:
        """Redact, check against the contract, and make durable."""
        if len(document["turns"]) > turns.MAX_TURNS:
            raise ContractError(
                "too_many_turns", f"A trajectory takes at most {turns.MAX_TURNS} turns: split the task."
            )
        redacted = redact_trajectory(document).document
        if turns.has_long_text(redacted):
            redacted, cut = turns.cut_long(redacted)
            redacted["metadata"]["texts_cut"] = cut
        data = encode(validate(redacted, Trajectory))
        if len(data) > MAX_BYTES:
            raise ContractError(
                "too_large",
                f"The trajectory has {len(data)} bytes and at most {MAX_BYTES} are taken: record less.",
            )
        decode_document(data)  # depth
        while True:
            try:
                self._outbox.put(subjects.TRAJECTORY, data, msg_id=redacted["trajectory_id"])
                return
            except OutboxFullError:
                if self._on_full == "raise" or self._closed.is_set():
                    raise
            self._closed.wait(_BLOCK_SECONDS)


class Task:
    """One task in progress. ``turn`` may be called from several threads; turns are numbered as they come."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        session_id: str | None,
        agent_id: str,
        context: dict[str, Any],
        metadata: dict[str, Any],
    ) -> None:
        self.trajectory_id = new_id()
        self._recorder = recorder
        self._clock = recorder._clock
        self._lock = threading.Lock()
        self._session_id = session_id
        self._agent_id = agent_id
        self._context = context
        self._metadata = metadata
        self._turns: list[dict[str, Any]] = []
        self._tokens = 0
        self._start = self._clock.now()
        self._turn_began = self._start
        self._done = False

    @property
    def session_id(self) -> str:
        """Send it to the gateway as ``Onward-Session``: outcomes are counted by session."""
        with self._lock:
            if self._session_id is None:
                self._session_id = new_id()
            return self._session_id

    def turn(
        self,
        *,
        observation: Any,
        action: Any,
        result: Any = None,
        thoughts: str | list[str] | None = None,
    ) -> None:
        """Add one turn. Plain values do: text, dicts, an exception, a chat completion.

        ``observation``: text or an object; its type is ``user_message`` in the first turn and
        ``tool_result`` later unless given. ``action``: text, a dict with ``type``, or a chat completion.
        ``result``: None (success), text, a dict, a bool or an exception. Raises ContractError for others.
        """
        if turns.is_completion(action):
            action = self.from_completion(action)
        turn: dict[str, Any] = {
            "observation": turns.observation(observation, first=not self._turns),
            "action": turns.action(action),
            "result": turns.result(result),
        }
        if thoughts:
            turn["thought_process"] = [thoughts] if isinstance(thoughts, str) else list(thoughts)
        with self._lock:
            if self._done:
                raise ContractError("closed", "The task is over; open a new one to record more turns.")
            turn["turn_id"] = len(self._turns) + 1
            turn["timestamp"] = utc_text(self._turn_began)
            self._turns.append(turn)
            self._turn_began = self._clock.now()

    def from_completion(self, response: Any) -> dict[str, Any]:
        """The action of a chat completion: a dict, or an OpenAI client's object.

        Takes over the gateway's sampling record, and notes model, release, session and token usage.
        Raises ContractError when it holds no choice.
        """
        completion = turns.completion(response)
        with self._lock:
            self._metadata.update(completion.metadata)
            self._tokens += completion.tokens
            if self._session_id is None and completion.session_id:
                self._session_id = completion.session_id
        return completion.action

    def outcome(self, status: Status, completion_percentage: float | None = None) -> None:
        """How the task ended; ``completion_percentage`` is a share, 0 to 1. The last call counts."""
        outcome: dict[str, Any] = {"status": status}
        if completion_percentage is not None:
            outcome["completion_percentage"] = completion_percentage
        with self._lock:
            self._metadata["outcome"] = outcome

    def discard(self) -> None:
        """Record nothing of this task."""
        with self._lock:
            self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
            return
        with self._lock:
            status = "failed" if isinstance(error, Exception) else "abandoned"
            self._metadata.setdefault("outcome", {"status": status})
        try:
            self._finish()
        except Exception as own:  # the agent's own error matters more
            _log.error("a task was not recorded", reason=type(own).__name__)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _finish(self) -> None:
        document = self._close()
        if document is not None:
            self._recorder._accept(document)

    def _close(self) -> dict[str, Any] | None:
        """The finished document, once; None when there is nothing to record."""
        session_id = self.session_id
        with self._lock:
            if self._done or not self._turns:
                self._done = True
                return None
            self._done = True
            metadata = {"model": "unknown", **self._metadata}
            if self._tokens:
                metadata.setdefault("total_tokens", self._tokens)
            document = {
                "trajectory_id": self.trajectory_id,
                "session_id": session_id,
                "agent_id": self._agent_id,
                "start_timestamp": utc_text(self._start),
                "end_timestamp": utc_text(self._clock.now()),
                "turns": self._turns,
                "task_context": self._context,
                "metadata": metadata,
            }
        if self._recorder.subordinate_profile is not None:
            document["subordinate_profile"] = self._recorder.subordinate_profile
        return turns.plain(document)


class _Drainer:
    """A daemon thread with its own event loop and connection. Errors of the network are its own business."""

    def __init__(self, outbox: Outbox, url: str, token: str | None) -> None:
        self._outbox = outbox
        self._url = url
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="onward-outbox", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just closed
                self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(5.0)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._run())
        try:
            if not self._stopping:
                self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._task.cancel()
            self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _run(self) -> None:
        from onward.bus.connection import Bus

        pause, most = _RETRY_SECONDS
        while True:
            bus = None
            try:
                bus = await Bus.connect(self._url, token=self._token, name="onward-recorder")
                pause = _RETRY_SECONDS[0]
                await self._outbox.drain(bus)
            except BusError as error:
                _log.warning("the outbox waits for NATS", reason=str(error))
            except Exception as error:  # whatever it is, the agent goes on and so does the drainer
                _log.error("the outbox could not be drained", reason=type(error).__name__)
            finally:
                if bus is not None:
                    await bus.close()
            await asyncio.sleep(pause)
            pause = min(pause * 2, most)
