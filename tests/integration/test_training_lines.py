"""Every published ``curl`` and ``nats`` line of the training service, through ``bash -c`` as it is written.

The host name is mapped by a ``curl`` that connects elsewhere; ``nats`` is ``nats_line`` (see there).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats_line
from training_service import CONFIG, TrainingService, training_service

from onward.bus import Bus, NatsServer

MODELS = {"aliases": {"qwen2.5-32b-instruct": "/models/qwen"}}
S0_CONFIG = {"training_config": {**CONFIG, "base_model": "qwen2.5-32b-instruct"}}
"""A ``training_config.json`` without an envelope."""
MANUAL = r'''nats pub "agent.rl.training.request.v1" "$(cat <<EOF
{
  "training_job_id": "manual-$(uuidgen)",
  "timestamp": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "requester": "admin-manual",
  "trigger_reason": "manual",
  "training_config": {
    "algorithm": "ppo",
    "base_model": "qwen2.5-32b-instruct",
    "dataset": {
      "source": "nats_stream",
      "stream_name": "RL_TRAJECTORIES",
      "sample_size": 5000
    },
    "hyperparameters": {
      "learning_rate": 1e-5,
      "batch_size": 32,
      "epochs": 3
    }
  }
}
EOF
)"'''
ABRIDGED = """nats pub "agent.rl.training.request.v1" '{
  "training_job_id": "uuid",
  "timestamp": "2025-12-08T13:00:00Z",
  "requester": "rl-trainer-subordinate",
  "trigger_reason": "threshold_reached",
  "training_config": { ... }
}'"""
START = r"""curl -X POST http://agentgym-rl:8100/training/start \
  -H "Content-Type: application/json" \
  -d @training_config.json"""
STATUS = """nats req "agent.rl.training.status.request" '{"job_id": "uuid"}'"""


class Shell:
    """``bash`` with the published names: agentgym-rl, nats, uuidgen."""

    def __init__(self, folder: Path, served: TrainingService, server: NatsServer) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        port = urlsplit(served.url).port
        here = f"--noproxy '*' --connect-to agentgym-rl:8100:127.0.0.1:{port}"
        for name, line in {
            "curl": f'exec /usr/bin/curl -sS {here} "$@"',
            "nats": f'exec {sys.executable} {nats_line.__file__} "$@"',
            "uuidgen": "exec cat /proc/sys/kernel/random/uuid",
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{line}\n")
            (programs / name).chmod(0o755)
        self._variables = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NATS_URL": server.url,
            "NATS_TOKEN": server.token,
        }

    async def start(self, line: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "bash", "-c", line, cwd=self.folder, env=self._variables,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def run(self, line: str) -> Any:
        """The JSON that a line prints, up to the end of its output: a cut URL runs in the background."""
        process = await self.start(line)
        out, err = await process.communicate()
        assert not err, err.decode()
        return json.loads(out) if out.strip() else None


@asynccontextmanager
async def shell(bus: Bus, server: NatsServer, folder: Path) -> AsyncIterator[tuple[TrainingService, Shell]]:
    model = {"base": "qwen2.5-32b-instruct"}
    async with training_service(bus, folder, models=MODELS, model=model) as served:
        yield served, Shell(folder, served, server)


async def test_the_lines_of_the_role_document(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "training_config.json").write_text(json.dumps(S0_CONFIG))
    async with shell(bus, nats_server, tmp_path) as (_, bash):
        assert (await bash.run("curl http://agentgym-rl:8100/health"))["training"]["queued"] == 0
        started = await bash.run(START)
        job_id = started["training_job_id"]
        assert (started["status"], started["metadata"]["requester"]) == ("queued", "anonymous")
        # curl takes the braces for a set of its own, so the placeholder is sent without them.
        line = "curl http://agentgym-rl:8100/training/{job_id}/status"
        asked = await bash.run(line)
        assert asked["error"]["message"] == "There is no job job_id: GET /jobs lists them."
        assert (await bash.run(line.replace("{job_id}", job_id)))["training_job_id"] == job_id
        assert await bash.run("curl http://agentgym-rl:8100/models") == {"models": [], "total": 0}


async def test_the_history_lines_are_useful_also_where_the_shell_cuts_their_url(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with shell(bus, nats_server, tmp_path) as (served, bash):
        for name in ("job-1", "job-2"):
            await served.client.post("/training/start", json={"training_job_id": name, **S0_CONFIG})
        record, revision = await served.trainer.table.claim(*await served.trainer.table.get("job-1"), "t")
        await served.trainer.table.move(record, revision, "completed")
        for line in (
            "curl http://agentgym-rl:8100/jobs?status=completed&limit=10",
            "curl http://agentgym-rl:8100/jobs?status=completed&since=7d",
            "curl 'http://agentgym-rl:8100/jobs?status=completed&limit=10'",
            "curl 'http://agentgym-rl:8100/jobs?status=completed&since=7d'",
        ):
            answer = await bash.run(line)
            assert [job["training_job_id"] for job in answer["jobs"]] == ["job-1"], line
        since = await bash.run("curl http://agentgym-rl:8100/models?deployed_since=7d")
        assert since == {"models": [], "total": 0}


async def test_the_manual_trigger_line_is_one_job_and_the_status_lines_answer(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with shell(bus, nats_server, tmp_path) as (served, bash):
        listening = await bash.start('nats sub "agent.rl.training.status.v1"')
        assert listening.stderr is not None and listening.stdout is not None
        try:
            await listening.stderr.readline()
            assert await bash.run(MANUAL) is None
            told = json.loads(await asyncio.wait_for(listening.stdout.readline(), 30))
        finally:
            listening.terminate()
            await listening.wait()
        assert told["status"] == "queued" and told["training_job_id"].startswith("manual-")
        ((record, _),) = await served.trainer.table.all()
        assert record.job_id == told["training_job_id"]
        assert record.request["training_config"]["base_model"] == "qwen2.5-32b-instruct"
        unknown = await bash.run(STATUS)
        assert unknown == {"error": {"type": "unknown_job", "message": "There is no job uuid."}}
        known = await bash.run(STATUS.replace("uuid", record.job_id))
        assert known["training_job_id"] == record.job_id


async def test_the_abridged_request_line_becomes_a_dead_letter_with_its_reason(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with shell(bus, nats_server, tmp_path) as (served, bash):
        letters = await bus.nc.subscribe("agent.rl.dlq.v1.RL_TRAINING")
        await bash.run(ABRIDGED)
        letter = await letters.next_msg(timeout=30)
        assert "not_json" in json.dumps(dict(letter.headers or {}))
        assert await served.trainer.table.all() == []
