"""The plugin with its real worker: exact counts; failures neither reach the agent nor lose a task."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agent_zero_host import Agent, Host, Line, Message, TemporaryError, UserMessage, say
from agent_zero_world import recorded, until
from poisoned_worker import interpreter

from onward.bus import Bus, NatsServer
from onward.clock import utc_text
from onward.contracts import examples, subjects
from onward.integrations.agent_zero.worker.failed import FailedTasks

CHILD = Path(__file__).parent.parent / "worlds" / "agent_zero_child.py"
AWAY = "nats://127.0.0.1:9"
pytestmark = pytest.mark.slow


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    with Host(tmp_path / "a0") as host:
        yield host


@pytest.fixture
async def light(tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose worker is in a thread: nothing of these tests depends on its process."""
    with Host(tmp_path / "a0", in_thread=True) as host:
        yield host


def data_of(host: Host) -> Path:
    return host.plugin / "data"


def status(host: Host) -> dict[str, Any]:
    return host.runtime.status()


async def everything_stored(host: Host, count: int, seconds: float = 60.0) -> None:
    await until(lambda: status(host)["recorded"] >= count and not status(host)["waiting"], seconds)
    assert status(host)["recorded"] == count


async def shell(agent: Agent, args: dict[str, Any]) -> str:
    await asyncio.sleep(0)
    return "a" * 200


def busy_model(agent: Agent, lines: list[Line]) -> str:
    """Every task uses a tool; by its number it delegates, delegates at once, fails, is retried, or is
    interrupted by the user."""
    rounds = agent.loop_data.iteration
    asked = agent.history.all()[-1].content if rounds == 0 else ""
    kind = agent.data.setdefault("kind", json.dumps(asked).rpartition("#")[2][:1])
    if agent.number > 0 or rounds == 2:
        return say("response", text="done")
    if rounds == 0:
        return say("shell", cmd="ls")
    calls = [{"tool_name": "call_subordinate", "tool_args": {"message": f"part {n}"}} for n in range(2)]
    match kind:
        case "1":
            return say("call_subordinate", message="part", profile="developer")
        case "2":
            return say("parallel", tool_calls=calls)
        case "3":
            raise RuntimeError("the model is gone")
        case "4":
            raise TemporaryError("overloaded")
        case "6":
            return say("interrupt")
    return "no call at all"


async def interrupt(agent: Agent, args: dict[str, Any]) -> str:
    agent.context.communicate(UserMessage("Look at this, too."))
    return "never used"


SUBORDINATES = {"1": 1, "2": 2}
OUTCOMES = {"3": "failed"}


async def run_tasks(host: Host, count: int) -> Counter[str]:
    """Runs tasks, twenty at a time; returns how many trajectories of which outcome they must give."""
    host.tools |= {"shell": shell, "interrupt": interrupt}
    host.model = busy_model
    expected: Counter[str] = Counter()
    gate = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        kind = str(number % 7)
        async with gate:
            if kind == "5":
                expected["abandoned"] += 1
                await _killed(host)
                return
            await host.ask(f"Task {number} #{kind}")
        expected[OUTCOMES.get(kind, "completed_successfully")] += 1
        expected["completed_successfully"] += SUBORDINATES.get(kind, 0)

    await asyncio.gather(*map(one, range(count)))
    return expected


async def _killed(host: Host) -> None:
    context = host.context()

    async def stop(agent: Agent, args: dict[str, Any]) -> str:
        agent.context.kill_process()
        await asyncio.sleep(60)
        return ""

    host.tools["stop"] = stop
    context.agent0.data["kind"] = "0"
    context.agent0.history.current.messages.append(Message(False, "earlier"))
    normal = host.model
    host.model = lambda agent, lines: say("stop") if agent.context is context else normal(agent, lines)
    await host.ask("Wait", context)


