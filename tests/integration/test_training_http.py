"""The training service over HTTP and by request and reply, on a real bus."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from training_service import CONFIG, training_service

from onward.bus import Bus, NatsServer
from onward.contracts import TrainingStatus, decode, subjects
from onward.errors import ConfigError
from onward.ids import model_key
from onward.release.record import Model, ReleaseRecord


def whole(job_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "training_job_id": job_id,
        "timestamp": "2025-12-08T13:00:00Z",
        "requester": "admin-manual",
        "trigger_reason": "manual",
        "training_config": CONFIG,
        **changes,
    }


async def published(bus: Bus) -> int:
    """The number of requests in the stream."""
    info = await bus.js.stream_info("RL_TRAINING", subjects_filter=subjects.TRAINING_REQUEST)
    return (info.state.subjects or {}).get(subjects.TRAINING_REQUEST, 0)


async def test_a_body_without_an_envelope_gets_an_id_a_time_and_the_name_of_the_key(
    bus: Bus, tmp_path: Path
) -> None:
    named = hashlib.sha256(b"key-of-the-night-shift").hexdigest()
    http = {"keys": {named: ["train", "read"]}, "key_names": {named: "night-shift"}}
    async with training_service(bus, tmp_path, http=http) as served:
        key = {"Authorization": "Bearer key-of-the-night-shift"}
        for body in ({"training_config": CONFIG}, CONFIG):
            answer = await served.client.post("/training/start", json=body, headers=key)
            assert answer.status_code == 202, answer.text
            status = decode(answer.content, TrainingStatus)
            assert status.status == "queued"
            record, _ = await served.trainer.table.get(status.training_job_id)
            assert record.request["requester"] == "night-shift"
            assert record.request["trigger_reason"] == "manual"
            assert len(status.training_job_id) == 36
            shown = await served.client.get(f"/training/{status.training_job_id}/status", headers=key)
            assert shown.json()["metadata"]["requester"] == "night-shift"


async def test_an_id_sent_twice_is_one_job_and_with_another_body_a_conflict(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for body in (whole("job-1"), whole("job-1"), {"training_job_id": "job-2", "training_config": CONFIG}):
            assert (await served.client.post("/training/start", json=body)).status_code == 202
        again = {"training_job_id": "job-2", "training_config": CONFIG}  # the time is filled in anew
        assert (await served.client.post("/training/start", json=again)).status_code == 202
        other = whole("job-1", priority="urgent")
        answer = await served.client.post("/training/start", json=other)
        assert answer.status_code == 409
        assert answer.json()["error"]["message"] == (
            "Job id job-1 belongs to a different request: send a new id, or leave it out."
        )
        assert {record.job_id for record, _ in await served.trainer.table.all()} == {"job-1", "job-2"}


async def test_a_hundred_duplicates_at_once_are_one_job(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        body = {"training_job_id": "manual-1", "training_config": CONFIG}
        answers = await asyncio.gather(
            *(served.client.post("/training/start", json=body) for _ in range(100))
        )
        assert {answer.status_code for answer in answers} == {202}
        assert {answer.json()["training_job_id"] for answer in answers} == {"manual-1"}
        assert len(await served.trainer.table.all()) == 1
        assert await published(bus) == 1


async def test_an_idempotency_key_makes_one_job_of_a_repeated_call(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        headers = {"Idempotency-Key": "tonight"}
        ids = [
            (await served.client.post("/training/start", json=CONFIG, headers=headers)).json()
            for _ in range(2)
        ]
        assert ids[0]["training_job_id"] == ids[1]["training_job_id"]


async def test_a_request_is_kept_while_no_trainer_runs(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.training.intake.TAKEN_SECONDS", 0.1)
    async with training_service(bus, tmp_path, takes=False) as served:
        answer = await served.client.post("/training/start", json=whole("job-1"))
        assert answer.status_code == 202
        assert "no trainer has taken it yet" in answer.json()["metadata"]["note"]
    assert await published(bus) == 1


async def test_a_status_request_gets_exactly_one_reply_and_no_acknowledgement_of_a_stream(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with training_service(bus, tmp_path) as served:
        # A second process of the trainer, as a role that was started again.
        await bus.serve(subjects.TRAINING_STATUS_REQUEST, served.trainer.answer_status, queue="trainer")
        other = await Bus.connect(nats_server.url, token=nats_server.token, name="second")
        await other.serve(subjects.TRAINING_STATUS_REQUEST, served.trainer.answer_status, queue="trainer")
        await served.client.post("/training/start", json=whole("job-1"))
        client = await nats.connect(nats_server.url, token=nats_server.token)
        try:
            inbox = client.new_inbox()
            replies = await client.subscribe(inbox)
            for asked in (b'{"job_id": "job-1"}', b'{"job_id": "uuid"}', b"uuid", b'{"job_id": "a/b"}'):
                await client.publish(subjects.TRAINING_STATUS_REQUEST, asked, reply=inbox)
            found = [json.loads((await replies.next_msg(timeout=30)).data) for _ in range(4)]
            with pytest.raises(nats.errors.TimeoutError):
                await replies.next_msg(timeout=0.3)
        finally:
            await client.close()
            await other.close()
        (status,) = [answer for answer in found if "status" in answer]
        assert status["training_job_id"] == "job-1" and status["status"] == "queued"
        kinds = {answer["error"]["type"] for answer in found if "error" in answer}
        assert kinds == {"unknown_job", "not_json", "bad_id"}


async def test_an_answer_goes_to_an_inbox_alone(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        await served.client.post("/training/start", json=whole("job-1"))
        client = await nats.connect(nats_server.url, token=nats_server.token)
        asked = b'{"job_id": "job-1"}'
        await client.publish(subjects.TRAINING_STATUS_REQUEST, asked, reply="$KV.rl_control.learning")
        assert await client.request(subjects.TRAINING_STATUS_REQUEST, asked, timeout=30)
        await client.close()
        assert await bus.bucket("rl_control").get("learning") is None


async def test_jobs_are_listed_by_state_number_and_age(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for name in ("job-1", "job-2", "job-3"):
            await served.client.post("/training/start", json=whole(name))
        record, revision = await served.trainer.table.get("job-2")
        await served.trainer.table.move(record, revision, "cancelled")

        async def listed(query: str) -> list[str]:
            answer = await served.client.get(f"/jobs{query}")
            assert answer.status_code == 200, answer.text
            return [job["training_job_id"] for job in answer.json()["jobs"]]

        assert await listed("") == ["job-2", "job-3", "job-1"]
        assert await listed("?status=queued&limit=1") == ["job-3"]
        assert await listed("?status=cancelled&since=7d") == ["job-2"]
        assert await listed("?since=2100-01-01T00:00:00Z") == []


BAD_STARTS = [
    (json.dumps(whole("j", trigger_reason="because")), 400, "trigger_reason"),
    (json.dumps(whole("j", training_config={**CONFIG, "algorithm": "magic"})), 400, "algorithm"),
    (
        json.dumps(whole("j", training_config={**CONFIG, "hyperparameters": {"batch_size": -1}})),
        400,
        "batch_size",
    ),
    (json.dumps(whole("j", training_config={**CONFIG, "base_model": "gpt-9"})), 400, "gpt-9"),
    (json.dumps(whole("a/b")), 400, "'a/b' is not usable"),
    (json.dumps(whole("j", priority="now")), 400, "priority"),
    (json.dumps(whole("j", metadata={"skip_validation": True})), 400, "skip"),
    (json.dumps(whole("j", metadata={"notes": "x" * (2 << 20)})), 413, "larger than 1048576"),
    ("{not json", 400, "not valid JSON"),
    ("[1]", 400, "one JSON object"),
    ("{}", 400, "training_config is required"),
    ('{"training_config": NaN}', 400, "not valid JSON"),
]


async def test_a_bad_request_gets_one_sentence_and_leaves_nothing(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path, takes=False) as served:
        for body, code, words in BAD_STARTS:
            answer = await served.client.post("/training/start", content=body)
            assert answer.status_code == code, answer.text
            message = answer.json()["error"]["message"]
            assert words in message and "\n" not in message and "Traceback" not in answer.text
    assert await published(bus) == 0


BAD_QUESTIONS = [
    ("/training/a/b/status", 400, "'a/b' is not usable"),
    ("/training/a%2Fb/status", 400, "'a/b' is not usable"),
    ("/training/job_id/status", 404, "There is no job job_id: GET /jobs lists them."),
    ("/jobs?status=done", 400, "'status' must be one of queued, running, completed, failed, cancelled."),
    ("/jobs?limit=-3", 400, "'limit' must be a number from 1 to 1000."),
    ("/jobs?limit=%D9%A3", 400, "'limit' must be a number"),
    ("/jobs?since=yesterday", 400, "'yesterday' is no time"),
    ("/models?deployed_since=99999999d", 400, "no time"),
]


async def test_a_bad_question_gets_one_sentence(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for path, code, words in BAD_QUESTIONS:
            answer = await served.client.get(path)
            assert answer.status_code == code, answer.text
            assert words in answer.json()["error"]["message"]
        for path in ("/training/a/b/cancel", "/training/a%2Fb/cancel"):
            answer = await served.client.post(path)
            assert answer.status_code == 400 and "'a/b' is not usable" in answer.text
        assert (await served.client.post("/training/job-9/cancel")).status_code == 404


async def test_a_queued_job_is_cancelled_once_however_often_that_is_asked(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for name in ("job-1", "job-2"):
            await served.client.post("/training/start", json=whole(name))
        shown = (await served.client.get("/training/job-2/status")).json()["metadata"]
        assert (shown["position"], shown["number"]) == (2, 2)
        for _ in range(2):
            answer = await served.client.post("/training/job-1/cancel")
            assert answer.status_code == 200
            assert decode(answer.content, TrainingStatus).status == "cancelled"
        shown = (await served.client.get("/training/job-2/status")).json()["metadata"]
        assert shown["position"] == 1


async def test_a_wrong_key_is_refused_although_no_key_is_needed(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        assert (await served.client.get("/jobs")).status_code == 200
        answer = await served.client.get("/jobs", headers={"Authorization": "Bearer wrong"})
        assert answer.status_code == 401 and "Authorization: Bearer KEY" in answer.text


async def test_with_a_configured_key_the_documented_lines_need_it(bus: Bus, tmp_path: Path) -> None:
    external = {"agentgym_rl_api_key": "a-key-of-the-service"}
    async with training_service(bus, tmp_path, external=external) as served:
        refused = await served.client.post("/training/start", json=CONFIG)
        assert refused.status_code == 401
        assert "send 'Authorization: Bearer KEY'" in refused.json()["error"]["message"]
        headers = {"Authorization": "Bearer a-key-of-the-service"}
        answer = await served.client.post("/training/start", json=CONFIG, headers=headers)
        assert answer.json()["metadata"]["requester"] == "agentgym-rl"
        assert (await served.client.get("/health")).status_code == 200


async def test_a_browser_or_a_proxy_needs_a_key_also_on_loopback(bus: Bus, tmp_path: Path) -> None:
    json_body = {"Content-Type": "application/json"}
    async with training_service(bus, tmp_path, takes=False) as served:
        for headers in (
            {"X-Forwarded-For": "203.0.113.7"},
            {"Via": "1.1 proxy"},
            {"Origin": "http://localhost:3000", **json_body},
            {"Sec-Fetch-Site": "cross-site", **json_body},
            {"Host": "agentgym-rl:8100", "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", **json_body},
        ):
            answer = await served.client.post("/training/start", content="{}", headers=headers)
            assert answer.status_code == 401
            assert (await served.client.get("/jobs", headers=headers)).status_code == 401


async def test_the_published_host_names_are_served_and_others_are_not(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        for name in ("agentgym-rl:8100", "tensorzero-gateway:3000"):
            assert (await served.client.get("/jobs", headers={"Host": name})).status_code == 200
        assert (await served.client.get("/jobs", headers={"Host": "evil.example"})).status_code == 421


async def test_auth_none_serves_all_and_a_bind_beyond_loopback_is_refused_without_it(
    bus: Bus, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"write http.auth = 'none'"):
        async with training_service(bus, tmp_path, http={"host": "0.0.0.0"}):
            raise AssertionError("it was served")
    async with training_service(bus, tmp_path, http={"host": "0.0.0.0", "auth": "none"}) as served:
        answer = await served.client.post("/training/start", json=CONFIG, headers={"Via": "1.1 compose"})
        assert answer.status_code == 202
        assert answer.json()["metadata"]["requester"] == "anonymous"


async def test_health_names_what_training_needs(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        await served.client.post("/training/start", json=whole("job-1"))
        body = (await served.client.get("/health")).json()
        assert (body["status"], body["service"]) == ("ok", "api")
        told = body["training"]
        assert (told["queued"], told["running"]) == (1, 0)
        assert told["device"] in ("cpu", "cuda")
        assert told["memory_free_bytes"] > 0 and told["disk_free_bytes"] > 0


async def test_openapi_has_the_published_request_and_examples(bus: Bus, tmp_path: Path) -> None:
    async with training_service(bus, tmp_path) as served:
        headers = {"Authorization": f"Bearer {served.key}"}
        schema = (await served.client.get("/openapi.json", headers=headers)).json()
        body = schema["paths"]["/training/start"]["post"]["requestBody"]["content"]["application/json"]
        asked = body["schema"]["anyOf"][0]["properties"]["training_config"]["properties"]
        assert asked["algorithm"]["enum"] == ["ppo", "dpo", "rloo", "grpo", "reinforce"]
        assert "$ref" not in json.dumps(body)
        for name in ("without an envelope", "whole request"):
            assert "training_config" in body["examples"][name]["value"]
        assert "/training/{job_id}/cancel" in schema["paths"]


async def test_models_are_listed_with_their_deployment_and_traffic(bus: Bus, tmp_path: Path) -> None:
    def model(name: str) -> Model:
        info = {"base_model": "tiny", "training_samples": 500, "final_reward": 0.5}
        return Model(
            model_id=name, adapter_digest=f"d-{name}", object_prefix=f"jobs/{name}/1", training_job_id=name,
            info=info,
        )  # fmt: skip

    old, new = model("agent-zero-rl-v1"), model("agent-zero-rl-v2")
    times = {"created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:00:00.000Z"}
    for number, (candidate, started) in enumerate(
        ((old, "2025-11-01T00:00:00.000Z"), (new, "2026-01-05T18:00:00.000Z")), start=1
    ):
        await bus.bucket("rl_models").put(model_key(candidate.model_id), candidate.dump())
        release = ReleaseRecord(
            release_id=f"r{number}", job_id=candidate.training_job_id, epoch=1, candidate=candidate,
            current=old, started_at=started, **times,
        )  # fmt: skip
        await bus.bucket("rl_releases").put(release.own_key(), release.dump())
    arms = [
        {"arm": "current", "model_id": old.model_id, "adapter_digest": "d", "weight": 0.9},
        {"arm": "candidate", "model_id": new.model_id, "adapter_digest": "e", "weight": 0.1},
    ]
    await bus.bucket("rl_releases").put("desired", json.dumps({"arms": arms}).encode())
    async with training_service(bus, tmp_path, takes=False) as served:
        every = (await served.client.get("/models")).json()
        assert [(one["model_id"], one["traffic_percentage"]) for one in every["models"]] == [
            ("agent-zero-rl-v2", 10.0),
            ("agent-zero-rl-v1", 90.0),
        ]
        assert every["models"][0]["training_samples"] == 500
        late = (await served.client.get("/models?deployed_since=2026-01-01T00:00:00Z")).json()
        assert [one["model_id"] for one in late["models"]] == ["agent-zero-rl-v2"]
