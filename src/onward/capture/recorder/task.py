"""A task in progress and its turns: the objects that the agent's code uses.

Invariants: values are copied when they are passed in, since agents go on changing their lists. Nothing is
written before the task ends, and then as one trajectory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from onward.capture.conversations import endings, turns
from onward.capture.recorder.threads import inherit_in_threads
from onward.capture.retrying import loggable
from onward.clock import utc_text
from onward.contracts.trajectory import Domain
from onward.errors import ContractError
from onward.ids import new_id
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.recorder.core import Recorder

Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]
_TURN_DEPTH = 2
"""A turn lies two levels down in its message."""
_log = logs.get("recorder")


class Task:
    """One task in progress. Threads may call ``turn``; turns are numbered in the order of their start.

    Code in its ``with`` block belongs to it: coroutines, and threads and pools that the block uses."""

    def __init__(
        self,
        recorder: Recorder,
        context: Mapping[str, str | None],
        metadata: Mapping[str, Any],
        session_id: str | None,
        agent_id: str,
    ) -> None:
        domain = context["domain"]
        if domain is not None and domain not in get_args(Domain):
            raise ContractError(
                "domain", f"domain is {domain[:40]!r}: expected one of {', '.join(get_args(Domain))}."
            )
        self.trajectory_id = new_id()
        self._recorder = recorder
        self._clock = recorder.clock
        self._lock = threading.RLock()
        self._session_id = session_id
        self._agent_id = agent_id
        self._context = turns.plain({key: value for key, value in context.items() if value is not None}, 1)
        self._metadata = turns.plain(dict(metadata), 1)
        self._turns: list[dict[str, Any]] = []
        self._conversations = 0
        self._tokens = 0
        self._start = self._clock.now()
        self._turn_began = self._start
        self._done = False
        self._document: dict[str, Any] | None = None
        """The finished document, until it is recorded."""
        self._when_done: list[Callable[[], object]] = []
        self._outer: Token[Task | None] | None = None

    @property
    def session_id(self) -> str:
        """Session id, to be sent to the gateway as ``Onward-Session``: outcomes are counted by session."""
        with self._lock:
            if self._session_id is None:
                self._session_id = new_id()
            return self._session_id

    def turn(
        self, *, observation: Any, action: Any, result: Any = None, thoughts: str | list[str] | None = None
    ) -> None:
        """Adds one finished turn from plain values: text, dicts, an exception, a chat completion.

        ``observation``: text or an object; its default type is ``user_message`` in the first turn and
        ``tool_result`` later. ``action``: text, a dict with ``type``, or a chat completion. ``result``: None
        (success), text, a dict, a bool or an exception. Raises ContractError for other values.
        """
        made = self._action(action)
        turn: dict[str, Any] = {
            "observation": turns.observation(observation, first=not self._turns),
            "action": made,
            "result": endings.result_of(made) if result is None else turns.result(result),
        }
        if thoughts:
            turn["thought_process"] = [thoughts] if isinstance(thoughts, str) else list(thoughts)
        self.add(turn)

    def open_turn(
        self, observation: Any, *, action: Any = None, thoughts: str | list[str] | None = None
    ) -> OpenTurn:
        """Returns a context manager (``with`` and ``async with``) for a turn in progress.

        It measures the duration of its action. An exception that leaves it becomes its result and is raised
        further. ``turn`` describes the values of ``observation`` and ``action``. Raises ContractError for
        other values.
        """
        opened = OpenTurn(self, turns.observation(observation, first=not self._turns))
        if action is not None:
            opened.action(action)
        for thought in [thoughts] if isinstance(thoughts, str) else thoughts or []:
            opened.think(thought)
        return opened

    def add(self, turn: dict[str, Any], began: datetime | None = None) -> dict[str, Any]:
        """Adds a turn in the form of the contract, without number and time. Returns the stored copy, to which
        the caller may add JSON values. Raises ContractError if the task is over."""
        kept = turns.plain(turn, _TURN_DEPTH)
        if thoughts := turns.lift_thoughts(kept.get("action") or {}):
            kept["thought_process"] = [*thoughts, *kept.get("thought_process", ())]
        with self._lock:
            if self._done:
                raise ContractError("closed", "The task is over; open a new one to record more turns.")
            kept["timestamp"] = utc_text(began or self._turn_began)
            self._turns.append(kept)
            self._turn_began = self._clock.now()
        return kept

    def together(self) -> AbstractContextManager[object]:
        """Returns a context in which no other thread adds a turn."""
        return self._lock

    def next_conversation(self) -> int:
        """Returns the number of a new conversation of this task, from 1."""
        with self._lock:
            self._conversations += 1
            return self._conversations

    def from_completion(self, response: Any) -> dict[str, Any]:
        """Returns the action of a chat completion: a dict, or an OpenAI client's object.

        Copies the gateway's sampling record, and notes model, release, session and token usage. Raises
        ContractError if it contains no choice.
        """
        completion = turns.completion(response)
        self.note(completion.metadata, completion.tokens, completion.session_id)
        return completion.action

    def note(self, metadata: Mapping[str, Any], tokens: int = 0, session_id: str | None = None) -> None:
        """Adds to the task's metadata and tokens; the session is used if none is known yet."""
        described = turns.plain(dict(metadata), 1)
        with self._lock:
            self._metadata.update(described)
            self._tokens += tokens
            if self._session_id is None and session_id:
                self._session_id = session_id

    def note_user(self, user_hash: str) -> None:
        """Notes the user's hash, unless one is known already."""
        with self._lock:
            self._metadata.setdefault("user_hash", user_hash)

    def outcome(self, status: Status, completion_percentage: float | None = None) -> None:
        """Sets the outcome; ``completion_percentage`` is a share, 0 to 1. The last call counts."""
        outcome: dict[str, Any] = {"status": status}
        if completion_percentage is not None:
            outcome["completion_percentage"] = completion_percentage
        with self._lock:
            self._metadata["outcome"] = outcome

    def default_outcome(self, status: Status) -> None:
        """Sets the outcome unless one is set already."""
        with self._lock:
            self._metadata.setdefault("outcome", {"status": status})

    @property
    def turns_so_far(self) -> int:
        with self._lock:
            return len(self._turns)

    @property
    def is_over(self) -> bool:
        """Returns whether the task takes no more turns."""
        return self._done

    def discard(self) -> None:
        """Ends the task without recording it."""
        with self._lock:
            self._done, finished, self._document = True, self._document, None
        if finished is not None:
            self._recorder.drop_held(self.trajectory_id)

    def when_done(self, step: Callable[[], object]) -> None:
        """Registers ``step``, called when the task ends, while it still takes turns. It must not raise."""
        self._when_done.append(step)

    def finish(self) -> None:
        """Records the task in its present state, as ``with`` does at its end. Once recorded, a call does
        nothing.

        Raises OnwardError if it could not be recorded (``Recorder.accept``); another call tries again.
        """
        self._run_steps()
        self._close()
        self._run_steps()  # a thread may have registered one meanwhile
        with self._lock:
            document, self._document = self._document, None
        if document is None:
            return
        try:
            self._recorder.accept(document)
        except BaseException:
            with self._lock:
                self._document = document
            raise

    def _run_steps(self) -> None:
        while self._when_done:
            self._when_done.pop(0)()

    def __enter__(self) -> Self:
        if self._recorder.follows_threads:
            inherit_in_threads(_current)
        self._outer = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._finish_after(error)

    def _leave(self) -> None:
        if self._outer is not None:
            with suppress(ValueError):  # left in a different context than it was entered in
                _current.reset(self._outer)
            self._outer = None

    def _finish_after(self, error: BaseException | None) -> None:
        if error is None:
            self.finish()
            return
        self.default_outcome("failed" if isinstance(error, Exception) else "abandoned")
        try:
            self.finish()
        except Exception as own:  # the agent's own error matters more
            _log.error("a task was not recorded", reason=loggable(own))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        self._leave()
        # Shielded: a task that is cancelled meanwhile is recorded too.
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._finish_after, error)))

    def _action(self, value: Any) -> dict[str, Any]:
        return turns.action(self.from_completion(value) if turns.is_completion(value) else value)

    def _close(self) -> None:
        """Makes the document, once, if there is something to record."""
        session_id = self.session_id
        with self._lock:
            if self._done:
                return
            self._done = True
            kept = [_settled(turn) for turn in self._turns if "action" in turn]
            if not kept:
                return
            metadata = {"model": "unknown", **self._metadata}
            if self._tokens:
                metadata.setdefault("total_tokens", self._tokens)
            self._document = {
                "trajectory_id": self.trajectory_id,
                "session_id": session_id,
                "agent_id": self._agent_id,
                "start_timestamp": utc_text(self._start),
                "end_timestamp": utc_text(self._clock.now()),
                "turns": [{**turn, "turn_id": number} for number, turn in enumerate(kept, start=1)],
                "task_context": self._context,
                "metadata": metadata,
            }
            if self._recorder.subordinate_profile is not None:
                self._document["subordinate_profile"] = self._recorder.subordinate_profile


