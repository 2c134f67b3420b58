"""Checkpoints and measurements: confined folders, checked files, work in the background."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from serving_world import make_adapter

from onward.config import Settings
from onward.errors import ConfigError, ConflictError, ObjectError, OnwardError
from onward.tools import Toolbox, models
from onward.tools.background import MOST_RUNNING, Background
from onward.training import checkpoints
from onward.warehouse import Objects

MEASURED = """
import json, sys, time
if "slow" in sys.argv:
    time.sleep(600)
if "broken" in sys.argv:
    sys.exit("The engine did not start: see its log.")
print(json.dumps({"model": "v2", "against": "v1", "verdict": "passed", "improvement": 0.06,
                  "summary": {"suites": {"desk": {"verdict": "passed"}}, "safety": "passed"},
                  "not_run": [], "asked": sys.argv}))
"""
"""Stands for the child that runs ``onward validate``, which starts an engine."""


def toolbox(folder: Path) -> Toolbox:
    return Toolbox(
        Settings(data_dir=folder / "data"), scopes={"read", "train"}, downloads=folder / "downloads"
    )


async def done(box: Toolbox, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found = json.loads((await box.call("job_status", {"job_id": job_id})).text)
            if found["state"] != "running":
                return found
            await asyncio.sleep(0.02)


async def test_a_checkpoint_is_fetched_verified_and_found_again(tmp_path: Path) -> None:
    manifest = make_adapter(tmp_path / "made", 0.5)
    async with toolbox(tmp_path) as box:
        objects = Objects.open(box.settings.objects_at)
        prefix = await checkpoints.upload(objects, tmp_path / "made", job_id=manifest.job_id, epoch=1)
        for path in (prefix, f"{box.settings.data_dir / 'objects'}/{prefix}", prefix):
            begun = json.loads((await box.call("download_checkpoint", {"s3_path": path})).text)
            found = (await done(box, begun["job_id"]))["result"]
            folder = Path(found["folder"])
            assert found["adapter_digest"] == manifest.adapter_digest and found["verified"] is True
            assert folder == tmp_path / "downloads" / prefix
            for name in checkpoints.ADAPTER_FILES:
                assert (folder / name).read_bytes() == (tmp_path / "made" / name).read_bytes()
        (folder / "adapter_config.json").write_text("{}")
        begun = json.loads((await box.call("download_checkpoint", {"s3_path": prefix})).text)
        changed = await done(box, begun["job_id"])
        assert changed["state"] == "failed" and "adapter_config.json" in changed["error"]


@pytest.mark.parametrize(
    ("given", "place"),
    [("/tmp/checkpoints/", "."), ("/tmp/checkpoints", "."), ("runs/a", "runs/a"), ("a/../b", "b")],
)
def test_a_download_goes_below_its_folder(tmp_path: Path, given: str, place: str) -> None:
    assert models.target(given, tmp_path) == (tmp_path / place).resolve()


@pytest.mark.parametrize("given", ["/etc", "../x", "a/../../x", "/tmp/checkpoints/../../etc", "~/../.."])
def test_a_folder_outside_is_refused(tmp_path: Path, given: str) -> None:
    if given.startswith("~"):
        given = "link/../.."
    with pytest.raises(ConfigError, match="give a folder below"):
        models.target(given, tmp_path / "downloads")


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "downloads"
    root.mkdir()
    (root / "out").symlink_to("/etc")
    with pytest.raises(ConfigError, match="give a folder below"):
        models.target("out/x", root)


def test_a_checkpoint_outside_the_store_is_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for path in ("/etc/passwd", "s3://other/x", "file:///etc"):
        with pytest.raises(
            ConfigError, match=f"^s3_path is '{path}': expected a folder in the store of models"
        ):
            models.key_of(path, settings)
    with pytest.raises(ObjectError, match="is not usable"):
        models.key_of("checkpoints/../../etc", settings)


async def test_a_measurement_is_reported_when_it_ends_and_its_failure_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(MEASURED)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {child} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(models.sys, "executable", str(wrapper))
    async with toolbox(tmp_path) as box:
        found = await models._benchmarks(box, "v2", ["desk", "code_gen", "desk"])
        assert found == {
            "model_id": "v2", "against": "v1", "verdict": "passed", "improvement": 0.06,
            "suites": {"desk": {"verdict": "passed"}}, "safety": "passed", "not_run": [],
        }  # fmt: skip
        with pytest.raises(OnwardError, match=r"measurement of broken failed: The engine did not start"):
            await models._benchmarks(box, "broken", ["desk"])
        begun = await box.background.start("benchmarks", models._benchmarks(box, "slow", ["desk"]))
        assert begun["state"] == "running" and begun["next"].endswith(begun["job_id"])
        stopped = json.loads((await box.call("cancel_job", {"job_id": begun["job_id"]})).text)
        assert stopped == {"job_id": begun["job_id"], "state": "cancelled"}
        words = (await box.call("run_benchmarks", {"model_path": "v2", "tasks": ["chess"]})).text
        assert words.startswith("There is no suite 'chess': give some of code_gen")


async def test_background_work_is_bounded_and_ends_with_its_toolbox() -> None:
    jobs = Background()
    ended: list[int] = []

    async def wait(number: int) -> dict[str, Any]:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(number)
        return {}

    async def at_once() -> dict[str, Any]:
        return {"answer": 42}

    quick = await jobs.start("quick", at_once())
    assert (quick["state"], quick["result"]) == ("completed", {"answer": 42})
    for number in range(MOST_RUNNING):
        assert (await jobs.start("slow", wait(number)))["state"] == "running"
    with pytest.raises(ConflictError, match="4 jobs run already"):
        await jobs.start("slow", wait(9))
    await jobs.close()
    assert sorted(ended) == [0, 1, 2, 3]
    assert jobs.find("slow-unknown") is None


async def test_two_checkpoints_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetched(settings: Settings, key: str, folder: Path) -> dict[str, Any]:
        return {"folder": str(folder)}

    monkeypatch.setattr(models, "_download", fetched)
    folders = set()
    async with toolbox(tmp_path) as box:
        for key in ("checkpoints/a-b/c", "checkpoints/a/b-c", "checkpoints-a/b/c"):
            begun = json.loads((await box.call("download_checkpoint", {"s3_path": key})).text)
            folders.add((await done(box, begun["job_id"]))["result"]["folder"])
    assert len(folders) == 3


@pytest.mark.parametrize(
    "name",
    [
        "file:/etc/passwd",
        "inspect:os:system",
        "env:os:system",
        "env:http://169.254.169.254/latest",
        "env:maze@http://127.0.0.1:1",
        "os:system",
    ],
)
async def test_a_suite_that_runs_code_calls_an_address_or_reads_a_path_of_the_caller_is_refused(
    tmp_path: Path, name: str
) -> None:
    async with toolbox(tmp_path) as box:
        answer = await box.call("run_benchmarks", {"model_path": "v2", "tasks": ["desk", name]})
    assert answer.is_error and ("is not one that a tool may name" in answer.text) == (name != "os:system")
    assert name != "os:system" or answer.text.startswith("There is no suite 'os:system'")


def test_every_shipped_suite_and_what_the_operator_listed_may_be_named(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        validation={"suites": ["file:/srv/items.jsonl", "team.suites:judge"]},
        training={"environments": ["team.envs:Shop"]},
    )
    for name in ("code_gen", "data_analysis", "research", "tool_usage", "safety", "jailbreak", "desk"):
        models.check_suite(name, settings)
    for name in (
        "env:maze",
        "env:team.envs:Shop",
        "recorded:days=30",
        "file:/srv/items.jsonl",
        "team.suites:judge",
    ):
        models.check_suite(name, settings)
