"""Agent Zero's own ``Agent`` loop with a scripted model, in a process with Agent Zero's own packages.

``python agent_zero_real.py ROOT``: ROOT is a folder with Agent Zero's source and the installed plugin. Plays
each of ``SCENARIOS`` in a chat of its own, waits until the plugin's worker has stored what it recorded, and
prints one JSON object: chat and answer of each scenario, the extension points of the first one in order, and
what the plugin's API answered.

The model stands at the extension point of ``Agent.get_chat_model``, and the tool ``shell`` in a plugin beside
the installed one, so nothing of Agent Zero's own files changes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "-".join(("open", "sesame", "9876"))
KEY = "-".join(("key", "of", "tests"))
WAIT = 30.0
_EXTENSION = """
from helpers.extension import Extension
class Scripted(Extension):
    def execute(self, data=None, **_):
        import __main__
        data["result"] = __main__.Scripted(data["args"][0])
"""
_SHELL = """
import asyncio
from helpers.errors import RepairableException
from helpers.tool import Response, Tool
class Shell(Tool):
    async def execute(self, cmd="", **given):
        if cmd == "repairable":
            raise RepairableException("no such file")
        if cmd == "critical":
            raise RuntimeError("the disk is gone")
        if cmd == "slow":
            import __main__
            await self.set_progress("half of it")
            __main__.slow += 1
            for _ in range(400):
                await asyncio.sleep(0.02)
                await self.agent.handle_intervention()
        return Response(message=f"ran {cmd}", break_loop=False)
