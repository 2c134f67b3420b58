"""``onward rewards explain|simulate`` beside a running service: by the data folder, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from docs_blocks import run_command

from onward import config, host
from onward.contracts import Trajectory, encode, subjects, validate
from onward.warehouse import queries


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[host.Loop]:
    settings = config.load(
        environ={}, overrides={"data_dir": folder, "nats": {"port": 0}, "http": {"api_port": 0}}
    )
    async with host.running(settings, roles=("collector", "rewarder", "api")) as loop:
        yield loop


def trajectory(number: int) -> Trajectory:
    start = datetime.now(UTC) - timedelta(minutes=1)
    status = ("completed_successfully", "failed", "partial_completion")[number % 3]
    turns = [
        {
            "turn_id": n + 1,
            "timestamp": start.isoformat(),
            "observation": {"type": "user_message", "content": f"do part {n}"},
            "action": {"type": "response", "raw_response": f"part {n} is done"},
            "result": {"success": True, "output": "ok", "error": None},
        }
        for n in range(1 + number % 4)
    ]
    document = {
        "trajectory_id": f"t{number}",
        "session_id": f"s{number}",
        "agent_id": "agent",
        "start_timestamp": start.isoformat(),
        "end_timestamp": (start + timedelta(seconds=1 + number % 7)).isoformat(),
        "turns": turns,
        "task_context": {"task_id": f"k{number}", "instructions": "do it", "task_type": "sum"},
        "metadata": {
            "model": "v1",
            "total_tokens": 100 + number,
            "outcome": {"status": status, "completion_percentage": 0.5},
        },
    }
    return validate(document, Trajectory)


def unjudged(number: int) -> Trajectory:
    """As the gateway records it when nobody says how it ended."""
    document = json.loads(encode(trajectory(number)))
    document["metadata"] = {"model": "v1", "capture": {"source": "gateway"}}
    return validate(document, Trajectory)


async def test_explain_and_simulate_beside_a_running_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    data = tmp_path / "data"

    async def command(line: str) -> tuple[int, str]:
        return await asyncio.to_thread(run_command, line)

    async with service(data) as loop:
        items = [*(trajectory(i) for i in range(60)), unjudged(60)]
        for item in items:
            await loop.ctx.bus.publish(subjects.TRAJECTORY, encode(item), msg_id=item.trajectory_id)
        async with asyncio.timeout(60):
            while True:
                counts = await queries.counts(loop.ctx.warehouse)
                if counts["rewarded"] == 60 and counts["unscored"] == 1:
                    break
                await asyncio.sleep(0.05)
        row = (await queries.reward_for(loop.ctx.warehouse, ["t57"]))["t57"]

        code, output = await command(f"onward rewards explain t57 --json --dir {data}")
        assert code == 0
        found = json.loads(output)
        assert (found["raw_total"], found["total_reward"]) == (row["raw_total"], row["total_reward"])
        redone = sum(part["weight"] * part["score"] for part in found["components"].values())
        assert redone == pytest.approx(row["raw_total"], abs=1e-12)
        redone = sum(part["weight"] * part["normalised"] for part in found["components"].values())
        assert redone == pytest.approx(row["total_reward"], abs=1e-12)

        code, text = await command(f"onward rewards explain t57 --dir {data}")
        assert code == 0 and max(len(line) for line in text.splitlines()) <= 80
        assert f"raw_total = {found['formulas']['raw_total']}" in " ".join(text.split())

        url = loop.ctx.endpoints["api_url"]
        code, refused = await command(f"onward rewards explain t57 --url {url}")
        assert (code, refused) == (
            2, f"{url} refused the key of ONWARD_API_KEY: No valid API key was given: send 'Authorization: "
            "Bearer KEY' (the local key is in run/api.key).\n",
        )  # fmt: skip
        monkeypatch.setenv("ONWARD_API_KEY", (data / "run" / "api.key").read_text().strip())
        code, output = await command(f"onward rewards explain t57 --json --url {url}")
        assert (code, json.loads(output)) == (0, found)
        for where in (f"--dir {data}", f"--url {url}"):
            code, output = await command(f"onward rewards explain t60 {where}")
            assert code == 0 and "t60 is unscored, which is not a zero: no_outcome" in output
            code, output = await command(f"onward rewards explain t {where}")
            assert code == 2 and "t begins several ids: give more of one (t" in output
            code, output = await command(f"onward rewards explain t99 {where}")
            assert code == 2 and "No trajectory t99 is known here: it was never stored." in output
            assert len(output.splitlines()) == 1
        session = items[57].session_id
        for where in (f"--dir {data}", f"--url {url}"):
            code, output = await command(f"onward rewards explain {session} {where}")
            assert code == 2 and f"{session} is a session, no trajectory: give one of its newest, " in output
            assert "t57" in output and len(output.splitlines()) == 1
        code, output = await command(f"onward rewards list --limit 3 --json --dir {data}")
        listed = json.loads(output)
        assert code == 0 and len(listed) == 3
        assert all(str(row["trajectory_id"]).startswith("t") and row["session_id"] for row in listed)
        code, output = await command(f"onward rewards list --last 3 --dir {data}")
        assert code == 0 and all(row["trajectory_id"] in output for row in listed)
        code, output = await command(f"onward rewards explain t57 --url {url}/elsewhere")
        assert code == 2 and len(output.splitlines()) == 1

        code, output = await command(
            f"onward rewards simulate --weights task_completion=1 --last 30 --json --dir {data}"
        )
        found = json.loads(output)
        assert (code, found["trajectories"], found["by_task_type"].keys()) == (0, 30, {"sum"})
        ids = {case["trajectory_id"] for case in found["moved_most"]}
        assert ids <= {f"t{number}" for number in range(30, 60)}, "not among the newest 30"
        code, text = await command(
            f"onward rewards simulate --weights efficiency=3,task_completion=1 --normalize --dir {data}"
        )
        assert code == 0 and "on the newest 60 rewards by raw_total" in " ".join(text.split())
        assert max(len(line) for line in text.splitlines()) <= 80

        vote = {
            "feedback_id": "f1",
            "session_id": "s57",
            "trajectory_id": "t57",
            "kind": "explicit",
            "signal": "thumbs_down",
            "source": "webui",
            "comment": "not what I asked for",
            "timestamp": datetime.now(UTC).isoformat(),
        }
        await loop.ctx.bus.publish(subjects.FEEDBACK, json.dumps(vote).encode(), msg_id="f1")
        async with asyncio.timeout(60):
            while len(await queries.reward_history(loop.ctx.warehouse, "t57")) < 2:
                await asyncio.sleep(0.05)
        code, output = await command(f"onward rewards explain t57 --json --dir {data}")
        found = json.loads(output)
        assert (code, found["revision"], found["supersedes"]) == (0, 1, row["reward_id"])
        assert found["cause"] == {"kind": "feedback", "id": "f1"}
        assert [old["reward_id"] for old in found["superseded"]] == [row["reward_id"]]
        (said,) = found["feedback"]
        assert (said["feedback_id"], said["signal"], said["counted"]) == ("f1", "thumbs_down", True)
        assert found["components"]["user_feedback"]["score"] == 0.0
        redone = sum(part["weight"] * part["normalised"] for part in found["components"].values())
        assert redone == pytest.approx(found["total_reward"], abs=1e-12)
        assert "not what I asked for" not in output
    code, output = await command(f"onward rewards list --limit 3 --json --dir {data}")
    assert code == 0 and len(json.loads(output)) == 3, "also while nothing runs"
    await asyncio.to_thread(shutil.rmtree, data / "chdb")
    code, output = await command(f"onward rewards simulate --weights task_completion=1 --dir {data}")
    assert code == 2 and output.startswith(f"Nothing is stored in {data}")
