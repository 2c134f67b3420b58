"""From a vote over HTTP to the reward that it changes: the real roles, with everything embedded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from onward import Recorder, config, host
from onward.warehouse import queries


async def test_a_vote_supersedes_the_reward_and_the_last_vote_is_its_value(tmp_path: Path) -> None:
    settings = config.load(
        environ={},
        overrides={"data_dir": tmp_path / "data", "nats": {"port": 0}, "http": {"api_port": 0}},
    )
    async with host.running(settings, roles=("collector", "rewarder", "api")) as loop:
        nats_token = (settings.run_dir / "nats.token").read_text().strip()
        recorder = Recorder(
            tmp_path / "outbox.db", nats_url=loop.endpoints["nats_url"], nats_token=nats_token
        )
        with recorder.task("Task", session_id="s1") as task:
            task.turn(
                observation="Do it.",
                action={"type": "response", "raw_response": "Done."},
                result={"success": True},
            )
            task.outcome("completed_successfully")
        assert await asyncio.to_thread(recorder.flush, 20.0)
        recorder.close()
        scores = await _scores(loop, task.trajectory_id, 1)
        assert scores == [0.5]  # nobody said anything
        key = (settings.run_dir / "api.key").read_text().strip()
        async with httpx.AsyncClient(base_url=loop.ctx.endpoints["api_url"]) as client:
            made = await client.post(
                "/feedback/tokens",
                json={"trajectory_id": task.trajectory_id},
                headers={"Authorization": f"Bearer {key}"},
            )
            assert made.json()["session_id"] == "s1"
            headers = {"Authorization": "Bearer " + made.json()["token"]}
            for count, body in enumerate(
                ({"signal": "thumbs_down"}, {"signal": "rating", "stars": 4}), start=2
            ):
                assert (await client.post("/feedback", json=body, headers=headers)).status_code == 202
                scores = await _scores(loop, task.trajectory_id, count)
        assert scores == [0.5, 0.0, 0.8]
        newest = await queries.reward_for(loop.ctx.warehouse, [task.trajectory_id])
        assert _score(newest[task.trajectory_id]) == 0.8


async def _scores(loop: host.Loop, trajectory_id: str, count: int) -> list[float]:
    """The raw score of user feedback in each reward of the trajectory, once there are ``count``."""
    async with asyncio.timeout(30):
        while len(rows := await queries.reward_history(loop.ctx.warehouse, trajectory_id)) < count:
            await asyncio.sleep(0.05)
    return [_score(row) for row in rows]


def _score(row: dict) -> float:
    component = json.loads(row["payload"])["reward_components"]["user_feedback"]
    return component.get("raw_data", {}).get("raw_score", component["score"])