"""


def prepare(root: Path) -> None:
    """Writes the plugin with the scripted model and its tool."""
    plugin = root / "usr" / "plugins" / "scripted"
    place = plugin / "extensions" / "python" / "_functions" / "agent" / "Agent" / "get_chat_model" / "start"
    place.mkdir(parents=True)
    (place / "_99_scripted.py").write_text(_EXTENSION)
    (plugin / "tools").mkdir()
    (plugin / "tools" / "shell.py").write_text(_SHELL)
    (plugin / "plugin.yaml").write_text("name: scripted\ntitle: Scripted\nversion: 1.0.0\n")
    (root / "usr" / "secrets.env").write_text(f"DOOR={SECRET}\n")


def say(tool: str, *thoughts: str, **args: Any) -> str:
    return json.dumps({"thoughts": list(thoughts), "headline": "", "tool_name": tool, "tool_args": args})


Answer = Any
"""A text, a result of the Responses API, an exception, or a function of the agent and its prompt."""


def _native(*items: dict[str, Any]) -> Callable[[Any, Any], Any]:
    def answer(agent: Any, messages: Any) -> Any:
        from helpers.llm_result import LLMResult  # type: ignore

        raw = {"id": f"resp_{len(messages)}", "output": list(items)}
        return LLMResult.from_response(raw, provider_model_key="openai/scripted")

    return answer


def _call(name: str, **args: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": json.dumps(args), "call_id": f"call_{name}"}


def _text(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def _user_writes(text: str, answer: str) -> Callable[[Any, Any], Any]:
    def reply(agent: Any, messages: Any) -> str:
        from agent import UserMessage  # type: ignore

        agent.context.communicate(UserMessage(text))  # it arrives before the first part of the answer
        return answer

    return reply


def _cancel(agent: Any, messages: Any) -> str:
    text = " ".join(str(message.content) for message in messages)
    job = re.search(r"call_?subordin[a-z]*-[0-9a-f]{8}", text)
    return say("parallel", action="cancel", job_ids=[job[0]] if job else [])


SLOW = [say("shell", cmd="slow"), say("response", text="late")]
SCRIPTS: dict[str, list[Answer]] = {
    "tools": [
        say("shell", "Look first.", cmd="ls"),
        say("shell", cmd="pwd"),
        say("response", text="Two files."),
    ],
    "nested": [
        say("call_subordinate", profile="researcher", message="nested 1", reset="true"),
        say("response", text="from 0"),
    ],
    "nested 1": [
        say("call_subordinate", profile="developer", message="nested 2", reset="true"),
        say("response", text="from 1"),
    ],
    "nested 2": [say("response", text="from 2")],
    "parallel": [
        say(
            "parallel",
            tool_calls=[
                {"tool_name": "call_subordinate", "tool_args": {"message": "one", "reset": True}},
                {"tool_name": "call_subordinate", "tool_args": {"message": "two", "reset": True}},
                {"tool_name": "shell", "tool_args": {"cmd": "ls"}},
            ],
        ),
        say("response", text="both"),
    ],
    "one": [say("response", text="1")],
    "two": [say("response", text="2")],
    "interrupted tool": [say("shell", cmd="slow"), say("response", text="stopped")],
    "interrupted answer": [
        _user_writes("Shorter, please.", say("shell", "A long thought. " * 9, cmd="ls")),
        say("response", text="short"),
    ],
    "repairable": [say("shell", cmd="repairable"), say("response", text="mended")],
    "critical": [say("shell", cmd="critical")],
    "unknown": [say("magic", wand=1), say("response", text="no magic")],
    "misformat": ["no call", say("response", text="a call")],
    "repeated": [say("shell", cmd="ls"), say("shell", cmd="ls"), say("response", text="once is enough")],
    "secret": [say("shell", cmd="login", key="§§secret(DOOR)"), say("response", text="in")],
    "killed": SLOW,
    "reset": SLOW,
    "killed below": [
        say("call_subordinate", profile="", message="slow below", reset="true"),
        say("response", text="late"),
    ],
    "slow below": SLOW,
    "cancelled job": [
        say(
            "parallel",
            action="start",
            tool_calls=[{"tool_name": "call_subordinate", "tool_args": {"message": "slow job"}}],
        ),
        say("shell", cmd="ls"),
        _cancel,
        say("response", text="cancelled"),
    ],
    "slow job": SLOW,
    "native": [
        _native(
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Both at once."}]},
            _call("shell", cmd="ls"),
            _call("shell", cmd="pwd"),
        ),
        _native(_text("I look again."), _call("shell", cmd="id")),
        _native(_text("Done without JSON.")),
    ],
}
SCENARIOS = (
    "tools", "nested", "parallel", "interrupted tool", "interrupted answer", "repairable", "critical",
    "unknown", "misformat", "repeated", "secret", "killed", "reset", "killed below", "cancelled job",
    "native",
)  # fmt: skip
BELOW = {
    "nested": ("nested 1", "nested 2"),
    "parallel": ("one", "two"),
    "killed below": ("slow below",),
    "cancelled job": ("slow job",),
}
"""Scenario → the tasks of its subordinates."""
NEEDS = {
    "parallel": "tools/parallel.py",
    "cancelled job": "tools/parallel.py",
    "native": "helpers/llm_result.py",
}
"""Scenario → the file that a version has if it can play it."""
STOPS = {"killed": "kill_process", "reset": "reset", "killed below": "kill_process"}
_given: Counter[tuple[int, str]] = Counter()
_kept: list[Any] = []
"""Agents, whose ids may not be used again."""
slow = 0
"""Slow tools that have begun; the tool itself counts them."""


class Scripted:
    """The model: has the methods that Agent Zero's loop calls, in its older and its newer versions."""

    model_name = "openai/scripted"

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.kwargs: dict[str, Any] = {}

    async def _answer(self, messages: Any) -> Any:
        topics = [*self.agent.history.topics, self.agent.history.current]
        told = [m.content for topic in topics for m in topic.messages if isinstance(m.content, dict)]
        task = next(one["user_message"] for one in told if "user_message" in one)
        _kept.append(self.agent)
        place = _given[id(self.agent), task]
        _given[id(self.agent), task] += 1
        answers = SCRIPTS[task]
        await asyncio.sleep(0.01)  # a model is never faster than the return of ``communicate``
        answer = answers[min(place, len(answers) - 1)]
        if callable(answer):
            answer = answer(self.agent, messages)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def unified_call(self, *, messages: Any = None, response_callback: Any = None, **_: Any) -> Any:
        answer = await self._answer(messages)
        return await self._stream(answer, response_callback), ""

    async def unified_turn(self, *, messages: Any = None, response_callback: Any = None, **_: Any) -> Any:
        from helpers.llm_result import LLMResult  # type: ignore

        answer = await self._answer(messages)
        if isinstance(answer, LLMResult):
            return answer
        text = await self._stream(answer, response_callback)
        return LLMResult.from_chat(response=text, provider_model_key=self.model_name)

    @staticmethod
    async def _stream(answer: str, callback: Any) -> str:
        for end in range(40, len(answer) + 40, 40):
            await asyncio.sleep(0)
            stopped = await callback(answer[end - 40 : end], answer[:end]) if callback else None
            if stopped is not None:
                return str(stopped)
        return answer


def _until(check: Callable[[], Any], what: str) -> None:
    limit = time.monotonic() + WAIT
    while not check():
        if time.monotonic() > limit:
            raise TimeoutError(f"Agent Zero did not come so far: {what}")
        time.sleep(0.02)


