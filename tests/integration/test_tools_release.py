"""Releases by tools with the real releaser: what gives a model traffic waits for a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from admin_world import FIRST, STORE, admin_world, in_state, newest, serves
from release_stream import publish_good_outcomes
from serving_world import World, eventually
from tools_world import EVERY_SCOPE, attach

from onward.bus import Bus, NatsServer
from onward.release.commands import send_command
from onward.tools import Toolbox

NEW = "agent-zero-rl-v2.3"


async def found(box: Toolbox, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await box.call(name, arguments)
    assert not answer.is_error, answer.text
    return json.loads(answer.text)


async def refused(box: Toolbox, name: str, **arguments: Any) -> str:
    answer = await box.call(name, arguments)
    assert answer.is_error, answer.text
    return answer.text


def toolbox(world: World, server: NatsServer) -> Toolbox:
    attach(world.ctx.settings, server, gateway_url=world.gateway.server.url)
    return Toolbox(world.ctx.settings, scopes=EVERY_SCOPE)


async def test_a_deployed_checkpoint_waits_for_a_person_and_is_held_and_taken_back_at_once(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin_world(bus, tmp_path, monkeypatch) as world, toolbox(world, nats_server) as box:
        assert world.ctx.settings.release.approval == "never"  # and it waits all the same
        asked = {"model_id": NEW, "checkpoint_path": STORE + "..."}
        deployed = await found(box, "deploy_to_tensorzero", **asked, rollout_strategy="canary")
        assert (deployed["registered"], deployed["traffic_percentage"]) == ("added", 0.0)
        waiting = await in_state(world, "waiting")
        assert waiting.release_id == deployed["release_id"] and waiting.started_at is None
        shown = await found(box, "release", action="show", model_id=NEW)
        assert shown["state"] == "waiting"
        assert shown["approval"]["why"] == "local asked for a person's approval"
        again = await refused(box, "deploy_to_tensorzero", **asked)
        assert again.startswith(f"Release {waiting.release_id} of {NEW} is waiting: only a person gives it")
        no_such = await refused(box, "release", action="promote")
        assert no_such.endswith("should be 'list', 'show', 'start', 'hold', 'abort' or 'rollback'.")

        await send_command(bus, "approve", NEW, clock=world.clock, by="ada", reason="read the report")
        await in_state(world, "ramping")
        told = await found(box, "report")
        assert f"Model {NEW} deployed" in " ".join(one["message"] for one in told["items"])
        assert "only a person gives it" in await refused(box, "release", action="start", model_id=NEW)
        await found(box, "release", action="hold")
        await in_state(world, "held")
        await found(box, "release", action="abort")
        await in_state(world, "aborted")
        listed = await found(box, "release", action="list")
        assert [one["model_id"] for one in listed["items"]] == [NEW, FIRST]
        figures = await found(box, "status", model_id="current")
        assert (figures["model_id"], figures["traffic_percentage"]) == (FIRST, 100.0)


async def test_a_release_that_no_one_approves_in_time_is_refused_even_where_the_policy_approves(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"approval_hours": 0.2 / 3600, "on_approval_timeout": "approve"}
    async with (
        admin_world(bus, tmp_path, monkeypatch, **policy) as world,
        toolbox(world, nats_server) as box,
    ):
        await found(box, "deploy_to_tensorzero", model_id=NEW, checkpoint_path=STORE + "...")
        record = await in_state(world, "rejected")
        assert record.reason_code == "approval_refused" and record.started_at is None
        assert "needs reason" in await refused(box, "release", action="rollback")
        outside = await refused(
            box, "deploy_to_tensorzero", model_id="other", checkpoint_path="s3://elsewhere/job"
        )
        assert outside.startswith("checkpoint_path is 's3://elsewhere/job': expected a folder in the store")


async def test_a_promoted_model_is_rolled_back_by_the_tool(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin_world(bus, tmp_path, monkeypatch) as world, toolbox(world, nats_server) as box:
        await found(box, "deploy_to_tensorzero", model_id=NEW, checkpoint_path=STORE + "...")
        await in_state(world, "waiting")
        await send_command(bus, "approve", NEW, clock=world.clock, by="ada", reason="read it")
        await in_state(world, "ramping")
        await send_command(bus, "promote", clock=world.clock)  # a person does
        count = 0

        async def promoted() -> bool:
            nonlocal count
            count = await publish_good_outcomes(bus, world.clock, count, world.settings.run_dir)
            record = await newest(world)
            return str(record.state) == "promoted" and record.settled

        await eventually(promoted)
        back = await found(box, "release", action="rollback", reason="answers got shorter")
        assert (back["taken_back"], back["restored"]) == (NEW, FIRST)
        assert (await in_state(world, "rolled_back")).asked_why == "answers got shorter"
        await eventually(lambda: serves(world, FIRST))

        async def refused_again() -> str | None:
            """The sentence of the refusal; None while the serving model on record is still the old one."""
            answer = await box.call("release", {"action": "start", "model_id": NEW})
            return answer.text if answer.is_error else None

        assert NEW in await eventually(refused_again)