async def check_counts(host: Host, expected: Counter[str]) -> None:
    await everything_stored(host, expected.total(), 120.0)
    stored = recorded(data_of(host))
    assert len(stored) == len({one["trajectory_id"] for one in stored}) == expected.total()
    assert Counter(one["metadata"]["outcome"]["status"] for one in stored) == expected
    by_id = {one["trajectory_id"]: one for one in stored}
    below = [one for one in stored if "parent_trajectory_id" in one["metadata"]]
    for one in below:
        parent = by_id[one["metadata"]["parent_trajectory_id"]]
        turn = parent["turns"][one["metadata"]["parent_turn"] - 1]
        assert one["trajectory_id"] in turn["result"]["subordinate_trajectories"]
        assert one["session_id"] == parent["session_id"]


async def test_seventy_tasks_are_exactly_their_trajectories(host: Host) -> None:
    expected = await run_tasks(host, 70)
    assert expected.total() == 70 + 10 * 3
    await check_counts(host, expected)
    interrupted = [one for one in recorded(data_of(host)) if "Look at this, too." in json.dumps(one)]
    assert len(interrupted) == 10


@pytest.mark.long
async def test_a_thousand_tasks_are_exactly_their_trajectories(host: Host) -> None:
    expected = await run_tasks(host, 1000)
    await check_counts(host, expected)


async def test_a_killed_worker_is_started_again_and_loses_and_repeats_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usr.plugins.onward.helpers import feed  # type: ignore

    monkeypatch.setattr(feed, "PAUSES", (0.05, 0.2))
    expected: Counter[str] = Counter()
    for _ in range(3):
        expected += await run_tasks(host, 12)
        await until(lambda: host.runtime.feed.worker_pid)
        os.kill(host.runtime.feed.worker_pid, signal.SIGKILL)
    await check_counts(host, expected)


async def test_a_task_that_ends_the_worker_each_time_is_put_aside_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, poison = interpreter(tmp_path)
    with Host(tmp_path / "a0", config={"python": str(program)}) as host:
        monkeypatch.setattr("usr.plugins.onward.helpers.feed.PAUSES", (0.05, 0.2))
        monkeypatch.setattr("usr.plugins.onward.helpers.aside.ATTEMPTS", 2)
        for text in ("First", "Secret poison", "Second"):
            assert await host.ask(text) == "done"
        await until(lambda: status(host)["recorded"] == 2 and status(host)["set_aside"] == 1)
        assert status(host)["waiting"] == 0
        data = data_of(host)
        for path in data.rglob("*"):
            assert not path.is_file() or b"Secret poison" not in path.read_bytes(), path
        (found,) = FailedTasks(data).all()
        assert found.error == "the worker ended with signal 9 on it 2 times"
        poison.unlink()
        assert FailedTasks(data).ask_again() == 1
        await until(lambda: status(host)["recorded"] == 3 and status(host)["set_aside"] == 0)
    stored = [one["task_context"]["instructions"] for one in recorded(data)]
    assert stored == ["First", "Second", "Secret poison"]


async def test_a_killed_agent_zero_leaves_the_task_in_progress_as_abandoned(tmp_path: Path) -> None:
    root = tmp_path / "a0"
    child = subprocess.Popen([sys.executable, str(CHILD), str(root)], stdout=subprocess.PIPE)
    assert child.stdout is not None and await asyncio.to_thread(child.stdout.readline) == b"hanging\n"
    child.kill()
    child.wait()
    child.stdout.close()
    with Host(root) as host:  # begun again, in the same folder
        await host.ask("Third")
        await everything_stored(host, 1)
        await until(lambda: len(recorded(data_of(host))) == 3)
    stored = {one["task_context"]["instructions"]: one for one in recorded(root / "usr/plugins/onward/data")}
    assert stored["Second"]["metadata"]["outcome"] == {"status": "abandoned"}
    assert stored["Second"]["turns"][0]["action"]["tool_name"] == "hang"
    assert stored["Second"]["turns"][0]["result"]["error"] == "Agent Zero ended before the task did"
    assert {one["metadata"]["outcome"]["status"] for name, one in stored.items() if name != "Second"} == {
        "completed_successfully"
    }


