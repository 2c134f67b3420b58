"""A role that runs alone answers for itself, and a start says what is missing instead of hanging."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from onward import host
from onward.config import Settings
from onward.errors import BusError, ObjectError

SEED_BLOCK = """
NATS_URL=nats://nats.invalid:4222
AGENTZERO_JETSTREAM=true
AGENTGYM_RL_URL=http://agentgym-rl:8100
AGENTGYM_RL_API_KEY=${AGENTGYM_RL_API_KEY}
TENSORZERO_BASE_URL=http://tensorzero-gateway:3000
TENSORZERO_ADMIN_TOKEN=${TENSORZERO_ADMIN_TOKEN}
MODEL_STORAGE_PATH=s3://pmoves-models/rl-checkpoints/
TRAJECTORY_STORAGE_PATH=s3://pmoves-data/trajectories/
RL_ALGORITHM=ppo
RL_BASE_MODEL=qwen2.5-32b-instruct
RL_TRAINING_THRESHOLD=5000
RL_SCHEDULE_CRON="0 2 * * *"  # Daily at 2am UTC
REWARD_WEIGHT_TASK_COMPLETION=0.40
REWARD_WEIGHT_EFFICIENCY=0.20
REWARD_WEIGHT_CODE_QUALITY=0.15
REWARD_WEIGHT_USER_FEEDBACK=0.25
CANARY_INITIAL_TRAFFIC=0.10
CANARY_RAMP_HOURS=4
ROLLBACK_ERROR_THRESHOLD=0.05
ROLLBACK_REWARD_THRESHOLD=-0.05
"""
"""The published block; NATS has a name that never resolves."""


def settings(folder: Path, **more: object) -> Settings:
    given = {"data_dir": folder / "data", "nats": {"port": 0}, "model": {"base": "tiny"}, **more}
    return Settings.model_validate(given)


async def test_a_role_that_runs_alone_serves_health_readiness_and_metrics(tmp_path: Path) -> None:
    async with (
        host.running(settings(tmp_path), roles=("archiver",)),
        host.running(settings(tmp_path), roles=("collector",), join=True) as alone,
        httpx.AsyncClient(base_url=alone.endpoints["collector_url"]) as client,
    ):
        assert (await client.get("/health")).json() == {"status": "ok", "service": "collector"}
        assert (await client.get("/ready")).json()["ready"] is True
        assert "agent_rl_trajectories_collected_total" in (await client.get("/metrics")).text
        assert (await client.get("/openapi.json")).status_code == 401


async def test_an_object_store_that_never_answers_ends_the_start_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setattr(host, "START_SECONDS", 0.3)
    given = settings(tmp_path, objects={"models_url": "s3://pmoves-models/rl-checkpoints/"})
    try:
        with pytest.raises(
            ObjectError, match=r"MODEL_STORAGE_PATH.*0.3 s without an answer.*AWS_ENDPOINT_URL"
        ):
            async with host.running(given, roles=("archiver",)):
                raise AssertionError("it started")
    finally:
        server.close()


async def test_a_nats_server_that_is_not_there_ends_the_start_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "START_SECONDS", 0.3)
    given = settings(tmp_path, nats={"url": "nats://127.0.0.1:1"})
    with pytest.raises(BusError, match=r"NATS at nats://127.0.0.1:1 cannot be reached"):
        async with host.running(given, roles=("archiver",)):
            raise AssertionError("it started")


def test_the_published_environment_as_a_whole_starts_or_says_in_one_sentence_what_is_missing(
    tmp_path: Path,
) -> None:
    given = {
        **os.environ,
        "AGENTGYM_RL_API_KEY": "a-key-of-the-service",
        "TENSORZERO_ADMIN_TOKEN": "admin-token",
        "ONWARD_HTTP__GATEWAY_PORT": "0",  # another program may have the usual ports
        "ONWARD_HTTP__API_PORT": "0",
    }
    up = f"{sys.executable} -m onward.cli up --dir {tmp_path / 'data'}"
    done = subprocess.run(
        ["bash", "-c", f"set -a\n{SEED_BLOCK}\nset +a\n{up}"],
        env=given, capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    (sentence,) = done.stderr.strip().splitlines()
    assert "qwen2.5-32b-instruct" in sentence and "[models.aliases]" in sentence
    assert "Traceback" not in done.stdout + done.stderr
