"""``langchain_handler``: LangChain's callbacks become trajectories, one for each outermost run.

The optional package ``langchain-core`` is imported only when a handler is made. LangChain logs exceptions of
a handler and goes on, so recording cannot disturb the chain.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.capture.clients.calls import Call, guard
from onward.capture.clients.matching import Chats
from onward.capture.conversations.exchange import instructions, text
from onward.capture.conversations.langchain_messages import chat_completion, chat_message
from onward.errors import MissingExtraError

if TYPE_CHECKING:
    from uuid import UUID

    from langchain_core.callbacks import BaseCallbackHandler

    from onward.capture.recorder import Recorder
    from onward.capture.recorder.task import Task


def langchain_handler(recorder: Recorder, **described: Any) -> BaseCallbackHandler:
    """Returns a callback handler: ``chain.invoke(…, config={"callbacks": [langchain_handler(recorder)]})``.

    The outermost run is the task; it is recorded when that run ends, with its error if it has one.
    ``described`` (``domain``, ``task_type``, ``session_id`` …) goes to ``Recorder.task``;
    ``metadata={"session_id": …}`` of a run names its session. One handler serves any number of runs and
    threads. Raises MissingExtraError.
    """
    try:
        from langchain_core.callbacks import BaseCallbackHandler
    except ImportError:
        raise MissingExtraError("langchain", "Recording from LangChain") from None

    class Handler(_Runs, BaseCallbackHandler):
        """The class that LangChain calls; ``_Runs`` does the work."""

    return Handler(recorder, described)


@dataclass(eq=False)
class _Root:
    """The outermost run of a task."""

    run_id: UUID
    task: Task | None = None
    """Made at the first question to a model."""


@dataclass(frozen=True)
class _Run:
    root: _Root
    path: tuple[UUID, ...]
    """The runs around it, from the outermost to itself."""


class _Runs:
    """Assigns runs to tasks, and within a task to its conversations: parallel branches of a run have one
    each. Callbacks come from any thread."""

    def __init__(self, recorder: Recorder, described: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._described = dict(described)
        self._lock = threading.RLock()
        self._chats = _chats_of(recorder)
        self._runs: dict[UUID, _Run] = {}
        self._calls: dict[UUID, Call] = {}
        self._tools: dict[UUID, tuple[str, float]] = {}
        recorder.before_close(self._close_all, weak=True)  # LangChain holds the handler while it is needed

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        self._begin(run_id, parent_run_id)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        self._begin(run_id, parent_run_id)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> None:
        with guard("log"):
            offered = (given.get("invocation_params") or {}).get("tools")
            self._ask(run_id, parent_run_id, [chat_message(one) for one in messages[0]], offered, metadata)

    def on_llm_start(
        self,
        serialized: Any,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        with guard("log"):
            self._ask(run_id, parent_run_id, [{"role": "user", "content": prompts[0]}], None, metadata)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            with guard("log"):
                call.add_answer(chat_completion(response))
        self._end(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, response: Any = None, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            with guard("log"):
                call.add_interruption(_part(response), error)
        self._end(run_id, error)

    def on_tool_start(
        self,
        serialized: Mapping[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tool_call_id: str | None = None,
        **_: Any,
    ) -> None:
        self._begin(run_id, parent_run_id)
        self._tools[run_id] = (tool_call_id or "", self._recorder.clock.monotonic())

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        with guard("log"):
            failed = getattr(output, "status", "success") == "error"
            result = text(getattr(output, "content", output))
            name = getattr(output, "tool_call_id", None)
            self._add_result(run_id, {"success": False, "error": result} if failed else result, name)
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        with guard("log"):
            self._add_result(run_id, error, None)
        self._end(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id, error)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id, error)

    def _begin(self, run_id: UUID, parent_run_id: UUID | None) -> _Run:
        with self._lock:
            outer = self._runs.get(parent_run_id) if parent_run_id is not None else None
            path = (*outer.path, run_id) if outer else (run_id,)
            return self._runs.setdefault(run_id, _Run(outer.root if outer else _Root(run_id), path))

    def _ask(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        messages: list[Any],
        tools: Any,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        with self._lock:
            run = self._begin(run_id, parent_run_id)
            task = run.root.task
            if task is None:
                described = {"session_id": (metadata or {}).get("session_id"), **self._described}
                task = run.root.task = self._recorder.task(instructions(messages), **described)
        self._calls[run_id] = self._chats.begin(messages, tools, None, task=task, near=run.path)

    def _add_result(self, run_id: UUID, result: Any, name: str | None) -> None:
        asked_for, since = self._tools.pop(run_id, ("", self._recorder.clock.monotonic()))
        run = self._runs.get(run_id)
        if run is not None and run.root.task is not None:
            milliseconds = 1000.0 * (self._recorder.clock.monotonic() - since)
            self._chats.add_result(run.root.task, name or asked_for, result, milliseconds, run.path)

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        """Ends a run, and with the outermost run its task."""
        run = self._runs.pop(run_id, None)
        if run is None or run.root.run_id != run_id or run.root.task is None:
            return
        with guard("log"):
            if error is not None:
                run.root.task.default_outcome("failed" if isinstance(error, Exception) else "abandoned")
            self._chats.end_task(run.root.task, "answer")

    def _close_all(self) -> None:
        with self._lock:
            tasks = {id(run.root): run.root.task for run in self._runs.values()}.values()
            self._runs = {}
        for task in tasks:
            if task is not None:
                with guard("log"):
                    self._chats.end_task(task, "close")


_shared: dict[Recorder, Chats] = {}
_shared_lock = threading.Lock()


def _chats_of(recorder: Recorder) -> Chats:
    """Returns the open conversations of all handlers of a recorder: programs make a handler for each run."""
    with _shared_lock:
        if recorder not in _shared:
            _shared[recorder] = Chats(recorder, source="langchain")
            recorder.before_close(lambda: _shared.pop(recorder, None))
        return _shared[recorder]


def _part(response: Any) -> dict[str, Any] | None:
    """Returns the part of an answer that arrived before its error, if any."""
    generations = getattr(response, "generations", None)
    if not generations or not generations[0]:
        return None
    message = getattr(generations[0][0], "message", None)
    has_words = generations[0][0].text or getattr(message, "tool_calls", None)
    return chat_completion(response) if has_words else None
