"""The recorder without a server: what it writes, what it refuses, and that it never disturbs the agent."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from onward import Recorder
from onward.clock import ManualClock
from onward.contracts import Trajectory, decode, subjects
from onward.errors import ContractError, OutboxFullError, RedactionError

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
ANSWER = '{"tool_name": "calc", "tool_args": {"e": "1+1"}}'
COMPLETION = {
    "model": "agent-zero-rl-v3",
    "choices": [{"message": {"role": "assistant", "content": ANSWER}}],
    "usage": {"total_tokens": 30},
    "onward": {
        "session_id": "gateway-session",
        "release": {"release_id": "r7", "arm": "candidate", "weight": 0.1},
        "sampling": {
            "generation_id": "g1", "continues": None,
            "prompt_ids": [1, 2], "token_ids": [3], "logprobs": [-0.1],
            "temperature": 1.0, "top_p": 1.0, "top_k": None, "finish_reason": "stop", "model_digest": "d3",
        },
    },
}  # fmt: skip


def stored(recorder) -> list[Trajectory]:
    """What waits in the outbox, in order, checked against the contract."""
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT subject, body FROM queue ORDER BY seq").fetchall()
    assert all(subject == subjects.TRAJECTORY for subject, _ in rows)
    return [decode(body, Trajectory) for _, body in rows]


@pytest.fixture
def recorder(tmp_path):
    with Recorder(tmp_path / "outbox.db", agent_id="a1") as recorder:
        yield recorder


def test_a_task_becomes_one_valid_trajectory(tmp_path):
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    with Recorder(tmp_path / "o.db", agent_id="a1", clock=clock) as recorder:
        with recorder.task(
            "Add", task_id="t1", session_id="s1", domain="general", group_id="g", task_type="calc",
            metadata={"environment": "desk"},
        ) as task:  # fmt: skip
            asyncio.run(clock.advance(1.5))
            task.turn(observation="Add 1+1", action=COMPLETION, result="2", thoughts="easy")
            asyncio.run(clock.advance(1.0))
            task.turn(observation={"value": 2}, action="The answer is 2")
            task.outcome("completed_successfully", completion_percentage=1.0)
        (trajectory,) = stored(recorder)
    first, second = trajectory.turns
    assert (trajectory.session_id, trajectory.agent_id) == ("s1", "a1")
    assert trajectory.start_timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert (trajectory.end_timestamp - trajectory.start_timestamp).total_seconds() == 2.5
    assert [(turn.turn_id, turn.timestamp.second) for turn in trajectory.turns] == [(1, 0), (2, 1)]
    assert (first.observation.type, second.observation.type) == ("user_message", "tool_result")
    assert (first.action.type, first.action.tool_name, first.action.tool_args) == (
        "tool_call",
        "calc",
        {"e": "1+1"},
    )
    assert first.action.raw_response == ANSWER
    assert first.action.sampling is not None and first.action.sampling.token_ids == [3]
    assert first.thought_process == ["easy"]
    assert (first.result.success, first.result.output) == (True, "2")
    assert (second.action.type, second.action.raw_response) == ("response", "The answer is 2")
    metadata = trajectory.metadata
    assert (metadata.model, metadata.total_tokens, metadata.temperature) == ("agent-zero-rl-v3", 30, 1.0)
    assert metadata.release is not None and metadata.release.release_id == "r7"
    assert metadata.outcome is not None and metadata.outcome.status == "completed_successfully"
    context = trajectory.task_context
    assert (context.task_id, context.task_type, context.group_id) == ("t1", "calc", "g")


def test_the_gateways_session_is_taken_when_none_is_given(recorder):
    with recorder.task("x") as task:
        task.turn(observation="x", action=COMPLETION)
    assert stored(recorder)[0].session_id == "gateway-session"


def test_secrets_are_gone_before_anything_is_on_disk(recorder):
    with recorder.task(f"use {SECRET}") as task:
        task.turn(observation="x", action=COMPLETION, result={"success": True, "output": SECRET})
    (trajectory,) = stored(recorder)
    assert trajectory.task_context.instructions == "use <GITHUB_TOKEN:1>"
    sampling = trajectory.turns[0].action.sampling
    assert sampling is not None and sampling.tokens_void and sampling.prompt_ids == []
    for file in recorder._outbox.path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_a_failing_task_is_recorded_as_failed_and_its_error_goes_on(recorder):
    with pytest.raises(KeyError), recorder.task("x") as task:
        task.turn(observation="x", action="y")
        raise KeyError("mine")
    outcome = stored(recorder)[0].metadata.outcome
    assert outcome is not None and outcome.status == "failed"


def test_an_interrupted_task_is_abandoned(recorder):
    with pytest.raises(KeyboardInterrupt), recorder.task("x") as task:
        task.turn(observation="x", action="y")
        raise KeyboardInterrupt
    outcome = stored(recorder)[0].metadata.outcome
    assert outcome is not None and outcome.status == "abandoned"


def test_a_recorder_error_does_not_replace_the_agents_error(recorder, monkeypatch):
    def broken(_, **__):
        raise RedactionError("no")

    monkeypatch.setattr("onward.redaction.redactor.redact_trajectory", broken)
    with pytest.raises(KeyError), recorder.task("x") as task:
        task.turn(observation="x", action="y")
        raise KeyError("mine")
    assert recorder.pending() == 0


def test_nothing_done_or_discarded_is_not_recorded(recorder):
    with recorder.task("x"):
        pass
    with recorder.task("x") as task:
        task.turn(observation="x", action="y")
        task.discard()
    assert recorder.pending() == 0
    with pytest.raises(ContractError):
        task.turn(observation="x", action="y")


async def test_async_tasks_side_by_side(recorder):
    async def work(number: int) -> None:
        async with recorder.task("x", session_id=f"s{number}") as task:
            for _ in range(1 + number % 3):
                task.turn(observation="o", action="a")
                await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(30)))
    assert {(t.session_id, len(t.turns)) for t in stored(recorder)} == {
        (f"s{number}", 1 + number % 3) for number in range(30)
    }


def test_eight_threads_give_every_trajectory_with_its_turns(recorder):
    def work(thread: int) -> None:
        for number in range(15):
            with recorder.task("x", session_id=f"{thread}-{number}") as task:
                for turn in range(1 + number % 4):
                    task.turn(observation=f"o{turn}", action="a")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trajectories = stored(recorder)
    assert len(trajectories) == len({t.trajectory_id for t in trajectories}) == 120
    for trajectory in trajectories:
        number = int(trajectory.session_id.split("-")[1])
        assert [t.turn_id for t in trajectory.turns] == list(range(1, 2 + number % 4))
        assert [t.observation.content for t in trajectory.turns] == [f"o{i}" for i in range(1 + number % 4)]


def test_turns_of_one_task_from_several_threads_are_numbered(recorder):
    with recorder.task("x") as task:
        threads = [
            threading.Thread(target=lambda: [task.turn(observation="o", action="a") for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [turn.turn_id for turn in stored(recorder)[0].turns] == list(range(1, 81))


def test_a_full_outbox_raises_and_keeps_what_it_has(tmp_path):
    with Recorder(tmp_path / "o.db", max_bytes=3000) as recorder:
        with recorder.task("x") as task:
            task.turn(observation="x" * 1500, action="y")
        with pytest.raises(OutboxFullError), recorder.task("x") as task:
            task.turn(observation="x" * 1500, action="y")
        assert recorder.pending() == 1


def test_a_full_outbox_blocks_until_closed_when_told_to(tmp_path):
    recorder = Recorder(tmp_path / "o.db", max_bytes=3000, on_full="block")
    failures = []

    def work() -> None:
        try:
            for _ in range(2):
                with recorder.task("x") as task:
                    task.turn(observation="x" * 1500, action="y")
        except OutboxFullError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    recorder._closed.set()
    thread.join(60)
    assert len(failures) == 1
    recorder._outbox.close()


def test_long_text_is_cut_after_redaction_and_said(recorder):
    with recorder.task("x") as task:
        task.turn(observation="é" * 40_000 + " " + SECRET, action=COMPLETION)
    (trajectory,) = stored(recorder)
    content = trajectory.turns[0].observation.content
    assert isinstance(content, str) and len(content.encode()) <= 64 * 1024
    assert "bytes cut]" in content and content.endswith("é <GITHUB_TOKEN:1>")
    assert trajectory.metadata.model_dump()["texts_cut"] == 1
    sampling = trajectory.turns[0].action.sampling
    assert sampling is not None and sampling.tokens_void


@pytest.mark.parametrize(
    "observation,action,result",
    [(None, "a", None), (3, "a", None), ("o", None, None), ("o", {"x": 1}, None), ("o", "a", 3.5)],
)
def test_other_values_are_refused_with_one_sentence(recorder, observation, action, result):
    with recorder.task("x") as task, pytest.raises(ContractError, match="expected"):
        task.turn(observation=observation, action=action, result=result)


def test_what_is_not_json_becomes_text(recorder):
    with recorder.task("x") as task:
        task.turn(
            observation={"when": datetime(2026, 1, 1, tzinfo=UTC), "nan": float("nan"), 1: {2}, "o": b"xyz"},
            action="a\ud800",
            result=ValueError("no\ud800"),
        )
    turn = stored(recorder)[0].turns[0]
    assert turn.observation.content == {
        "when": "2026-01-01T00:00:00.000Z", "nan": None, "1": [2], "o": "<3 bytes>",
    }  # fmt: skip
    assert turn.action.raw_response == "a?"
    assert (turn.result.success, turn.result.error) == (False, "ValueError: no?")


def test_tool_calls_of_a_completion():
    from onward.capture.conversations.turns import completion

    calls = [
        {"function": {"name": "search", "arguments": '{"q": "x"}'}},
        {"function": {"name": "read", "arguments": "not json"}},
    ]
    taken = completion({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    assert taken.action["tool_name"] == "search"
    assert taken.action["tool_args"] == {"q": "x"}
    assert taken.action["parallel_calls"] == [{"tool_name": "read", "tool_args": {"unparsed": "not json"}}]
    assert json.loads(taken.action["raw_response"]) == calls
    with pytest.raises(ContractError):
        completion({"choices": []})


def test_an_unknown_domain_is_refused_at_once(recorder):
    with pytest.raises(ContractError, match="coding"):
        recorder.task("x", domain="cooking")


def test_without_a_server_the_agent_goes_on(tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url="nats://127.0.0.1:9")
    with recorder.task("x") as task:
        task.turn(observation="o", action="a")
    assert recorder.flush(0.1) is False
    recorder.close(timeout=0.1)
    again = Recorder(tmp_path / "o.db")
    assert again.pending() == 1
    again.close()


def test_importing_onward_loads_nothing():
    code = "import sys, onward; print('pydantic' in sys.modules, onward.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("False ")
