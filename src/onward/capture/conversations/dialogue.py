"""Converts a task's chat messages and completions, in the form of OpenAI-compatible clients, into turns.

The result of a call is in the request that follows it, or is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from onward.capture.conversations import endings, exchange, turns
from onward.capture.conversations.exchange import Message

if TYPE_CHECKING:
    from onward.capture.recorder.task import Task

Closed = Literal["answer", "idle", "close"]
"""Reason that a task ended: a final answer; silence; the end of the client, the recorder or the process."""
INTERRUPTED = "cancelled: the caller stopped before the answer was complete"
NOT_CHOSEN = "not called: the agent continued with another choice"


@dataclass(frozen=True)
class PendingRequest:
    """A request that waits for its answer."""

    observation: dict[str, Any]
    at: datetime


class Dialogue:
    """Fills ``task`` turn by turn. Not thread-safe; several dialogues may fill one task."""

    def __init__(self, task: Task, source: str) -> None:
        self.task = task
        self._source = source
        self._number = task.next_conversation()
        self._latest = 0
        """Number of its latest turn."""
        self._waiting: dict[str, dict[str, Any]] = {}
        """Maps the id of a call, or its number if it has none, to the turn that waits for its result."""
        self._tools: Any = None
        self.failed = False
        """True if the latest call failed."""

    @property
    def pending_calls(self) -> frozenset[str]:
        """Ids of calls without a result."""
        return frozenset(self._waiting)

    def add_request(self, new: Sequence[Message], tools: Any, at: datetime) -> PendingRequest:
        """Adds a request; ``new`` are its messages beyond the previous ones, ``tools`` its tools."""
        self._take_results(new)
        return PendingRequest(self._observation(new, tools), at)

    def add_answer(self, asked: PendingRequest, document: Mapping[str, Any]) -> bool:
        """Adds the answer to a request. Returns whether it is final (calls no tool). Raises ContractError."""
        read = turns.completion(document)
        self.task.note(read.metadata, read.tokens, read.session_id)
        self.failed = False
        self._waiting = {}
        with self.task.together():
            made = exchange.answer(asked.observation, read.action, read.calls, self.task.turns_so_far + 1)
            for turn in made:
                action = turn["action"]
                final = action["type"] != "tool_call"
                if final:
                    turn["result"] = endings.result_of(action)
                kept = self._add(turn, asked.at)
                if not final:
                    self._waiting[action.get("tool_call_id", exchange.WRITTEN)] = kept
        return not self._waiting

    def add_interruption(
        self, asked: PendingRequest, completion: Mapping[str, Any] | None, error: BaseException | None
    ) -> None:
        """Adds a request whose answer broke off, by ``error`` or the caller, after ``completion``."""
        action: dict[str, Any] = {"type": "response"}
        if completion is not None:
            action = turns.completion(completion).action
        result = {"success": False, "error": INTERRUPTED} if error is None else turns.result(error)
        self._add({"observation": asked.observation, "action": action, "result": result}, asked.at)
        self.failed = error is not None

    def choose_other(self) -> None:
        """Notes that the agent continued with another choice than the first: its calls have no results."""
        for call_id in self.pending_calls:
            self.add_result(call_id, {"success": False, "error": NOT_CHOSEN})

    def add_result(self, call_id: str, result: Any, milliseconds: float | None = None) -> bool:
        """Adds the result of one call, if known at once; returns whether a call waited for it."""
        turn = self._waiting.pop(call_id, None)
        if turn is None:
            return False
        turn["result"] = turns.plain(turns.result(result), 3)
        if milliseconds is not None:
            turn["result"].setdefault("execution_time_ms", round(milliseconds, 3))
        return True

    def close(self, why: Closed) -> None:
        """Records the task. Without a final answer, and unless the agent set an outcome, it is abandoned, or
        failed if the latest call failed. Raises OnwardError if it could not be recorded."""
        self.task.note({"capture": {"source": self._source, "closed": why}})
        if why != "answer":
            self.task.default_outcome("failed" if self.failed else "abandoned")
        self.task.finish()

    def _add(self, turn: dict[str, Any], at: datetime) -> dict[str, Any]:
        """Adds a turn; one of a further conversation of the task has that conversation's number."""
        if self._number > 1:
            turn = {**turn, "action": {**turn["action"], "conversation": self._number}}
        with self.task.together():
            kept = self.task.add(turn, at)
            self._latest = self.task.turns_so_far
        return kept

    def _take_results(self, new: Sequence[Message]) -> None:
        names = list(self._waiting)
        for index, told in exchange.results(names, new).items():
            self.add_result(names[index], told)

    def _observation(self, new: Sequence[Message], tools: Any) -> dict[str, Any]:
        """Returns the observation of a request; a reference if the request is repeated."""
        if not new:
            return {"type": "system_message", "content": {"same_as_turn": max(1, self._latest)}}
        if tools == self._tools:
            tools = None
        elif tools is not None:
            self._tools = tools = turns.plain(tools, 5)
        return exchange.request_observation(new, tools)
