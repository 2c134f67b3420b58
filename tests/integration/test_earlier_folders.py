"""Folders that an earlier version wrote still open: data, checkpoints, control runs, policies, an outbox.

``tests/fixtures/folders_before_the_walls.tar.xz`` was written by commit d4e4e0d, the last one before modules
moved and buckets got types. It holds the data folder of a short ``onward demo --sabotage`` (24 of its
trajectories, without keys and logs), an outbox with three tasks that were not sent, and a run of DQN and of
PPO. ``expected.json`` is what that version answered about them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from onward import Recorder, config, host
from onward.cli import app
from onward.control import Policy as ControlPolicy
from onward.lm.policy import Policy
from onward.serving.engines.registry import verify_adapter
from onward.training.warm_start import desk_base
from onward.warehouse import queries

PACKED = Path(__file__).parents[1] / "fixtures" / "folders_before_the_walls.tar.xz"
pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Earlier:
    folder: Path
    expected: dict[str, Any]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder)  # our own file; Python below 3.11.4 has no filters
    yield folder


@pytest.fixture
def earlier(unpacked: Path, tmp_path: Path) -> Earlier:
    folder = tmp_path / "folders"
    shutil.copytree(unpacked, folder, symlinks=True)
    return Earlier(folder, json.loads((folder / "expected.json").read_text()))


def shown(*words: str, folder: Path) -> Any:
    ran = CliRunner().invoke(app, [*words, "--dir", str(folder), "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def picked(
    rows: list[dict[str, Any]], key: str, like: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns the rows by ``key``, with the fields that the earlier version's answer has."""
    fields = next(iter(like.values())).keys()
    return {row[key]: {field: row[field] for field in fields} for row in rows}


def test_a_data_folder_of_an_earlier_version_is_shown_as_that_version_showed_it(earlier: Earlier) -> None:
    data, expected = earlier.folder / "data", earlier.expected
    rows = shown("trajectories", "list", "--limit", "100", folder=data)
    assert picked(rows, "trajectory_id", expected["trajectories"]) == expected["trajectories"]
    assert picked(shown("jobs", "list", folder=data), "job_id", expected["jobs"]) == expected["jobs"]
    models = shown("models", "list", folder=data)["released"]
    assert picked(models, "model_id", expected["models"]) == expected["models"]
    releases = {
        row["release_id"]: {**row, "candidate": row["candidate"]["model_id"]}
        for row in shown("releases", "list", folder=data)
    }
    for release_id, facts in expected["releases"].items():
        assert {field: releases[release_id][field] for field in facts} == facts
    assert releases.keys() == expected["releases"].keys()


async def test_a_loop_on_an_earlier_data_folder_takes_that_version_s_outbox(earlier: Earlier) -> None:
    settings = config.load(
        environ={},
        overrides={
            "data_dir": earlier.folder / "data",
            "nats": {"port": 0},
            "http": {"gateway_port": 0, "api_port": 0},
        },
    )
    async with host.running(settings, roles=("collector", "rewarder", "api")) as loop, asyncio.timeout(60):
        warehouse = loop.ctx.warehouse
        token = (settings.run_dir / "nats.token").read_text().strip()
        outbox = earlier.folder / "outbox.db"
        with Recorder(outbox, nats_url=loop.endpoints["nats_url"], nats_token=token) as recorder:
            assert await asyncio.to_thread(recorder.flush, 30.0)
        while (await queries.counts(warehouse))["rewarded"] < len(earlier.expected["trajectories"]) + 3:
            await asyncio.sleep(0.05)
        stored = await warehouse.query("SELECT n_turns FROM trajectories WHERE agent_id = 'agent-1'")
    assert [row["n_turns"] for row in stored] == [2, 2, 2]


def test_a_checkpoint_of_an_earlier_version_is_verified_and_loaded(earlier: Earlier, tmp_path: Path) -> None:
    current = next(model for model in earlier.expected["models"].values() if model["state"] == "current")
    digest = current["adapter_digest"]
    job = next(job for job in earlier.expected["jobs"].values() if job["adapter_digest"] == digest)
    folder = earlier.folder / "data" / "objects" / job["checkpoint"]
    assert verify_adapter(folder, digest).adapter_digest == digest
    policy = Policy.load(desk_base.build(tmp_path / "base"))
    loaded = policy.add_adapter("earlier", folder)
    stored = load_file(folder / "adapter_model.safetensors")
    assert len(loaded.params) == len(stored) > 0
    assert sorted(tuple(one.shape) for one in loaded.params.values()) == sorted(
        tuple(one.shape) for one in stored.values()
    )


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_a_policy_folder_of_an_earlier_version_acts_as_it_did(earlier: Earlier, algorithm: str) -> None:
    policy = ControlPolicy.load(earlier.folder / "runs" / f"CartPole-v1-{algorithm}-seed0" / "policy")
    actions = policy.act(np.array(earlier.expected["observations"]), deterministic=True)
    assert actions.tolist() == earlier.expected["actions"][algorithm]


@pytest.mark.parametrize(("algorithm", "steps"), [("dqn", 1200), ("ppo", 2048)])
def test_a_control_run_of_an_earlier_version_is_resumed(earlier: Earlier, algorithm: str, steps: int) -> None:
    folder = earlier.folder / "runs" / f"CartPole-v1-{algorithm}-seed0"
    before = json.loads((folder / "summary.json").read_text())
    assert before["steps"] == steps
    ran = CliRunner().invoke(app, ["control", "resume", str(folder), "--timesteps", str(2 * steps), "--json"])
    assert ran.exit_code == 0, ran.output
    after = json.loads((folder / "summary.json").read_text())
    assert after["steps"] == 2 * steps
    assert after["updates"] > before["updates"] and after["episodes"] > before["episodes"]
