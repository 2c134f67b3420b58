"""The admin API on the gateway's port, with the real releaser role: the published lines, as written."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from admin_world import FIRST, STORE, admin_world, in_state, newest, serves
from docs_blocks import ROOT
from release_stream import publish_good_outcomes
from serving_world import World, eventually

from onward.bus import Bus
from onward.contracts.buckets import AdminRequest
from onward.release import admin_requests
from onward.release.record import ReleaseRecord

REGISTER = """
curl -X POST http://tensorzero-gateway:3000/admin/models \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "base_model": "qwen2.5-32b-instruct",
    "checkpoint_path": "s3://pmoves-models/rl-checkpoints/..."
  }'
"""
HALF = """
curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "traffic_percentage": 50
  }'
"""
ALL = """
curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -d '{"model_id": "agent-zero-rl-v2.3", "traffic_percentage": 100}'
"""
METRICS = "curl http://tensorzero-gateway:3000/admin/models/agent-zero-rl-v2.3/metrics"
CURRENT = "curl http://tensorzero-gateway:3000/admin/models/current/metrics"
HEALTH = "curl http://tensorzero-gateway:3000/health"
NEW = "agent-zero-rl-v2.3"


@pytest.fixture
async def admin(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with admin_world(bus, tmp_path, monkeypatch) as world:
        yield world


async def line(world: World, command: str) -> dict[str, Any]:
    """What a documented line answers, run by bash; only the host name is mapped to this machine."""
    port = world.gateway.server.url.rpartition(":")[2]
    mapped = f'curl() {{ command curl -sS --connect-to tensorzero-gateway:3000:127.0.0.1:{port} "$@"; }}'
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", f"{mapped}\n{command}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    return json.loads(out)


async def ramping(world: World) -> ReleaseRecord:
    """The model is registered, and its release ramps."""
    assert (await line(world, REGISTER))["state"] == "added"
    assert (await line(world, HALF))["traffic_percentage"] == 0.0
    record = await in_state(world, "ramping")

    async def verified() -> bool:
        return (await newest(world)).verified_revision is not None

    await eventually(verified)
    return record


def test_the_page_shows_the_lines_that_are_run() -> None:
    page = (ROOT / "docs" / "admin-api.md").read_text()
    assert all(command.strip() in page for command in (REGISTER, HALF, ALL, METRICS, CURRENT, HEALTH))


async def test_the_published_lines_run_as_written(admin: World) -> None:
    assert (await line(admin, HEALTH))["status"] == "ok"
    before = await line(admin, CURRENT)
    assert (before["model_id"], before["traffic_percentage"]) == (FIRST, 100.0)
    assert before["error_rate"] is None and before["window"] is None

    registered = await line(admin, REGISTER)
    assert (registered["model_id"], registered["traffic_percentage"]) == (NEW, 0.0)
    assert (await line(admin, METRICS))["traffic_percentage"] == 0.0

    asked = await line(admin, HALF)
    assert (asked["state"], asked["traffic_percentage"]) == ("proposed", 0.0)
    await in_state(admin, "ramping")

    assert (await line(admin, HALF))["traffic_percentage"] == 50.0
    record = await newest(admin)
    assert record.schedule.steps[record.step].share == 0.5
    assert record.history[-1]["why"] == "50%: override by anonymous"

    count = await publish_good_outcomes(admin.bus, admin.clock, 0, admin.settings.run_dir, raw_total=0.75)
    assert count == 2

    async def judged() -> dict[str, Any] | None:
        figures = await line(admin, METRICS)
        return figures if figures["requests"] else None

    figures = await eventually(judged)
    assert (figures["requests"], figures["error_rate"], figures["reward_mean"]) == (1, 0.0, 0.75)
    assert figures["negative_feedback"] is None and figures["traffic_percentage"] == 50.0
    assert figures["window"]["release_id"] == record.release_id

    assert (await line(admin, ALL))["state"] == "baking"
    assert {entry.key for entry in await admin.bus.bucket("rl_control").entries(AdminRequest.KEY)} == set()


async def test_all_traffic_on_the_current_model_ends_the_release(admin: World) -> None:
    await ramping(admin)
    answer = await admin.client.put("/admin/traffic", json={"model_id": FIRST, "traffic_percentage": 100})
    assert answer.status_code == 200 and answer.json()["state"] == "aborted"
    assert (await in_state(admin, "aborted")).candidate.model_id == NEW


async def test_all_traffic_on_the_previous_model_goes_back_to_it(admin: World) -> None:
    await ramping(admin)
    await line(admin, ALL)
    count = 0

    async def promoted() -> bool:
        nonlocal count
        count = await publish_good_outcomes(admin.bus, admin.clock, count, admin.settings.run_dir)
        record = await newest(admin)
        return str(record.state) == "promoted" and record.settled

    await eventually(promoted)
    answer = await admin.client.put(
        "/admin/traffic", json={"model_id": "previous", "traffic_percentage": 100}
    )
    assert answer.status_code == 202, answer.text
    assert answer.json()["model_id"] == FIRST
    assert (await in_state(admin, "rolled_back")).asked_why == "PUT /admin/traffic by local"
    await eventually(lambda: serves(admin, FIRST))


async def test_a_share_of_its_own_becomes_a_step_between_the_others(admin: World) -> None:
    await ramping(admin)
    answer = await admin.client.put("/admin/traffic", json={"model_id": NEW, "traffic_percentage": 40})
    assert answer.json()["traffic_percentage"] == 40.0
    record = await newest(admin)
    assert [step.share for step in record.schedule.steps] == [0.1, 0.25, 0.4, 0.5, 0.95]
    answer = await admin.client.put("/admin/traffic", json={"model_id": FIRST, "traffic_percentage": 90})
    assert answer.json()["traffic_percentage"] == 90.0
    assert (await newest(admin)).step == 0


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("traffic", {"model_id": FIRST, "traffic_percentage": 30}, 409, "serves alone"),
    ("traffic", {"model_id": "nobody", "traffic_percentage": 30}, 404, "There is no model 'nobody'"),
    ("traffic", {"model_id": NEW, "traffic_percentage": 101}, 400, "a number from 0 to 100"),
    ("traffic", {"model_id": NEW, "traffic_percentage": True}, 400, "a number from 0 to 100"),
    ("traffic", {"traffic_percentage": 10}, 400, "'model_id' must be a text"),
    ("models", {"model_id": NEW}, 400, "'checkpoint_path' must be a text"),
    ("models", {"model_id": NEW, "checkpoint_path": "s3://other/x"}, 400, "in the store of models"),
    ("models", {"model_id": NEW, "checkpoint_path": STORE + "../secret"}, 503, "is not usable"),
    ("models", {"model_id": NEW, "checkpoint_path": "/etc"}, 400, "in the store of models"),
    ("models", {"model_id": NEW, "checkpoint_path": STORE + "x", "base_model": "gpt"}, 400, "base_model"),
]  # fmt: skip


async def test_what_makes_no_sense_is_refused_in_a_sentence(admin: World) -> None:
    for path, body, status, words in REFUSED:
        call = admin.client.put if path == "traffic" else admin.client.post
        answer = await call(f"/admin/{path}", json=body)
        assert answer.status_code == status and words in answer.json()["error"]["message"], body


async def test_a_request_that_meets_a_defect_is_answered_and_the_releaser_goes_on(
    admin: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ValueError("no safetensors file")

    monkeypatch.setattr(admin_requests, "add_adapter", broken)
    answer = await admin.client.post(
        "/admin/models", json={"model_id": NEW, "checkpoint_path": STORE + "..."}
    )
    assert answer.status_code == 500 and "ValueError" in answer.json()["error"]["message"]
    monkeypatch.undo()
    answer = await admin.client.put("/admin/traffic", json={"model_id": FIRST, "traffic_percentage": 100})
    assert answer.status_code == 200


async def test_all_traffic_on_the_model_that_has_it_ends_no_release_that_waits(
    admin: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.release.approval.why_needed", lambda *_: "every release needs it")
    await line(admin, REGISTER)
    await line(admin, HALF)
    await in_state(admin, "waiting")
    answer = await admin.client.put("/admin/traffic", json={"model_id": FIRST, "traffic_percentage": 100})
    assert (answer.status_code, answer.json()["traffic_percentage"]) == (200, 100.0)
    assert str((await newest(admin)).state) == "waiting"
    await admin.client.put("/admin/traffic", json={"model_id": NEW, "traffic_percentage": 0})
    await in_state(admin, "aborted")


async def test_a_browser_is_never_open_and_a_key_needs_its_scope(admin: World) -> None:
    url = admin.gateway.server.url
    async with httpx.AsyncClient(base_url=url) as keyless:
        assert (await keyless.get("/admin/models/current/metrics")).status_code == 200
        for headers in ({"Origin": url}, {"User-Agent": "Mozilla/5.0"}, {"Via": "1.1 proxy"}):
            answer = await keyless.get("/admin/models/current/metrics", headers=headers)
            assert answer.status_code == 401
            answer = await keyless.put("/admin/traffic", json={}, headers=headers)
            assert answer.status_code == 401


async def test_metrics_of_the_base_model_before_any_release(world: World) -> None:
    answer = await world.client.get("/admin/models/current/metrics")
    assert answer.json() == {
        "model_id": "tiny", "error_rate": None, "reward_mean": None, "negative_feedback": None,
        "requests": None, "traffic_percentage": 100.0, "window": None,
    }  # fmt: skip
    assert (await world.client.get("/admin/models/previous/metrics")).status_code == 404
    assert (await world.client.get("/admin/models/nobody/metrics")).status_code == 404
