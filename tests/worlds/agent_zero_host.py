"""A host that keeps Agent Zero's event order, with a scripted model and scripted tools in place of real ones.

``Host`` puts the plugin below a folder of its own and puts Agent Zero's module names in place, so that the
plugin's files run unchanged. The order of one task is that of the pinned version:

hist_add_user_message → monologue/start → monologue_start → [message_loop_start →
message_loop_prompts_before → system_prompt → message_loop_prompts_after → before_main_llm_call →
chat_model_call_before → chat_model_call_after → reasoning_stream_end → response_stream_end →
hist_add_ai_response → process_tools → tool_execute_before → tool_execute_after → hist_add_tool_result →
message_loop_end]* → monologue_end → monologue/end → process_chain_end.

``test_agent_zero_real.py`` compares this order with that of a checkout.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import types
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

from agent_zero_extensions import Extension, Extensions, extensible

import onward.integrations.agent_zero.plugin as plugin_package
from onward.integrations.agent_zero.plugin.helpers.onward_approvals import STORE

PLUGIN = Path(plugin_package.__file__).parent
LINKED = ("agents", "api", "extensions", "webui")
"""Folders of the plugin that a host links to. The rest is copied: the plugin finds its place by its files."""
_hosts: list[Host] = []


def _extensions() -> Extensions:
    return _hosts[-1].extensions


class Kind(Enum):
    USER = "user"
    TASK = "task"
    BACKGROUND = "background"


class InterventionException(Exception):
    pass


class HandledException(Exception):
    pass


@dataclass
class UserMessage:
    message: str
    attachments: list[str] = field(default_factory=list)
    system_message: list[str] = field(default_factory=list)
    id: str = ""


@dataclass
class Response:
    message: str
    break_loop: bool = False
    additional: dict[str, Any] | None = None


@dataclass
class Message:
    ai: bool
    content: Any
    id: str = ""

    def __post_init__(self) -> None:
        self.id = self.id or str(uuid.uuid4())


@dataclass
class Line:
    """A message of LangChain."""

    type: str
    content: Any


@dataclass
class ModelWrapper:
    model_name: str = "openai/onward"
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    profile: str = ""


class Topic:
    def __init__(self) -> None:
        self.messages: list[Message] = []


class History:
    def __init__(self) -> None:
        self.topics: list[Topic] = []
        self.current = Topic()

    def new_topic(self) -> None:
        if self.current.messages:
            self.topics.append(self.current)
            self.current = Topic()

    def all(self) -> list[Message]:
        return [one for topic in [*self.topics, self.current] for one in topic.messages]


class LoopData:
    def __init__(self) -> None:
        self.iteration = -1
        self.last_response = ""
        self.current_tool: Any = None


Model = Callable[["Agent", list[Line]], "str | Awaitable[str]"]
Tool = Callable[["Agent", dict[str, Any]], Awaitable[Any]]


class AgentContext:
    all: ClassVar[dict[str, AgentContext]] = {}

    def __init__(self, host: Host, kind: Kind = Kind.USER, profile: str = "", id: str = "") -> None:
        self.host = host
        self.id = id or uuid.uuid4().hex[:8]
        self.type = kind
        self.config = Config(profile)
        self.data: dict[str, Any] = {}
        self.task: asyncio.Task[Any] | None = None
        AgentContext.all[self.id] = self
        self.agent0 = Agent(0, Config(profile), self)
        self.streaming: Agent | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def communicate(self, message: UserMessage) -> asyncio.Task[Any]:
        agent = self.streaming or self.agent0
        if self.is_running:
            agent.intervention = message
        else:
            self.task = asyncio.get_running_loop().create_task(self._process_chain(agent, message))
        assert self.task is not None
        return self.task

    async def _process_chain(self, agent: Agent, message: Any, is_user: bool = True) -> Any:
        if is_user:
            agent.hist_add_user_message(message)
        else:
            agent.hist_add_tool_result("call_subordinate", message)
        answer = await agent.monologue()
        if superior := agent.data.get("_superior"):
            answer = await self._process_chain(superior, answer, False)
        await _extensions().call_async("process_chain_end", agent, data={})
        return answer

    @extensible(_extensions, "agent/AgentContext/kill_process")
    def kill_process(self) -> None:
        if self.task:
            self.task.cancel()

    @extensible(_extensions, "agent/AgentContext/reset")
    def reset(self) -> None:
        self.kill_process()
        self.agent0 = Agent(0, self.config, self)
        self.streaming = None

    @extensible(_extensions, "agent/AgentContext/nudge")
    def nudge(self) -> Any:
        self.kill_process()
        self.task = None
        return self.communicate(UserMessage("Go on."))

    @staticmethod
    @extensible(_extensions, "agent/AgentContext/remove")
    def remove(id: str) -> None:
        context = AgentContext.all.pop(id, None)
        if context and context.task:
            context.task.cancel()


class Agent:
    def __init__(self, number: int, config: Config, context: AgentContext) -> None:
        self.number, self.config, self.context = number, config, context
        self.agent_name = f"A{number}"
        self.history = History()
        self.last_user_message: Message | None = None
        self.intervention: UserMessage | None = None
        self.data: dict[str, Any] = {}
        self.loop_data = LoopData()

    @extensible(_extensions, "agent/Agent/monologue")
    async def monologue(self) -> Any:
        while True:
            try:
                self.loop_data = LoopData()
                await _extensions().call_async("monologue_start", self, loop_data=self.loop_data)
                while self.loop_data.iteration < self.context.host.rounds:
                    self.context.streaming = self
                    self.loop_data.iteration += 1
                    await _extensions().call_async("message_loop_start", self, loop_data=self.loop_data)
                    self.handle_intervention()
                    found = await self._round()
                    if found:
                        return found
                return None
            except Exception as error:
                await self.handle_exception("monologue", error)
            finally:
                self.context.streaming = None
                if self.context.is_running:
                    await _extensions().call_async("monologue_end", self, loop_data=self.loop_data)

    async def _round(self) -> Any:
        """Returns the final text, or None if the loop goes on."""
        try:
            prompt = await self._prompt()
            await _extensions().call_async("before_main_llm_call", self, loop_data=self.loop_data)
            self.handle_intervention()
            answer, _ = await self.call_chat_model(prompt)
            self.handle_intervention(answer)
            for point in ("reasoning_stream_end", "response_stream_end"):
                await _extensions().call_async(point, self, loop_data=self.loop_data)
                self.handle_intervention(answer)
            if answer == self.loop_data.last_response:
                self.hist_add_ai_response(answer)
                self.hist_add_warning("You have sent the same message again.")
                return None
            self.hist_add_ai_response(answer)
            return await self.process_tools(answer)
        except Exception as error:
            await self.handle_exception("message_loop", error)
        finally:
            if self.context.is_running:
                await _extensions().call_async("message_loop_end", self, loop_data=self.loop_data)

    async def _prompt(self) -> list[Line]:
        await _extensions().call_async("message_loop_prompts_before", self, loop_data=self.loop_data)
        await _extensions().call_async("system_prompt", self, system_prompt=[], loop_data=self.loop_data)
        await _extensions().call_async("message_loop_prompts_after", self, loop_data=self.loop_data)
        lines = [Line("system", self.context.host.system)]
        for message in self.history.all():
            kind = "ai" if message.ai else "human"
            text = message.content if isinstance(message.content, str) else json.dumps(message.content)
            if lines[-1].type == kind:
                lines[-1] = Line(kind, f"{lines[-1].content}\n{text}")
            else:
                lines.append(Line(kind, text))
        extras = f'{{"date": "{self.loop_data.iteration}"}}'
        if lines[-1].type == "human":
            lines[-1] = Line("human", f"{lines[-1].content}\n{extras}")
        else:
            lines.append(Line("human", extras))
        return lines

    async def call_chat_model(self, messages: list[Line], background: bool = False) -> tuple[str, str]:
        host = self.context.host
        model = host.new_model()
        call = {"model": model, "messages": messages, "background": background}
        await _extensions().call_async("chat_model_call_before", self, call_data=call)
        host.models.append(call["model"])
        answer = host.model(self, call["messages"])
        text = answer if isinstance(answer, str) else await answer
        self.handle_intervention()  # called for each part of an answer that streams, before it is taken
        reasoning = host.reasoning
        await _extensions().call_async(
            "chat_model_call_after", self, call_data=call, response=text, reasoning=reasoning
        )
        return text, reasoning

    @extensible(_extensions, "agent/Agent/process_tools")
    async def process_tools(self, text: str) -> Any:
        try:
            asked = json.loads(text[text.index("{") : text.rindex("}") + 1])
            name, args = asked["tool_name"], asked["tool_args"]
        except (ValueError, KeyError):
            self.hist_add_warning("You have misformatted your message.")
            return None
        return await self.execute_tool(name, args)

    async def execute_tool(self, raw: str, args: dict[str, Any], *, is_stored: bool = True) -> Any:
        name = raw.partition(":")[0]
        tool = self.context.host.tools.get(name)
        running = Running(name) if tool else Unknown(name)
        tool = tool or self.context.host.unknown
        self.loop_data.current_tool = running
        try:
            self.handle_intervention()
            await _extensions().call_async("tool_execute_before", self, tool_args=args, tool_name=name)
            response = await tool(self, args)
            response = response if isinstance(response, Response) else Response(str(response))
            self.handle_intervention()
            await _extensions().call_async("tool_execute_after", self, response=response, tool_name=name)
            if response.break_loop:
                return response.message
            if is_stored:
                self.hist_add_tool_result(name, response.message)
            else:
                return response.message
        finally:
            self.loop_data.current_tool = None
        return None

    def handle_intervention(self, progress: str = "") -> None:
        message, self.intervention = self.intervention, None
        if message is None:
            return
        running = self.loop_data.current_tool
        if running is not None and running.progress:
            self.hist_add_tool_result(running.name, running.progress)
        if progress.strip():
            self.hist_add_ai_response(progress)
        self.hist_add_user_message(message, intervention=True)
        raise InterventionException(message)

    @extensible(_extensions, "agent/Agent/handle_exception")
    async def handle_exception(self, location: str, exception: Exception) -> None:
        if isinstance(exception, InterventionException):
            return
        if isinstance(exception, TemporaryError):
            self.hist_add_warning(f"{exception}")
            return
        if isinstance(exception, HandledException):
            raise exception
        raise HandledException(exception)

    @extensible(_extensions, "agent/Agent/hist_add_user_message")
    def hist_add_user_message(self, message: UserMessage, intervention: bool = False) -> Message:
        self.history.new_topic()
        name = "user_intervention" if intervention else "user_message"
        content: dict[str, Any] = {name: message.message}
        if message.attachments:
            content["attachments"] = message.attachments
        self.last_user_message = self._add(Message(False, content, message.id))
        return self.last_user_message

    @extensible(_extensions, "agent/Agent/hist_add_ai_response")
    def hist_add_ai_response(self, message: str, id: str = "") -> Message:
        self.loop_data.last_response = message
        return self._add(Message(True, message, id))

    @extensible(_extensions, "agent/Agent/hist_add_warning")
    def hist_add_warning(self, message: Any) -> Message:
        return self._add(Message(False, {"system_warning": message}))

    @extensible(_extensions, "agent/Agent/hist_add_tool_result")
    def hist_add_tool_result(self, tool_name: str, tool_result: str) -> Message:
        data = {"tool_name": tool_name, "tool_result": tool_result}
        _extensions().call_sync("hist_add_tool_result", self, data=data)
        return self._add(Message(False, data))

    def _add(self, message: Message) -> Message:
        _extensions().call_sync(
            "hist_add_before", self, content_data={"content": message.content}, ai=message.ai
        )
        self.history.current.messages.append(message)
        return message


class Running:
    """A tool at work."""

    def __init__(self, name: str) -> None:
        self.name, self.progress = name, ""


class Unknown(Running):
    """Agent Zero's stand-in for an unknown tool. It runs like any other."""