async def test_the_answers_are_the_same_with_and_without_the_plugin_whatever_is_broken(
    tmp_path: Path,
) -> None:
    async def answers(host: Host) -> list[str]:
        host.tools["shell"] = shell
        host.model = busy_model
        return [repr(await host.ask(f"Task {number} #{number % 5}")) for number in range(10)]

    with Host(tmp_path / "without", with_plugin=False) as host:
        expected = await answers(host)
    broken = {
        "no NATS": {"nats_url": AWAY},
        "no interpreter": {"python": "/nowhere/python"},
        "no gateway": {"gateway_url": "http://127.0.0.1:9"},
        "no room": {"outbox_mb": 0.0001},
    }
    for name, config in broken.items():
        in_thread = name in ("no gateway", "no room")  # the others have the real process
        with Host(tmp_path / name, config=config, in_thread=in_thread) as host:
            assert await answers(host) == expected, name
            assert status(host)["errors"] == 0, name
    with Host(tmp_path / "no settings") as host:

        def fail(agent: Any) -> dict[str, Any]:
            raise OSError("unreadable")

        host.config_of = fail
        assert await answers(host) == expected
        await until(lambda: status(host)["failed"] == 16)  # their project may have opted out


async def test_without_nats_all_is_stored_and_queued(tmp_path: Path) -> None:
    with Host(tmp_path, config={"nats_url": AWAY}, in_thread=True) as host:
        await host.ask("Hi")
        await everything_stored(host, 1)
        await until(lambda: status(host)["queued"] == 1)
        assert status(host)["nats"] == "offline"


async def test_on_a_full_disk_tasks_wait_unconfirmed_and_are_stored_when_there_is_room(host: Host) -> None:
    await host.ask("Before")
    await everything_stored(host, 1)
    pid = host.runtime.feed.worker_pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in data_of(host).glob("outbox.db*"))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 4096, hard))
    host.tools["shell"] = shell
    host.system = "You are agent 0. " * 4000
    for number in range(8):
        assert await host.ask(f"Task {number}") == "done"
    await until(lambda: status(host)["reason"] == "waiting to store: OutboxFullError")
    confirmed = status(host)["recorded"]
    assert confirmed < 9 and len(recorded(data_of(host))) == confirmed
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    await everything_stored(host, 9)
    assert len(recorded(data_of(host))) == 9


async def test_a_worker_that_stands_still_does_not_hold_the_agent_up(host: Host) -> None:
    await host.ask("Before")
    await everything_stored(host, 1)
    pid = host.runtime.feed.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        host.system = "You are agent 0. " * 8000  # more than a pipe takes
        for number in range(20):
            assert await host.ask(f"Task {number}") == "done"
        assert status(host)["recorded"] == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    await everything_stored(host, 21)


async def test_what_waits_for_a_worker_that_stands_still_is_bounded_and_counted(host: Host) -> None:
    await host.ask("Before")
    await everything_stored(host, 1)
    feed = host.runtime.feed
    feed._limit = 1_000_000
    host.system = "You are agent 0. " * 8000
    pid = feed.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        for number in range(40):
            assert await host.ask(f"Task {number}") == "done"
        waits = sum(len(json.dumps(event, default=str)) for event, *_ in feed._events)
        assert 500_000 < waits < 1_500_000  # 40 tasks have 5 MB
        voted = host.runtime.feedback(context_id="x", message_id="y", signal="thumbs_up")
        assert voted["ok"]
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: not feed._events and status(host)["waiting"] == 0)
    counts = status(host)
    assert counts["dropped"] > 10 and counts["recorded"] + counts["dropped"] == 42


