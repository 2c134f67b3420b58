"""``Recording``: turns the events of Agent Zero's hooks into tasks and turns.

Each method is one event. It runs in the agent's event loop, so it copies references, takes times, and hands
finished parts to ``send``; it never waits and never touches a file.

A task is one run of ``Agent.monologue``. Its id follows from the chat and the message that began it, so that
it is the same in a repeat, and feedback finds it after a restart. A subordinate's task is linked to the turn
of its superior.

Invariants: arguments of tools are copied before the host puts secrets into them. What the model was shown is
read from the call itself: the history is compressed in place.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from . import host_objects, prompt
from .drafts import Call, Draft, TurnDraft, copied, here

NAMESPACE = uuid.UUID("6d2f0a0e-6a0c-5d27-9f53-4f1ad7a8a0c1")
BACKGROUND = "background"
INTERRUPTED = "interrupted: the user wrote while the tool ran"
_REMEMBERED = 20_000
_NO_ERRORS = ("InterventionException", "HandledException")
"""An intervention of the user, and an exception that was handled, and noted, before."""
SILENT_SECONDS = 6 * 3600.0
"""A task without any event for so long was cancelled in a way that has no hook."""
_DELEGATION = "call_subordinate"
_PARALLEL = "parallel"
_CALLS = frozenset({"tool_calls", "calls", "items"})
"""Names under which ``parallel`` takes the calls that it starts; without one it waits for others, or ends
them."""
_KILLED = ("kill_process", "reset", "nudge", "remove")

Send = Callable[[dict[str, Any], Any], None]
"""Takes an event for the worker, and the agent that it is about where settings have to be looked up."""


class Recording:
    """The tasks in progress of one process. Hooks of several threads call it."""

    def __init__(self, send: Send, limit: int = 8 << 20) -> None:
        self._send = send
        self.limit = limit
        self.paused = False
        self.gateway_url = ""
        self.opened = self.closed = 0
        self._lock = threading.Lock()
        self._drafts: dict[int, Draft] = {}
        self._ids: OrderedDict[str, int] = OrderedDict()
        """Base of an id → how often it was used: the same message can begin several runs."""
        self._links: OrderedDict[tuple[str, str], tuple[str, int, str]] = OrderedDict()
        """Chat and message → trajectory, turn, session."""

    @property
    def in_progress(self) -> int:
        return len(self._drafts)

    # The task.

    def start(self, agent: Any) -> None:
        """A run of ``monologue`` begins."""
        context = agent.context
        if self.paused or (
            host_objects.kind(context) == BACKGROUND and not host_objects.parent_chat(context)
        ):
            return
        self._end(self._drafts.get(id(agent)), "aborted", error="begun again before its end")
        message = host_objects.trigger(agent)
        message_id = str(getattr(message, "id", "") or "")
        parent, turn, call = self._superior(agent)
        trajectory_id = self._new_id(context.id, agent.number, message_id)
        root = parent.root_id if parent else trajectory_id
        draft = Draft(trajectory_id, root, agent, context.id, self.limit, here())
        if parent is not None and turn is not None and call is not None:
            call.values.setdefault("subordinates", []).append(trajectory_id)
            self._renew(parent, turn)
        with self._lock:
            self._drafts[id(agent)] = draft
        self.opened += 1
        self._send(
            {
                "op": "open",
                "t": trajectory_id,
                "root": root,
                "at": time.time(),
                "chat": context.id,
                "kind": host_objects.kind(context),
                "agent": agent.number,
                "profile": str(getattr(agent.config, "profile", "") or ""),
                "parent": [parent.trajectory_id, turn.number if turn else parent.turns] if parent else None,
                "message": message_id,
                "content": draft.fits(copied(getattr(message, "content", ""))),
            },
            agent,
        )

    def end(self, agent: Any, result: Any, error: Any) -> None:
        """A run of ``monologue`` ends, with its final text or an exception."""
        draft = self._drafts.get(id(agent))
        if isinstance(error, BaseException):
            cause = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
            self._end(draft, "error", error=f"{type(cause).__name__}: {cause}")
        else:
            self._end(draft, "success", result=result if isinstance(result, str) else None)

    def abort(self, context: Any, how: str) -> None:
        """A chat is stopped, reset, nudged or removed. ``context`` is its object, or its id."""
        if how not in _KILLED:
            return
        context_id = context if isinstance(context, str) else context.id
        drafts = list(self._drafts.values())
        stopped = [
            one
            for one in drafts
            if one.context_id == context_id and host_objects.can_be_stopped(one.agent.context)
        ]
        places = [one.place for one in stopped]  # subordinates in chats of their own run in the same place
        for draft in reversed([one for one in drafts if one in stopped or one.place in places]):
            self._end(draft, "aborted", error=f"stopped by the user ({how})", how=how)

    def sweep(self) -> None:
        """Ends the tasks that were cancelled without a hook, and those that have been silent for too long."""
        latest = time.monotonic() - SILENT_SECONDS
        for draft in reversed(list(self._drafts.values())):
            if draft.is_over:
                self._end(draft, "aborted", error="cancelled by Agent Zero")
            elif draft.touched < latest:
                self._end(draft, "aborted", error="no event of this task came for six hours")

    def drop_all(self) -> int:
        """Forgets all tasks in progress, for example because the user switched recording off."""
        with self._lock:
            drafts, self._drafts = list(self._drafts.values()), {}
        for draft in drafts:
            self._send({"op": "drop", "t": draft.trajectory_id}, None)
        return len(drafts)

    # A turn.

    def call_model(self, agent: Any, data: dict[str, Any]) -> None:
        """The language model is asked."""
        draft = self._drafts.get(id(agent))
        if draft is None or data.get("background"):
            return
        iteration = getattr(getattr(agent, "loop_data", None), "iteration", None)
        if (
            draft.turn is not None
            and draft.turn.iteration == iteration
            and draft.turn.open_call() is not None
        ):
            draft.turn.values["further_calls"] = draft.turn.values.get("further_calls", 0) + 1
            return  # a tool asks the model; it is part of the tool's work
        now = prompt.lines(data.get("messages"))
        new, is_break = prompt.new_lines(draft.prompt, now)
        self._flush(draft)
        draft.prompt = now
        draft.turns += 1
        turn = draft.turn = TurnDraft(draft.turns, time.time(), [], iteration=iteration)
        turn.new = [(role, draft.fits(content)) for role, content in new]
        if is_break:
            turn.values["context_break"] = True
        model = data.get("model")
        turn.values["model"] = str(getattr(model, "model_name", "") or "")
        if self._is_ours(model):
            turn.values["gateway"] = True
            data["model"] = self._naming(model, draft)

    def answer(self, agent: Any, data: dict[str, Any], response: Any, reasoning: Any) -> None:
        """The language model has answered."""
        draft = self._drafts.get(id(agent))
        if draft is None or draft.turn is None or data.get("background") or "ms" in draft.turn.values:
            return
        turn = draft.turn
        turn.values["ms"] = round(1000.0 * (time.monotonic() - turn.began), 3)
        turn.values["response"] = draft.fits(response if isinstance(response, str) else "")
        if reasoning:
            turn.values["reasoning"] = draft.fits(str(reasoning))

    def message_of_agent(self, agent: Any, text: Any, message: Any) -> None:
        """An answer of the model entered the history; after an intervention only its beginning."""
        draft = self._drafts.get(id(agent))
        if draft is None or draft.turn is None:
            return
        if "response" not in draft.turn.values:
            draft.turn.values["response"] = draft.fits(str(text or ""))
            draft.turn.values["cut"] = True
        if message_id := str(getattr(message, "id", "") or ""):
            draft.turn.add("messages", message_id)
            self._remember((draft.context_id, message_id), draft)

    def tool_begins(self, agent: Any, tool: str, args: Any) -> None:
        """A tool is about to run. Its arguments have no secrets in them yet."""
        draft, turn = self._place_of_tool(agent)
        if draft is not None and turn is not None:
            turn.calls.append(Call(str(tool), draft.fits(copied(args)), here()))
            if agent is not draft.agent:
                draft.helpers[id(agent)] = turn
            elif tool == _PARALLEL and isinstance(args, dict) and not _CALLS.isdisjoint(args):
                draft.parallel = turn
            self._send_turn(draft, turn)  # it may be the last that is heard of this task

    def tool_ends(self, agent: Any, tool: str, response: Any) -> None:
        draft, turn = self._place_of_tool(agent)
        if draft is not None and agent is not draft.agent:
            turn = draft.helpers.pop(id(agent), turn)
        call = turn.open_call(str(tool), here()) if turn else None
        if draft is not None and turn is not None and call is not None:
            told = draft.fits(str(getattr(response, "message", "") or ""))
            call.end("error" if host_objects.runs_unknown_tool(agent) else "result", told)
            self._renew(draft, turn)

    def result_stored(self, agent: Any, tool: Any, text: Any) -> None:
        """A result entered the history. Of a tool that was interrupted it is the progress so far."""
        draft = self._drafts.get(id(agent))
        if draft is None:
            return
        call = draft.turn.open_call(str(tool), here()) if draft.turn else None
        if call is not None:
            call.end("result", draft.fits(str(text)), partial=True)

    def warning(self, agent: Any, text: Any) -> None:
        """Agent Zero warned its model: an answer that could not be read, a repeated one, a failed tool."""
        draft = self._drafts.get(id(agent))
        if draft is not None and draft.turn is not None:
            draft.turn.add("warnings", draft.fits(copied(text)))

    def error(self, agent: Any, place: Any, error: Any) -> None:
        """An exception in the agent's loop. An intervention of the user is one, and no error."""
        draft = self._drafts.get(id(agent))
        if draft is None or draft.turn is None or type(error).__name__ in _NO_ERRORS:
            return
        if draft.turn.error is error:  # it passes two places on its way out
            return
        draft.turn.error = error
        told = f"{type(error).__name__}: {error}"
        call = draft.turn.open_call(None, here())
        if call is not None:
            call.end("error", draft.fits(told))
        else:
            draft.turn.add("errors", draft.fits(f"{place}: {told}"))

    def user_message(self, agent: Any, message: Any, intervention: bool) -> None:
        """The user wrote. While the agent works it is an intervention; else ``start`` follows."""
        draft = self._drafts.get(id(agent))
        if draft is None or not intervention or draft.turn is None:
            return
        for call in draft.turn.calls:
            if call.is_open:
                call.end("error", INTERRUPTED)
        draft.turn.add("interventions", draft.fits(str(getattr(message, "message", "") or "")))

    def link(self, context_id: str, message_id: str) -> dict[str, Any] | None:
        """Returns where an answer of this process was recorded."""
        found = self._links.get((context_id, message_id))
        return (
            None
            if found is None
            else dict(zip(("trajectory_id", "turn_id", "session_id"), found, strict=True))
        )

    # Inside.

    def _end(self, draft: Draft | None, status: str, **told: Any) -> None:
        if draft is None:
            return
        with self._lock:
            if self._drafts.get(id(draft.agent)) is not draft:
                return
            del self._drafts[id(draft.agent)]
        if status == "success" and draft.turn is not None:
            for call in draft.turn.calls:
                if call.tool == "response" and call.is_open:
                    call.end("result", told.get("result") or "")
        self._flush(draft)
        self.closed += 1
        fitted = {name: draft.fits(value) for name, value in told.items() if value is not None}
        event = {"op": "close", "t": draft.trajectory_id, "at": time.time(), "status": status, **fitted}
        self._send(event, draft.agent)

    def _flush(self, draft: Draft) -> None:
        """Sends the present turn."""
        turn, draft.turn = draft.turn, None
        if turn is not None:
            self._send_turn(draft, turn)

    def _send_turn(self, draft: Draft, turn: TurnDraft) -> None:
        """Sends a turn as it is now; a later one of the same number takes its place."""
        draft.touched = time.monotonic()
        self._send({"op": "turn", "t": draft.trajectory_id, **turn.document()}, None)

    def _new_id(self, *parts: Any) -> str:
        base = "\x1f".join(map(str, parts))
        if not parts[-1]:
            return str(uuid.uuid4())
        with self._lock:
            used = self._ids[base] = self._ids.get(base, -1) + 1
            if len(self._ids) > _REMEMBERED:
                self._ids.popitem(last=False)
        return task_id(base, used)

    def _remember(self, key: tuple[str, str], draft: Draft) -> None:
        with self._lock:
            self._links[key] = (draft.trajectory_id, draft.turns, session_of(draft.root_id))
            if len(self._links) > _REMEMBERED:
                self._links.popitem(last=False)

    def _superior(self, agent: Any) -> tuple[Draft | None, TurnDraft | None, Call | None]:
        """Returns the task that called this subordinate, the turn and the call."""
        superior = agent.data.get("_superior") if isinstance(agent.data, dict) else None
        draft = self._drafts.get(id(superior)) if superior is not None else None
        job_of = host_objects.parent_chat(agent.context)
        if draft is None:
            draft = self._of_context(job_of, agent)
        if draft is None:
            return None, None, None
        if job_of and draft.parallel is not None:
            return draft, draft.parallel, draft.parallel.last_call(_PARALLEL)
        turn = draft.turn
        return draft, turn, (turn.open_call(_DELEGATION, here()) or turn.open_call()) if turn else None

    def _place_of_tool(self, agent: Any) -> tuple[Draft | None, TurnDraft | None]:
        """Returns the agent's task and its turn; for the helper agent of a parallel tool, the task and the
        turn that started it. That turn may have ended: such a tool can run in the background."""
        draft = self._drafts.get(id(agent))
        if draft is not None:
            return draft, draft.turn
        draft = self._of_context(host_objects.parent_chat(agent.context), agent)
        return draft, (draft.parallel or draft.turn) if draft else None

    def _renew(self, draft: Draft, turn: TurnDraft) -> None:
        """Sends a turn again that was sent as a whole before."""
        if turn is not draft.turn:
            self._send_turn(draft, turn)

    def _of_context(self, context_id: str, agent: Any) -> Draft | None:
        if not context_id:
            return None
        here_now = [one for one in list(self._drafts.values()) if one.context_id == context_id]
        here_now = [one for one in here_now if one.agent is not agent]
        return here_now[-1] if here_now else None

    def _is_ours(self, model: Any) -> bool:
        options = getattr(model, "kwargs", None)
        base = options.get("api_base") or options.get("base_url") if isinstance(options, dict) else None
        return bool(self.gateway_url and isinstance(base, str) and base.startswith(self.gateway_url))

    def _naming(self, model: Any, draft: Draft) -> Any:
        """Returns a copy of a model for one call. It asks our gateway to count the call for this task, not to
        record it a second time, and to keep the record of its tokens until the worker fetches it."""
        headers = {
            **(model.kwargs.get("extra_headers") or {}),
            "Onward-Session": session_of(draft.root_id),
            "Onward-Capture": "off",
            "Onward-Records": draft.trajectory_id,
        }
        named = copy.copy(model)
        named.kwargs = {**model.kwargs, "extra_headers": headers}
        return named


def task_id(base: str, used: int = 0) -> str:
    """Returns the id of a task: of the chat, the agent's number and the message that began it."""
    return str(uuid.uuid5(NAMESPACE, base if not used else f"{base}\x1f{used}"))


def session_of(root_id: str) -> str:
    """Returns the session of a task of the main agent, which its subordinates share."""
    return f"a0-{root_id}"
