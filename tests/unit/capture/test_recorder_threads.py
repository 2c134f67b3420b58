"""Threads that a task's block uses: their calls belong to the task, and parallel tasks stay apart."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from chat_server import ChatServer, Reply, calls, completion, text

from onward import Recorder, wrap_openai
from onward.capture.conversations.messages import conversation
from onward.contracts import Trajectory, decode

Ask = Callable[[str], Any]


def stored(recorder: Recorder) -> dict[str, Trajectory]:
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    found = [decode(body, Trajectory) for (body,) in rows]
    return {trajectory.task_context.instructions: trajectory for trajectory in found}


def questions(trajectory: Trajectory) -> list[Any]:
    return sorted(str(turn.observation.content) for turn in trajectory.turns)


@pytest.fixture
def recorder(tmp_path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "outbox.db", known_secrets=[]) as recorder:
        yield recorder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda body: text("yes")).running() as server:
        yield server


@pytest.fixture
def ask(server, recorder) -> Iterator[Ask]:
    with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        wrap_openai(client, recorder)
        create: Any = client.chat.completions.create
        yield lambda question: create(model="m", messages=[{"role": "user", "content": question}])


def in_a_new_pool(ask: Ask, words: list[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, words))


def in_threads(ask: Ask, words: list[str]) -> None:
    threads = [threading.Thread(target=ask, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_timer(ask: Ask, words: list[str]) -> None:
    timers = [threading.Timer(0, ask, (word,)) for word in words]
    for timer in timers:
        timer.start()
        timer.join()


def in_executors(ask: Ask, words: list[str]) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        first = loop.run_in_executor(None, ask, words[0])
        await asyncio.gather(first, *(asyncio.to_thread(ask, word) for word in words[1:]))

    asyncio.run(work())


def in_nested_threads(ask: Ask, words: list[str]) -> None:
    def work() -> None:
        in_a_new_pool(ask, words)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("way", [in_a_new_pool, in_threads, in_a_timer, in_executors, in_nested_threads])
def test_calls_in_threads_of_a_block_are_turns_of_its_task(recorder, ask, way):
    with recorder.task("Ask three"):
        way(ask, ["p", "q", "r"])
        ask("sum")
    found = stored(recorder)
    assert list(found) == ["Ask three"]
    assert questions(found["Ask three"]) == ["p", "q", "r", "sum"]


def test_one_pool_serves_parallel_tasks_and_none_and_each_call_goes_to_its_own(recorder, ask):
    """The pool is older than the tasks, its threads are shared, and the tasks overlap."""
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, ["before"]))

        def work(name: str) -> None:
            with recorder.task(name):
                both.wait(10)
                list(pool.map(ask, [f"{name}{number}" for number in range(4)]))
                both.wait(10)

        workers = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        list(pool.map(ask, ["after"]))
    found = stored(recorder)
    assert questions(found["a"]) == ["a0", "a1", "a2", "a3"]
    assert questions(found["b"]) == ["b0", "b1", "b2", "b3"]
    assert set(found) == {"a", "b", "before", "after"}


def test_a_thread_that_outlives_its_block_records_tasks_of_its_own(recorder, server, ask):
    asked, release, done = threading.Event(), threading.Event(), threading.Event()

    def script(body: dict[str, Any]) -> Any:
        if body["messages"][0]["content"] != "slow":
            return text("yes")
        asked.set()
        return Reply((completion(text("late")),), release)

    def work() -> None:
        ask("slow")
        ask("later")
        done.set()

    server.script = script
    with recorder.task("Block"):
        ask("first")
        threading.Thread(target=work).start()
        assert asked.wait(10)
    release.set()
    assert done.wait(10)
    found = stored(recorder)
    assert questions(found["Block"]) == ["first"]
    assert found["slow"].turns[0].action.raw_response == "late"
    assert found["slow"].session_id == found["Block"].session_id, "it was asked within the block"
    assert questions(found["later"]) == ["later"]


def test_threads_keep_their_own_functions_results_and_errors():
    """In a process of its own, where nothing was extended before."""
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from onward.capture.recorder.threads import inherit_in_threads

variable = ContextVar("v", default=None)
inherit_in_threads(variable)
inherit_in_threads(variable)
heard = []

class Own(threading.Thread):
    def run(self):
        heard.append((self.name, variable.get()))

variable.set(7)
thread = Own(name="own")
thread.start(); thread.join()
assert heard == [("own", 7)] and "run" not in vars(thread)
try:
    thread.start()
except RuntimeError as error:
    assert "only be started once" in str(error)
with ThreadPoolExecutor(1) as pool:
    assert pool.submit(lambda a, *, b: (a, b, variable.get()), 1, b=2).result() == (1, 2, 7)
    assert isinstance(pool.submit(lambda: 1 / 0).exception(), ZeroDivisionError)
    variable.set(None)
    assert pool.submit(variable.get).result() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("follows", [False, True])
def test_threads_are_extended_at_the_first_block_and_only_where_that_is_wanted(tmp_path, follows):
    code = f"""
import threading
from onward import Recorder
plain = threading.Thread.start
with Recorder({str(tmp_path / "o.db")!r}, known_secrets=[], follow_threads={follows}) as recorder:
    assert threading.Thread.start is plain
    with recorder.task("Block"):
        assert (threading.Thread.start is plain) is not {follows}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_parallel_conversations_of_a_task_are_exported_one_after_the_other(recorder, server):
    """Both branches ask, then both report, with the same ids of calls."""

    def script(body: dict[str, Any]) -> Any:
        *_, last = body["messages"]
        if last["role"] == "tool":
            return text(f"It is {last['content']}.")
        return calls(("same-id", "height", {"of": last["content"]}))

    server.script = script
    told = threading.Barrier(2)
    with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        wrap_openai(client, recorder)
        create: Any = client.chat.completions.create

        def branch(name: str) -> None:
            asked = {"role": "user", "content": name}
            message = create(model="m", messages=[asked]).choices[0].message
            told.wait(10)
            result = {"role": "tool", "tool_call_id": "same-id", "content": f"{name} m"}
            create(model="m", messages=[asked, message, result])

        with recorder.task("Heights"):
            in_threads(branch, ["Eiger", "Elbrus"])
    (trajectory,) = stored(recorder).values()
    tool_turns = [turn for turn in trajectory.turns if turn.action.type == "tool_call"]
    assert {
        turn.action.tool_args["of"]: turn.result.output for turn in tool_turns if turn.action.tool_args
    } == {
        "Eiger": "Eiger m",
        "Elbrus": "Elbrus m",
    }
    said = [
        str(m["content"])
        for m in conversation(trajectory.model_dump(mode="json", exclude_none=True)).messages
    ]
    first, second = said[:4], said[4:]
    names = ["Eiger", "Elbrus"] if first[0] == "Eiger" else ["Elbrus", "Eiger"]
    for name, part in zip(names, (first, second), strict=True):
        assert part == [name, "None", f"{name} m", f"It is {name} m."]