_current: ContextVar[Task | None] = ContextVar("onward_task", default=None)


def current_task(recorder: Recorder) -> Task | None:
    """Returns the task of ``recorder`` in whose ``with`` block the caller is, or None. A thread may outlive
    the block that started it; then it is in no block."""
    task = _current.get()
    return task if task is not None and task._recorder is recorder and not task.is_over else None


def _settled(turn: dict[str, Any]) -> dict[str, Any]:
    return turn if "result" in turn else {**turn, "result": {"success": False, "error": turns.UNFINISHED}}


class OpenTurn:
    """A turn in progress, made by ``Task.open_turn``."""

    def __init__(self, task: Task, observation: dict[str, Any]) -> None:
        self._task = task
        self._observation = observation
        self._action: dict[str, Any] | None = None
        self._result: dict[str, Any] | None = None
        self._thoughts: list[str] = []
        self._kept: dict[str, Any] | None = None
        self._since = task._clock.monotonic()

    def action(self, action: Any) -> None:
        """Sets the agent's action: text, a dict, or a chat completion. Its duration is measured from here."""
        self._action = made = turns.plain(self._task._action(action), _TURN_DEPTH + 1)
        self._thoughts += turns.lift_thoughts(made)
        if self._kept is not None:
            self._kept["action"] = made
        self._since = self._task._clock.monotonic()

    def think(self, thought: str) -> None:
        """Adds one thought before the action."""
        self._thoughts.append(thought)

    def result(self, result: Any) -> None:
        """Sets the result: None (success), text, a dict, a bool or an exception. The default is success."""
        self._result = turns.result(result)

    def __enter__(self) -> Self:
        began = {"observation": self._observation}
        if self._action is not None:
            began["action"] = self._action
        self._kept = self._task.add(began, self._task._clock.now())
        self._since = self._task._clock.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._kept is not None
        if self._action is None and error is None:
            raise ContractError("turn", "The turn has no action: call action() with what the agent did.")
        result = (
            turns.result(error)
            if error is not None
            else self._result or endings.result_of(self._action or {})
        )
        if "execution_time_ms" not in result:
            milliseconds = 1000.0 * (self._task._clock.monotonic() - self._since)
            result = {**result, "execution_time_ms": round(milliseconds, 3)}
        if self._thoughts:
            self._kept["thought_process"] = turns.plain(self._thoughts)
        # A turn without an action, for example if the model did not answer, has failed.
        self._kept.setdefault("action", {"type": "response"})
        self._kept["result"] = turns.plain(result, _TURN_DEPTH + 1)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
