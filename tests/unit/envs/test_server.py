"""The environment server: AgentGym's calls, and what ours says where AgentGym says 200."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from onward.clock import ManualClock
from onward.envs import registry
from onward.envs.crafting import CRAFTING
from onward.envs.protocol import PROTOCOL
from onward.envs.server import environment_server, make_environment_app
from onward.errors import ConfigError, NotFoundError


def client_of(app: FastAPI, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def http(clock: ManualClock) -> AsyncIterator[httpx.AsyncClient]:
    app = make_environment_app(CRAFTING, clock=clock, first_id=0, ttl_seconds=60, max_instances=3)
    async with client_of(app) as client:
        yield client


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert error["message"] and set(error) == {"type", "message", "param"}
    return response.status_code, error["type"], error["param"]


async def test_create_reset_step_observation_detail_close(http: httpx.AsyncClient) -> None:
    task = CRAFTING.task(CRAFTING.ref("train", 4))
    text = CRAFTING.world(task).describe()
    created = await post(http, "/create")
    assert (created["id"], created["reward"], created["score"], created["done"]) == (0, 0.0, 0.0, False)
    started = await post(http, "/reset", id=0, data_idx=4)
    assert (started["observation"], started["task_id"]) == (text, "crafting-train-0-4")
    assert (await http.get("/observation", params={"id": 0})).json() == text
    assert (await post(http, "/step", id=0, action="inventory")) == {
        "observation": "Inventory: You are not carrying anything.",
        "reward": 0.0,
        "score": 0.0,
        "done": False,
        "success": None,
    }
    for command in task.plan():
        last = await post(http, "/step", id=0, action=command)
    assert (last["reward"], last["score"], last["done"], last["success"]) == (1.0, 1.0, True, True)
    detail = (await http.get("/detail", params={"id": 0})).json()
    assert detail == {**last, "task_id": "crafting-train-0-4", "deleted": False}
    assert await post(http, "/close", id=0) is True
    assert await post(http, "/close", id=0) is False


async def test_a_create_without_a_body_is_as_good_as_an_empty_one(http: httpx.AsyncClient) -> None:
    answers = [await http.post("/create"), await http.post("/create", json={})]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["observation"] == answers[1].json()["observation"]


async def test_agentgyms_own_textcraft_client_is_understood(http: httpx.AsyncClient) -> None:
    """What agentenv/envs/textcraft.py sends and reads: nulls at create, id kept, three fields of a step."""
    body = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}
    created = await post(http, "/create", **body)
    assert isinstance(created["id"], int) and isinstance(created["observation"], str)
    await post(http, "/reset", data_idx=0, id=created["id"])
    stepped = await post(http, "/step", action="inventory", id=created["id"])
    assert {"observation", "reward", "done"} <= set(stepped)
    refused = await http.post("/create", json={"goal": "rope"})
    assert error_of(refused) == (422, "invalid_request_error", "goal")


async def test_seed_and_split_name_the_task(http: httpx.AsyncClient) -> None:
    for split, seed in (("train", 0), ("test", 0), ("test", 7)):
        started = await post(http, "/create", split=split, data_idx=2, seed=seed)
        assert started["task_id"] == f"crafting-{split}-{seed}-2"
        again = await post(http, "/reset", id=started["id"], split=split, data_idx=2, seed=seed)
        assert again == started


async def test_an_answer_is_parsed_here_too(http: httpx.AsyncClient) -> None:
    await post(http, "/create")
    told = await post(http, "/step", id=0, action="Thought: let me look.\nAction: inventory")
    assert told["observation"].startswith("Inventory")
    twice = await post(http, "/step", id=0, action="Action: inventory\nAction: inventory")
    assert twice["observation"].startswith("Only one 'Action:'")


async def test_errors_have_a_status_and_a_typed_body(http: httpx.AsyncClient) -> None:
    await post(http, "/create")
    await post(http, "/create")
    await post(http, "/close", id=1)
    step = {"action": "inventory"}
    assert error_of(await http.post("/step", json={"id": 9, **step})) == (404, "unknown_instance", "id")
    assert error_of(await http.get("/observation?id=9")) == (404, "unknown_instance", "id")
    assert error_of(await http.post("/step", json={"id": 1, **step})) == (410, "instance_closed", "id")
    assert error_of(await http.post("/reset", json={"id": 0, "data_idx": "x"})) == (
        422,
        "invalid_request_error",
        "data_idx",
    )
    assert error_of(await http.post("/step", json={"id": 0})) == (422, "invalid_request_error", "action")
    assert error_of(await http.get("/observation")) == (422, "invalid_request_error", "id")
    assert error_of(await http.post("/reset", json={"id": 0, "data_idx": 1000})) == (
        404,
        "unknown_task",
        "data_idx",
    )
    assert error_of(await http.post("/reset", json={"id": 0, "split": "dev"}))[:2] == (404, "unknown_task")
    assert error_of(await http.post("/createEnv", json={}))[0] == 404


async def test_a_step_after_the_end_is_refused_and_pays_nothing(http: httpx.AsyncClient) -> None:
    await post(http, "/create")
    for command in CRAFTING.task(CRAFTING.ref("train", 0)).plan():
        await post(http, "/step", id=0, action=command)
    refused = await http.post("/step", json={"id": 0, "action": "inventory"})
    assert error_of(refused) == (409, "episode_done", "id")
    assert (await http.get("/detail?id=0")).json()["score"] == 1.0
    assert (await post(http, "/reset", id=0))["done"] is False


async def test_an_idle_instance_is_closed_and_use_keeps_one_open(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    await post(http, "/create")
    await post(http, "/create")
    await clock.advance(50)
    await post(http, "/step", id=1, action="inventory")
    await clock.advance(11)
    assert error_of(await http.get("/observation?id=0")) == (410, "instance_closed", "id")
    assert await post(http, "/close", id=0) is False
    assert (await http.get("/observation?id=1")).status_code == 200


async def test_too_many_instances_are_told_to_come_back(http: httpx.AsyncClient, clock: ManualClock) -> None:
    for _ in range(3):
        await post(http, "/create")
    refused = await http.post("/create")
    assert error_of(refused) == (503, "too_many_instances", None)
    assert refused.headers["Retry-After"] == "5"
    await clock.advance(61)
    assert (await http.post("/create")).status_code == 200


async def test_instances_share_nothing(http: httpx.AsyncClient) -> None:
    await post(http, "/create")
    await post(http, "/create")
    raw = min(CRAFTING.task(CRAFTING.ref("train", 0)).raw)
    await post(http, "/step", id=0, action=f"get 2 {raw}")
    held = [(await post(http, "/step", id=n, action="inventory"))["observation"] for n in (0, 1)]
    assert held == [f"Inventory: 2 {raw}", "Inventory: You are not carrying anything."]


async def test_ids_of_a_restarted_server_are_others() -> None:
    ids = []
    for _ in range(2):
        async with client_of(make_environment_app(CRAFTING)) as http:
            ids.append((await post(http, "/create"))["id"])
    assert ids[0] != ids[1] and all(0 <= number < 2**53 for number in ids)


async def test_meta_tells_what_a_client_must_know(http: httpx.AsyncClient) -> None:
    meta = (await http.get("/meta")).json()
    assert meta == {
        "protocol": PROTOCOL,
        "name": "crafting",
        "version": CRAFTING.version,
        "instructions": CRAFTING.instructions,
        "horizon": 30,
        "reward_range": [0.0, 1.0],
        "panels": {"train": 1000, "validation": 100, "test": 100},
        "split": "train",
        "held_out": "test",
        "panel_hash": CRAFTING.panel_hash(),
        "ttl_seconds": 60.0,
    }
    assert re.fullmatch(r"[0-9a-f]{64}", meta["panel_hash"])
    assert (await http.get("/")).json() == "This is environment crafting."
    assert (await http.get("/health")).json() == {"status": "ok", "service": "environment crafting"}


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
async def test_every_environment_can_be_served(name: str) -> None:
    environment = registry.find(name)
    ref = environment.ref("test", 1)
    player = environment.reference(environment.task(ref))
    async with client_of(make_environment_app(environment, split="test")) as http:
        state = await post(http, "/create", data_idx=1)
        number = state["id"]
        while not state["done"]:
            state = await post(http, "/step", id=number, action=player(state["observation"]))
    assert (state["success"], state["score"]) == (True, 1.0)


async def test_with_keys_every_call_but_liveness_needs_one() -> None:
    key = "ok-" + "k" * 20
    keys = {hashlib.sha256(key.encode()).hexdigest(): ["train"]}
    app = make_environment_app(CRAFTING, keys=keys)
    async with client_of(app) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/meta")).status_code == 401
        assert error_of(await http.post("/create", json={}))[:2] == (401, "authentication_error")
    async with client_of(app, Authorization=f"Bearer {key}") as http:
        assert (await http.post("/create", json={})).status_code == 200


def test_a_server_for_other_machines_needs_keys() -> None:
    with pytest.raises(ConfigError, match=r"http\.keys"):
        environment_server(CRAFTING, host="0.0.0.0")


def test_an_unknown_default_split_is_refused_before_serving() -> None:
    with pytest.raises(NotFoundError, match="choose one of"):
        make_environment_app(CRAFTING, split="dev")


async def test_a_rebound_name_and_a_browsers_form_are_refused() -> None:
    async with client_of(make_environment_app(CRAFTING)) as http:
        assert (await http.get("/meta", headers={"Host": "evil.example"})).status_code == 421
        form = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
        assert (await http.post("/create", content="{}", headers=form)).status_code == 415