class TemporaryError(Exception):
    """An error after which Agent Zero goes on."""


class Host:
    """One Agent Zero. ``with host:`` while it runs; its modules are gone afterwards."""

    def __init__(
        self,
        root: Path,
        *,
        with_plugin: bool = True,
        config: dict[str, Any] | None = None,
        in_thread: bool = False,
    ) -> None:
        """``in_thread``: the worker is no process of its own (``agent_zero_thread``)."""
        self.root, self._in_thread = root, in_thread
        self.rounds = 40
        self.system = "You are agent 0."
        self.reasoning = ""
        self.model: Model = lambda agent, messages: say("response", text="done")
        self.new_model: Callable[[], ModelWrapper] = ModelWrapper
        self.models: list[ModelWrapper] = []
        from agent_zero_tools import TOOLS, unknown  # which imports this module

        self.tools: dict[str, Tool] = dict(TOOLS)
        self.unknown: Tool = unknown
        self.config = {"enabled": True, **(config or {})}
        self.config_of: Callable[[Any], dict[str, Any]] = lambda agent: self.config
        self.plugin = root / "usr" / "plugins" / "onward"
        root.mkdir(parents=True, exist_ok=True)
        if with_plugin and not self.plugin.exists():
            shutil.copytree(PLUGIN, self.plugin, ignore=shutil.ignore_patterns(*LINKED))
            for name in LINKED:
                (self.plugin / name).symlink_to(PLUGIN / name)
            (self.plugin / "worker.json").write_text(
                json.dumps({"python": sys.executable, "version": "0.1.0"})
            )
        self.extensions = Extensions([root / "usr", *sorted((root / "usr" / "plugins").glob("*")), root])

    def __enter__(self) -> Self:
        _hosts.append(self)
        sys.modules.pop(STORE, None)  # approvals, which outlive a change of the plugin's files
        helpers = types.ModuleType("helpers")
        helpers.__path__ = []  # type: ignore[attr-defined]
        made = {
            "helpers": helpers,
            "helpers.extension": _module("helpers.extension", Extension=Extension, extensible=extensible),
            "helpers.plugins": _module(
                "helpers.plugins", get_plugin_config=lambda name, agent=None: self.config_of(agent)
            ),
            "helpers.projects": _module(
                "helpers.projects", get_context_project_name=lambda context: context.data.get("project")
            ),
            "helpers.git": _module("helpers.git", get_version=lambda: "v1.7"),
        }
        sys.modules.update(made)
        for name, module in made.items():
            if name != "helpers":
                setattr(helpers, name.partition(".")[2], module)
        sys.path.insert(0, str(self.root))
        if self._in_thread:
            from agent_zero_thread import ThreadChild
            from usr.plugins.onward.helpers import feed  # type: ignore

            feed.Child = ThreadChild
        return self

    def __exit__(self, *_: object) -> None:
        if runtime := self.runtime_module():
            runtime.forget()
        sys.modules.pop(STORE, None)
        self.purge()
        for name in [name for name in sys.modules if name == "helpers" or name.startswith("helpers.")]:
            del sys.modules[name]
        sys.path.remove(str(self.root))
        _hosts.remove(self)
        AgentContext.all.clear()

    def purge(self) -> None:
        """Removes the plugin's modules, as Agent Zero does when one of its files has changed."""
        for name in [name for name in sys.modules if name == "usr" or name.startswith("usr.")]:
            del sys.modules[name]

    def runtime_module(self) -> Any:
        return sys.modules.get("usr.plugins.onward.helpers.runtime")

    @property
    def runtime(self) -> Any:
        from usr.plugins.onward.helpers.runtime import get  # type: ignore

        return get()

    def context(self, kind: Kind = Kind.USER, **given: Any) -> AgentContext:
        return AgentContext(self, kind, **given)

    async def ask(self, text: str, context: AgentContext | None = None, **given: Any) -> Any:
        """Sends a message and waits for the answer; an error of the agent is returned."""
        task = (context or self.context()).communicate(UserMessage(text, **given))
        try:
            return await task
        except (HandledException, asyncio.CancelledError) as error:
            return error


def say(tool: str, /, *thoughts: str, **args: Any) -> str:
    """Returns an answer in Agent Zero's form."""
    return json.dumps({"thoughts": list(thoughts), "headline": "", "tool_name": tool, "tool_args": args})


def _module(name: str, **values: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(values)
    return module
