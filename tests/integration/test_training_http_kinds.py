"""``POST /training/start`` takes jobs of every kind: control policies and rubric writers too."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from training_service import training_service

from onward.bus import Bus
from onward.contracts import subjects
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.training.role.job_table import type_of

RUBRICS: dict[str, Any] = {"kind": "rubrics", "algorithm": "rloo", "steps": 3, "settings": {"group_size": 8}}
CONTROL: dict[str, Any] = {"algorithm": "dqn", "environment": "CartPole-v1", "timesteps": 100}


@pytest.mark.parametrize(
    ("body", "kind", "subject"),
    [
        (RUBRICS, RubricsRequest, subjects.TRAINING_RUBRICS),
        (CONTROL, ControlRequest, subjects.TRAINING_CONTROL),
    ],
)
async def test_a_job_is_started_followed_and_cancelled(
    bus: Bus, tmp_path: Path, body: dict[str, Any], kind: type, subject: str
) -> None:
    async with training_service(bus, tmp_path) as served:
        answer = await served.client.post("/training/start", json={**body, "training_job_id": "job-1"})
        assert answer.status_code == 202, answer.text
        assert (answer.json()["status"], answer.json()["metadata"]["position"]) == ("queued", 1)
        record, _ = await served.trainer.table.get("job-1")
        assert type_of(record.request) is kind and record.request["algorithm"] == body["algorithm"]
        assert "trigger_reason" not in record.request and record.request["requester"]
        again = await served.client.post("/training/start", json={**body, "training_job_id": "job-1"})
        assert again.status_code == 202
        other = {**body, "training_job_id": "job-1", "seed": 7}
        assert (await served.client.post("/training/start", json=other)).status_code == 409
        info = await bus.js.stream_info("RL_TRAINING", subjects_filter=subject)
        assert info.state.subjects == {subject: 1}
        shown = await served.client.get("/training/job-1/status")
        assert shown.json()["training_job_id"] == "job-1"
        ended = await served.client.post("/training/job-1/cancel")
        assert ended.json()["status"] == "cancelled"
        listed = (await served.client.get("/jobs", params={"status": "cancelled"})).json()
        assert [one["training_job_id"] for one in listed["jobs"]] == ["job-1"]


async def test_an_id_of_another_kind_of_job_is_a_conflict(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for body, code in ((RUBRICS, 202), (CONTROL, 409)):
            answer = await served.client.post("/training/start", json={**body, "training_job_id": "job-1"})
            assert answer.status_code == code, answer.text


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({**RUBRICS, "settings": {"group_size": 1}}, "settings", "group_size = 1"),
        ({**RUBRICS, "settings": {"model": "/etc"}}, "settings", "leave it out"),
        ({**RUBRICS, "algorithm": "ppo"}, None, "algorithm"),
        ({**RUBRICS, "warmth": 1}, None, "1 unknown field"),
        ({**CONTROL, "environment": "os:system"}, "environment", "training.environments"),
        ({**CONTROL, "timesteps": 0}, None, "timesteps"),
    ],
)
async def test_what_could_only_fail_is_refused_and_leaves_no_job(
    bus: Bus, tmp_path: Path, body: dict[str, Any], param: str | None, words: str
) -> None:
    async with training_service(bus, tmp_path) as served:
        answer = await served.client.post("/training/start", json=body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and words in error["message"], error
        assert error["param"] == param
        assert await served.trainer.table.all() == []


async def test_the_scope_train_is_needed(bus: Bus, tmp_path: Path) -> None:
    reader = hashlib.sha256(b"key-of-a-reader-0001").hexdigest()
    async with training_service(bus, tmp_path, http={"keys": {reader: ["read"]}}) as served:
        key = {"Authorization": "Bearer key-of-a-reader-0001"}
        for body in (RUBRICS, CONTROL):
            assert (await served.client.post("/training/start", json=body, headers=key)).status_code == 403
        assert await served.trainer.table.all() == []


async def test_the_openapi_page_shows_each_kind(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        key = {"Authorization": f"Bearer {served.key}"}
        page = (await served.client.get("/openapi.json", headers=key)).json()
        body = page["paths"]["/training/start"]["post"]["requestBody"]["content"]["application/json"]
        needed = [set(one["required"]) for one in body["schema"]["anyOf"]]
        assert "training_config" in needed[0] and "environment" in needed[1] and "kind" in needed[2]
        for name in ("control policy", "rubric writer"):
            answer = await served.client.post("/training/start", json=body["examples"][name]["value"])
            assert answer.status_code == 202, answer.text