def _play(name: str) -> dict[str, Any]:
    from agent import AgentContext, UserMessage  # type: ignore
    from helpers import persist_chat  # type: ignore
    from initialize import initialize_agent  # type: ignore

    context, before = AgentContext(config=initialize_agent()), slow
    task = context.communicate(UserMessage(name, attachments=["/a/b/plan.pdf"]))
    if name in STOPS:
        _until(lambda: slow > before, name)
        getattr(context, STOPS[name])()
    if name == "interrupted tool":
        _until(lambda: slow > before, name)
        context.communicate(UserMessage("Stop that."))
    try:
        answer = task.result_sync(timeout=WAIT)
    except BaseException as error:  # a killed task is a CancelledError
        answer = f"{type(error).__name__}: {error}"
    persist_chat.save_tmp_chat(context)
    return {"chat": context.id, "answer": answer}


def _api(chat: str) -> dict[str, Any]:
    """Returns the status and the ``ok`` of calls of the plugin's API by Agent Zero's own dispatcher."""
    from flask import Flask, session  # type: ignore
    from helpers import login, settings  # type: ignore
    from helpers.api import register_api_route  # type: ignore

    login.get_credentials_hash = lambda: "hash"
    settings.get_settings = lambda *_: {"mcp_server_token": KEY}
    app = Flask("agent-zero")
    app.secret_key = KEY
    register_api_route(app, threading.RLock())

    def enter() -> str:
        session["authentication"], session["csrf_token"] = "hash", KEY
        return "in"

    app.add_url_rule("/login", "login_handler", lambda: "login")
    app.add_url_rule("/enter", "enter", enter)
    stranger, person = app.test_client(), app.test_client()
    person.get("/enter")
    place, token = {"context": chat, "message_id": "m-1"}, {"X-CSRF-Token": KEY}
    vote, copied = {**place, "signal": "thumbs_up"}, {**place, "signal": "copied"}
    calls = {
        "no login": (stranger, "feedback", vote, {}),
        "no token": (person, "feedback", vote, {}),
        "vote": (person, "feedback", vote, token),
        "no vote": (person, "feedback", place, token),
        "signal": (person, "signal", copied, token),
        "status": (person, "status", {}, token),
        "approvals": (person, "approve", {}, token),
        "no key": (stranger, "feedback_external", vote, {}),
        "wrong key": (stranger, "feedback_external", vote, {"X-API-KEY": "x"}),
        "key": (stranger, "feedback_external", vote, {"X-API-KEY": KEY}),
    }
    told = {}
    for name, (client, path, body, headers) in calls.items():
        answer = client.post(f"/api/plugins/onward/{path}", json=body, headers=headers)
        told[name] = [answer.status_code, (answer.get_json(silent=True) or {}).get("ok")]
    return told


def _watched(called: list[str]) -> None:
    """Notes each extension point that Agent Zero calls."""
    from helpers import extension  # type: ignore

    asynchronous, synchronous = extension.call_extensions_async, extension.call_extensions_sync

    async def call_async(point: str, *args: Any, **given: Any) -> None:
        called.append(point)
        await asynchronous(point, *args, **given)

    def call_sync(point: str, *args: Any, **given: Any) -> None:
        called.append(point)
        synchronous(point, *args, **given)

    extension.call_extensions_async, extension.call_extensions_sync = call_async, call_sync


def main(root: Path) -> None:
    os.chdir(root)
    sys.path.insert(0, str(root))
    called: list[str] = []
    order: list[str] = []
    import agent  # noqa: F401  # type: ignore

    _watched(called)
    played = {}
    for name in SCENARIOS:
        if name in NEEDS and not (root / NEEDS[name]).exists():
            continue
        played[name] = _play(name)
        if name == SCENARIOS[0]:
            order = list(called)
    from usr.plugins.onward.helpers import runtime  # type: ignore  # type: ignore

    found = runtime.get()
    time.sleep(0.5)  # tasks that were cancelled end on their own threads
    found.tick()
    _until(lambda: not found.status()["waiting"] and not found.status()["open"], json.dumps(found.status()))
    told = {"played": played, "order": order, "status": found.status()}
    told["api"] = _api(played["tools"]["chat"])
    runtime.forget()
    print(json.dumps(told), flush=True)
    os._exit(0)  # threads of Agent Zero stay


if __name__ == "__main__":
    main(Path(sys.argv[1]))