async def test_agent_zero_ends_though_its_worker_stands_still(host: Host) -> None:
    await host.ask("Before")
    await everything_stored(host, 1)
    pid = host.runtime.feed.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        host.system = "You are agent 0. " * 16000  # more than a pipe takes
        await host.ask("After")
        await asyncio.sleep(0.5)  # the feeding thread waits in the pipe now
        closing = threading.Thread(target=host.runtime.close, args=(0.2,), daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, 30)
        assert not closing.is_alive()
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_the_worker_ends_with_agent_zero_though_a_forked_process_has_its_input(tmp_path: Path) -> None:
    root = tmp_path / "a0"
    child = subprocess.Popen([sys.executable, str(CHILD), str(root), "fork"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    forked = int(await asyncio.to_thread(child.stdout.readline))
    try:
        assert await asyncio.to_thread(child.stdout.readline) == b"hanging\n"
        child.kill()
        child.wait()
        await until(lambda: len(recorded(root / "usr/plugins/onward/data")) == 2)
        os.kill(forked, 0)  # it lives
    finally:
        os.kill(forked, signal.SIGKILL)
        child.stdout.close()


async def test_a_worker_that_cannot_start_is_started_less_and_less_often_and_the_page_says_why(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usr.plugins.onward.helpers import feed  # type: ignore

    starts = tmp_path / "starts"
    broken = tmp_path / "python"
    broken.write_text(
        f'#!/bin/sh\necho started >> {starts}\necho \'{{"op": "figures"}}\'\nsleep 0.05\nexit 3\n'
    )
    broken.chmod(0o755)
    monkeypatch.setattr(feed, "PAUSES", (0.05, 30.0))
    monkeypatch.setattr(feed, "_TICK", 0.02)
    host.config["python"] = str(broken)
    host.runtime.feed._pause = 0.05  # the thread looks at the settings from now on
    await host.ask("Hi")
    await until(lambda: starts.exists() and len(starts.read_text().split()) >= 5)
    assert host.runtime.feed._pause >= 0.05 * 2**4  # although each said once that it works
    await until(lambda: status(host)["state"] == "worker_down")
    assert status(host)["reason"] == "the worker ended with code 3: see worker.log"


async def test_changed_settings_start_the_worker_anew_and_tasks_in_progress_go_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usr.plugins.onward.helpers import feed  # type: ignore

    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(feed, "PAUSES", (0.05, 0.2))
    monkeypatch.setattr("usr.plugins.onward.helpers.settings.SECONDS", 0.1)

    async def change(agent: Agent, args: dict[str, Any]) -> str:
        before = host.runtime.feed.worker_pid
        host.config |= {"agent_id": "other", "gateway_url": "http://127.0.0.1:9/"}
        await until(lambda: host.runtime.feed.worker_pid not in (None, before))
        return "changed"

    host.tools["change"] = change
    answers = iter([say("response", text="done"), say("change"), say("response", text="done")])
    host.model = lambda agent, lines: next(answers)
    await host.ask("Before")
    await everything_stored(host, 1)
    await host.ask("During")
    await everything_stored(host, 2)
    first, second = recorded(data_of(host))
    assert (first["agent_id"], second["agent_id"]) == ("agent-zero-main", "other-main")
    assert status(host)["gateway"] == "http://127.0.0.1:9"
    assert second["metadata"]["outcome"] == {"status": "completed_successfully"}
    assert [turn["result"]["output"] for turn in second["turns"]] == ["changed", "done"]


async def test_above_the_limit_of_memory_new_tasks_are_dropped_and_counted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.config["python"] = "/nowhere/python"
    host.runtime.feed._limit = 100_000
    host.system = "x" * 20_000
    for number in range(12):
        assert await host.ask(f"Task {number}") == "done"
    await until(lambda: status(host)["dropped"] > 0 and not host.runtime.feed._events)
    assert status(host)["dropped"] + len(host.runtime.feed._kept) == 12
    assert "/nowhere/python" in status(host)["reason"]
    assert status(host)["state"] == "worker_down"


async def test_secrets_of_agent_zero_are_removed_in_every_form(light: Host) -> None:
    """Traps e and f: streamed answers are not masked by the host, and it knows no encodings."""
    host = light
    secret = "correct-horse" + "-battery-staple"
    (host.root / "usr" / "secrets.env").write_text(f'DOOR="{secret}"\n# A=b\n')
    encoded = base64.b64encode(f"user:{secret}".encode()).decode()

    async def show(agent: Agent, args: dict[str, Any]) -> str:
        return f"Authorization: Basic {encoded}"

    host.tools["show"] = show
    answers = iter([say("show", f"The secret is {secret}."), say("response", text=f"It is {secret}")])
    host.model = lambda agent, lines: next(answers)
    await host.ask("Show it, and leave §§secret(DOOR) as it is")
    await everything_stored(host, 1)
    (document,) = recorded(data_of(host))
    text = json.dumps(document)
    assert secret not in text and encoded not in text
    assert document["turns"][0]["thought_process"][0].startswith("The secret is <")
    assert "§§secret(DOOR)" in document["task_context"]["instructions"]
    for path in data_of(host).iterdir():
        assert secret.encode() not in path.read_bytes(), path.name


async def test_a_secret_that_was_added_meanwhile_is_known(light: Host) -> None:
    host = light
    await host.ask("Before")
    await everything_stored(host, 1)
    secret = "tango-" + "foxtrot-7"
    (host.root / "usr" / "secrets.env").write_text(f"NEW={secret}\n")
    host.model = lambda agent, lines: say("response", text=secret)
    await host.ask("After")
    await everything_stored(host, 2)
    assert secret not in json.dumps(recorded(data_of(host)))


async def test_scopes_decide_what_is_recorded(light: Host) -> None:
    host = light
    host.config_of = lambda agent: {
        **host.config,
        "enabled": agent is None or agent.config.profile != "writer",
    }
    await host.ask("Trainer", host.context(profile="rl-trainer"))
    await host.ask("Writer", host.context(profile="writer"))
    private = host.context()
    private.data["project"] = "private"
    host.runtime.set_opt_out("private", True)
    await host.ask("Private", private)
    await host.ask("Public")
    await everything_stored(host, 1)
    await until(lambda: status(host)["opted_out"] == 3)
    assert [one["task_context"]["instructions"] for one in recorded(data_of(host))] == ["Public"]
    assert json.loads((data_of(host) / "state.json").read_text())["opted_out"] == ["private"]


async def test_sampling_takes_whole_trees(tmp_path: Path) -> None:
    with Host(tmp_path, config={"sampling_rate": 0.5}, in_thread=True) as host:

        def model(agent: Agent, lines: list[Line]) -> str:
            if agent.number == 0 and agent.loop_data.iteration == 0:
                return say("call_subordinate", message="part")
            return say("response", text="done")

        host.model = model
        for number in range(40):
            await host.ask(f"Task {number}")
        await until(lambda: status(host)["recorded"] + status(host)["opted_out"] == 80)
        stored = recorded(data_of(host))
        sessions = Counter(one["session_id"] for one in stored)
        assert set(sessions.values()) == {2}
        assert 8 <= len(sessions) <= 32  # of 40 at one half; outside with a chance below 1 in 10,000


async def test_trap_g_settings_are_read_rarely_and_never_in_a_hook(light: Host) -> None:
    host = light
    threads: list[str] = []

    def config(agent: Any) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return host.config

    host.config_of = config
    for number in range(20):
        await host.ask(f"Task {number}")
    await everything_stored(host, 20)
    assert set(threads) == {"onward-feed"} and len(threads) <= 3


async def test_the_switch_is_remembered(tmp_path: Path) -> None:
    with Host(tmp_path, in_thread=True) as host:
        host.runtime.pause(True)
        await until((host.plugin / "data" / "state.json").exists)
    with Host(tmp_path, in_thread=True) as host:
        await until(lambda: status(host)["state"] == "paused")
        await host.ask("Private")
        assert status(host)["recorded"] == 0


async def test_feedback_finds_trajectory_and_turn_also_after_a_restart(tmp_path: Path) -> None:
    with Host(tmp_path, in_thread=True) as host:
        host.tools["shell"] = shell
        answers = iter([say("shell", cmd="ls"), say("response", text="done")])
        host.model = lambda agent, lines: next(answers)
        context = host.context()
        await host.ask("Hi", context)
        answer = [one.id for one in context.agent0.history.all() if one.ai][-1]
        told = host.runtime.feedback(
            context_id=context.id, message_id=answer, signal="thumbs_up", comment="mail ann@corp.io"
        )
        assert told["ok"] and told["queued"]
        await until(lambda: status(host)["feedback"] == 1)
    with Host(tmp_path, in_thread=True) as host:
        host.runtime.feedback(
            context_id=context.id, message_id=answer, signal="rating", value=0.75, feedback_id="same"
        )
        host.runtime.feedback(
            context_id=context.id, message_id=answer, signal="rating", value=0.75, feedback_id="same"
        )
        host.runtime.feedback(context_id="unknown", message_id="x", signal="thumbs_down")
        await until(lambda: status(host)["feedback"] >= 1 and not status(host)["waiting"])
        assert status(host)["opted_out"] == 1
        assert host.runtime.feedback(context_id="c", signal="rating", value=4)["ok"] is False
    (document,) = recorded(tmp_path / "usr/plugins/onward/data")
    votes = _votes(tmp_path / "usr/plugins/onward/data")
    assert [vote["signal"] for vote in votes] == ["thumbs_up", "rating"]
    for vote in votes:
        assert vote["trajectory_id"] == document["trajectory_id"]
        assert (vote["turn_id"], vote["session_id"]) == (2, document["session_id"])
    assert "ann@corp.io" not in votes[0]["comment"] and votes[0]["source"] == "webui"


def _votes(data: Path) -> list[dict[str, Any]]:
    from onward.bus.outbox import Outbox

    box = Outbox(data / "feedback.db")
    found = [json.loads(message.body) for message in box.next_batch()]
    box.close()
    return found


async def test_work_and_votes_arrive_and_a_deployment_is_shown(
    tmp_path: Path, bus: Bus, nats_server: NatsServer
) -> None:
    """The address with the agents' login is a secret of Agent Zero: agents can read the settings."""
    url = nats_server.logins.url("agent", nats_server.url)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "secrets.env").write_text(f"ONWARD_NATS_URL={url}\n")
    with Host(tmp_path, in_thread=True) as host:
        context = host.context()
        await host.ask("Hi", context)
        answer = context.agent0.history.all()[-1].id
        host.runtime.feedback(context_id=context.id, message_id=answer, signal="thumbs_up")
        await until(lambda: status(host)["feedback"] == 1 and status(host)["queued"] == 0)
        message = await bus.js.get_msg("RL_TRAJECTORIES", seq=1)
        assert json.loads(message.data or b"")["task_context"]["instructions"] == "Hi"
        assert (await bus.js.stream_info("RL_FEEDBACK")).state.messages == 1
        await until(lambda: status(host)["nats"] == "connected")
        deployed = {**examples.MODEL_DEPLOYED, "timestamp": utc_text_now()}
        deployed["model_info"] = {**deployed["model_info"], "model_id": "agent-zero-rl-v9"}
        await bus.publish(subjects.MODEL_DEPLOYED, json.dumps(deployed).encode(), msg_id="d1")
        await until(lambda: status(host)["model"]["id"] == "agent-zero-rl-v9")
        assert status(host)["model"]["version"] == deployed["deployment_id"]


async def test_the_model_of_the_gateway_is_asked_at_the_start_of_a_task(tmp_path: Path) -> None:
    class Gateway(BaseHTTPRequestHandler):
        asked: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            Gateway.asked.append(self.path)
            body = json.dumps({"model_id": "agent-zero-rl-v4"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with Host(tmp_path, config={"gateway_url": url}, in_thread=True) as host:
            await host.ask("Hi")
            await until(lambda: status(host)["model"]["id"] == "agent-zero-rl-v4")
            assert status(host)["gateway"] == url
            before = len(Gateway.asked)
            await asyncio.sleep(1.1)
            await host.ask("Again")
            await until(lambda: len(Gateway.asked) > before)
            assert set(Gateway.asked) == {"/admin/models/current/metrics"}
    finally:
        server.shutdown()
        server.server_close()


async def test_the_host_imports_nothing_of_onward_and_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        f"sys.path[:0] = [{str(CHILD.parent)!r}]\n"
        "from agent_zero_host import Host\n"
        "import agent_zero_tools\n"
        "from pathlib import Path\n"
        "before = set(sys.modules)\n"
        "async def main():\n"
        f"    with Host(Path({str(tmp_path)!r})) as host:\n"
        "        await host.ask('Hi')\n"
        "        print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    assert loaded - set(sys.stdlib_module_names) == {"_onward_agent_zero", "helpers", "usr"}


def utc_text_now() -> str:
    from onward.clock import SystemClock

    return utc_text(SystemClock().now())
