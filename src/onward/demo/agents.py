"""Agents that work on the desk environment, as a separate process: ``python -m onward.demo.agents``.

They use the interfaces of any external agent: the OpenAI-compatible HTTP endpoint and the recorder.
The process reads commands from stdin (``run N``, ``flow``, ``pause``, ``stop``) and writes one JSON line
per finished task to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from onward.capture.recorder import Recorder
from onward.envs import desk
from onward.processes import die_with_parent


@dataclass
class TaskLimit:
    """Limit of tasks that may start: ``allowed``, or no limit while ``flowing``."""

    allowed: int = 0
    flowing: bool = False
    stopping: bool = False
    running: int = 0

    def start_task(self) -> bool:
        if self.flowing:
            self.running += 1
            return True
        if self.allowed > 0:
            self.allowed -= 1
            self.running += 1
            return True
        return False


class Fleet:
    """``width`` agents that share one HTTP client, one recorder and one stream of tasks."""

    def __init__(
        self, client: httpx.AsyncClient, recorder: Recorder, model: str, seed: int, max_tokens: int, run: str
    ) -> None:
        self.client = client
        self.recorder = recorder
        self.model = model
        self.max_tokens = max_tokens
        self.run = run
        self.limit = TaskLimit()
        self.tasks = _endless(seed)
        self.number = itertools.count(1)

    async def run_agent(self) -> None:
        while not self.limit.stopping:
            if not self.limit.start_task():
                await asyncio.sleep(0.02)
                continue
            try:
                await self.run_task(next(self.tasks))
            finally:
                self.limit.running -= 1

    async def run_task(self, task: desk.Task) -> None:
        """Runs one task from the first message to the recorded outcome."""
        session_id = f"{self.run}-{next(self.number)}"
        episode = desk.Episode(task)
        messages = [{"role": m["role"], "content": m["content"]} for m in episode.messages()]
        error: str | None = None
        first: dict[str, Any] = {}
        with self.recorder.task(
            task.instructions,
            task_id=task.task_id,
            session_id=session_id,
            domain="general",
            task_type=task.kind,
            metadata={"environment": "desk", "template": task.template_id},
        ) as record:
            observation = messages[-1]["content"]
            done = False
            while not done:
                answer = await self.call_model(messages, session_id)
                if answer is None:
                    error = "the model did not answer"
                    break
                first = first or answer
                text = answer["choices"][0]["message"]["content"]
                step = episode.step(text)
                record.turn(
                    observation=observation,
                    action=_action(record, answer, step),
                    result={"success": step.error is None, "output": step.observation, "error": step.error},
                )
                done = step.done
                if not done:
                    observation = step.observation or ""
                    messages += [
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": observation},
                    ]
            outcome = episode.outcome()
            if error is None:
                record.outcome(outcome.status, completion_percentage=outcome.completion)
            elif first:
                record.outcome("failed", completion_percentage=0.0)
            else:
                record.discard()  # no action, so nothing to record; the gateway counts it
        _say(
            event="task",
            session=session_id,
            kind=task.kind,
            success=outcome.success and error is None,
            completion=outcome.completion,
            arm=(first.get("onward", {}).get("release") or {}).get("arm"),
            model=first.get("model"),
            recorded=bool(first),
        )

    async def call_model(self, messages: list[dict[str, str]], session_id: str) -> dict[str, Any] | None:
        """Makes one model call. Waits while the gateway is paused; returns None after three failures."""
        failures = 0
        while failures < 3:
            try:
                answer = await self.client.post(
                    "/v1/chat/completions",
                    json={
                        "model": self.model,
                        "messages": messages,
                        "temperature": 1.0,
                        "max_tokens": self.max_tokens,
                    },
                    headers={"Onward-Session": session_id},
                )
            except httpx.TransportError:
                failures += 1
                await asyncio.sleep(0.5)
                continue
            if answer.status_code == 200:
                return answer.json()
            if answer.status_code == 429:
                await asyncio.sleep(float(answer.headers.get("Retry-After", 0.5)))
                continue
            failures += 1
        return None


def _action(record: Any, answer: dict[str, Any], step: desk.Step) -> dict[str, Any]:
    action = record.from_completion(answer)
    if step.tool_name is None or step.tool_name == "response":
        return {**action, "type": "response"}
    return {**action, "type": "tool_call", "tool_name": step.tool_name, "tool_args": step.tool_args}


def _endless(seed: int) -> Iterator[desk.Task]:
    """Yields train-split tasks in seeded random order, without end."""
    order = random.Random(seed)
    while True:
        tasks = desk.tasks("train", 400, seed=order.randrange(1 << 30))
        order.shuffle(tasks)
        yield from tasks


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def _commands(fleet: Fleet) -> None:
    """Obeys each command as it comes; a new one replaces the one before."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    limit = fleet.limit
    ending: asyncio.Task[None] | None = None
    while line := await reader.readline():
        word, *rest = line.decode().split()
        if ending is not None:
            ending.cancel()
        if word == "stop":
            break
        limit.flowing, limit.allowed = word == "flow", int(rest[0]) if word == "run" else 0
        ending = None if limit.flowing else asyncio.create_task(_report_idle(fleet))
    limit.stopping = True


async def _report_idle(fleet: Fleet) -> None:
    """Waits until the allowed tasks have ended and their records are sent; then reports ``idle``."""
    while fleet.limit.allowed or fleet.limit.running:
        await asyncio.sleep(0.02)
    while not await asyncio.to_thread(fleet.recorder.flush, 30.0):
        pass
    _say(event="idle")


async def serve(arguments: argparse.Namespace) -> None:
    recorder = Recorder(
        outbox=Path(arguments.outbox),
        nats_url=os.environ["NATS_URL"],
        agent_id="desk-agent",
    )
    async with httpx.AsyncClient(
        base_url=arguments.gateway,
        headers={"Authorization": f"Bearer {os.environ['ONWARD_API_KEY']}", "Onward-Capture": "off"},
        timeout=120.0,
        limits=httpx.Limits(max_connections=arguments.width),
    ) as client:
        fleet = Fleet(client, recorder, arguments.model, arguments.seed, arguments.max_tokens, arguments.run)
        async with asyncio.TaskGroup() as group:  # an agent that fails ends the process
            for _ in range(arguments.width):
                group.create_task(fleet.run_agent())
            _say(event="ready")
            await _commands(fleet)
    await asyncio.to_thread(recorder.flush, 60.0)
    recorder.close()
    _say(event="stopped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--outbox", required=True)
    parser.add_argument("--model", default="onward")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", default="desk")
    die_with_parent()
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
