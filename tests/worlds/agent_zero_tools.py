"""Tools of Agent Zero for the host of tests: the final answer, subordinates, and parallel jobs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agent_zero_host import Agent, AgentContext, Config, Kind, Response, UserMessage


async def unknown(agent: Agent, args: dict[str, Any]) -> Response:
    return Response(f"Tool {agent.loop_data.current_tool.name} not found.")


async def respond(agent: Agent, args: dict[str, Any]) -> Response:
    return Response(args["text"], break_loop=True)


async def call_subordinate(agent: Agent, args: dict[str, Any]) -> Response:
    below = agent.data.get("_subordinate")
    if below is None or str(args.get("reset", "")).lower() == "true":
        below = Agent(agent.number + 1, Config(args.get("profile", agent.config.profile)), agent.context)
        below.data["_superior"] = agent
        agent.data["_subordinate"] = below
    below.hist_add_user_message(UserMessage(args["message"]))
    return Response(str(await below.monologue()))


def _in_own_chat(agent: Agent, args: dict[str, Any]) -> Agent:
    """Returns a new subordinate, in a chat that has no task of its own."""
    own = AgentContext(agent.context.host, Kind.USER, args.get("profile", ""))
    own.agent0.number = agent.number + 1
    own.agent0.data["_superior"] = agent
    own.agent0.hist_add_user_message(UserMessage(args["message"]))
    return own.agent0


async def call_subordinate_in_own_chat(agent: Agent, args: dict[str, Any]) -> Response:
    """The tool ``call_subordinate`` of Agent Zero's newer versions."""
    return Response(str(await _in_own_chat(agent, args).monologue()))


async def _job(agent: Agent, call: dict[str, Any]) -> str:
    name, given = call["tool_name"], call["tool_args"]
    if name == "call_subordinate":
        below = _in_own_chat(agent, given)
        below.context.data["_parallel_parent_context_id"] = agent.context.id
        below.context.task = asyncio.current_task()
        return str(await below.monologue())
    own = AgentContext(agent.context.host, Kind.BACKGROUND)
    own.data["_parallel_parent_context_id"] = agent.context.id
    return str(await own.agent0.execute_tool(name, given, is_stored=False))


async def parallel(agent: Agent, args: dict[str, Any]) -> Response:
    """Runs calls at once: a subordinate in a chat of its own, a tool by a helper agent in the background.
    The action "start" does not wait for them, and "cancel" ends them without a hook."""
    jobs = agent.context.data.setdefault("_parallel_jobs", [])
    if args.get("action") == "cancel":
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        return Response("cancelled")
    started = [asyncio.ensure_future(_job(agent, call)) for call in args["tool_calls"]]
    jobs += started
    if args.get("action") == "start":
        return Response("started")
    return Response(json.dumps(await asyncio.gather(*started)))


TOOLS = {"response": respond, "call_subordinate": call_subordinate, "parallel": parallel}
