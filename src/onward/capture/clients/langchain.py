"""``langchain_handler``: LangChain's callbacks become trajectories, one for each outermost run.

The optional package ``langchain-core`` is imported only when a handler is made. LangChain logs exceptions of
a handler and goes on, so recording cannot disturb the chain.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onward.capture.clients.matching import guard
from onward.capture.conversations.dialogue import Dialogue, PendingRequest
from onward.capture.conversations.exchange import instructions
from onward.capture.conversations.langchain_messages import chat_completion, chat_message
from onward.errors import MissingExtraError

if TYPE_CHECKING:
    from uuid import UUID

    from langchain_core.callbacks import BaseCallbackHandler

    from onward.capture.recorder import Recorder


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


class _Root:
    """The outermost run of a task."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        self.dialogue: Dialogue | None = None
        self.known: list[Any] = []
        """Messages that are already in turns."""


class _Runs:
    """Assigns runs to tasks. Callbacks come from any thread."""

    def __init__(self, recorder: Recorder, described: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._described = dict(described)
        self._lock = threading.RLock()
        self._roots: dict[UUID, _Root] = {}
        self._asked: dict[UUID, PendingRequest] = {}
        self._tools: dict[UUID, tuple[str, float]] = {}
        recorder.before_close(self._close_all)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        with self._lock:
            self._root(run_id, parent_run_id)

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
            told = [chat_message(message) for message in messages[0]]
            offered = (given.get("invocation_params") or {}).get("tools")
            self._ask(run_id, parent_run_id, told, offered, metadata)

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
        with guard("log"), self._lock:
            asked, root = self._asked.pop(run_id, None), self._roots.get(run_id)
            if asked is None or root is None or root.dialogue is None:
                return
            document = chat_completion(response)
            root.dialogue.add_answer(asked, document)
            root.known.append(document["choices"][0]["message"])
        self._ended(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        with guard("log"), self._lock:
            asked, root = self._asked.pop(run_id, None), self._roots.get(run_id)
            if asked is not None and root is not None and root.dialogue is not None:
                root.dialogue.add_interruption(asked, None, error)
        self._ended(run_id, error)

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
        with self._lock:
            self._root(run_id, parent_run_id)
            self._tools[run_id] = (tool_call_id or "", self._recorder.clock.monotonic())

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        name = getattr(output, "tool_call_id", None)
        failed = getattr(output, "status", "success") == "error"
        content = getattr(output, "content", output)
        text = content if isinstance(content, str) else str(content)
        self._tool_result(run_id, {"success": False, "error": text} if failed else text, name)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._tool_result(run_id, error, None)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._ended(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._ended(run_id, error)

    def _root(self, run_id: UUID, parent_run_id: UUID | None) -> _Root:
        root = self._roots.get(parent_run_id) if parent_run_id is not None else None
        root = self._roots.setdefault(run_id, root or _Root(run_id))
        return root

    def _ask(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        messages: list[Any],
        tools: Any,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        clock = self._recorder.clock
        with self._lock:
            root = self._root(run_id, parent_run_id)
            if root.dialogue is None:
                described = {"session_id": (metadata or {}).get("session_id"), **self._described}
                task = self._recorder.task(instructions(messages), **described)
                root.dialogue = Dialogue(task, "langchain")
            same = len(messages) >= len(root.known) and all(
                _same(one, other) for one, other in zip(root.known, messages, strict=False)
            )
            new = messages[len(root.known) :] if same else messages
            root.known = list(messages)
            self._asked[run_id] = root.dialogue.add_request(new, tools, clock.now())

    def _tool_result(self, run_id: UUID, result: Any, name: str | None) -> None:
        with guard("log"), self._lock:
            asked_for, since = self._tools.pop(run_id, ("", self._recorder.clock.monotonic()))
            root = self._roots.get(run_id)
            if root is not None and root.dialogue is not None:
                milliseconds = 1000.0 * (self._recorder.clock.monotonic() - since)
                root.dialogue.add_result(name or asked_for, result, milliseconds)
        self._ended(run_id)

    def _ended(self, run_id: UUID, error: BaseException | None = None) -> None:
        """Ends a run, and with the outermost run its task."""
        with self._lock:
            root = self._roots.pop(run_id, None)
            if root is None or root.run_id != run_id or root.dialogue is None:
                return
        with guard("log"):
            if error is not None:
                root.dialogue.failed = True
                root.dialogue.task.default_outcome("failed" if isinstance(error, Exception) else "abandoned")
            root.dialogue.close("answer")

    def _close_all(self) -> None:
        with self._lock:
            roots = {id(root): root for root in self._roots.values()}.values()
            self._roots = {}
        for root in roots:
            if root.dialogue is not None:
                with guard("log"):
                    root.dialogue.close("close")


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    calls = [[call.get("id") for call in message.get("tool_calls") or ()] for message in (one, other)]
    if calls[0] or calls[1]:
        return calls[0] == calls[1]
    return one.get("role") == other.get("role") and one.get("content") == other.get("content")
