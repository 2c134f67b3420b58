"""``onward warehouse verify|rebuild``, beside a running service and while nothing runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from collector_world import document, idle, publish
from commands import run_text

from onward import host
from onward.config import load
from onward.warehouse.embedded import reading


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_text(folder, "warehouse", *words, "--dir", str(folder / "data"))


async def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(command, folder, *words)


def counts(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    result = json.loads(done.stdout)["tables"]["trajectories"]
    return result["missing"], result["restored"]


async def test_rows_are_found_and_stored_again_by_command(tmp_path, monkeypatch):
    monkeypatch.setenv("ONWARD_NATS__PORT", "0")  # another program may have the usual one
    settings = load(overrides={"data_dir": tmp_path / "data"})
    async with host.running(settings, roles=["collector"]) as loop:
        for number in (1, 2):
            await publish(loop.ctx, document(number))
        await idle(loop.ctx)
        whole = await run(tmp_path, "verify")
        assert (whole.returncode, "Nothing is missing." in whole.stdout) == (0, True), whole
        await loop.ctx.warehouse.command("TRUNCATE TABLE trajectories")
        found = await run(tmp_path, "verify", "--json")
        assert (found.returncode, counts(found)) == (1, (2, 0)), found
        rebuilt = await run(tmp_path, "rebuild", "--json")
        assert (rebuilt.returncode, counts(rebuilt)) == (0, (2, 2)), rebuilt
    shutil.rmtree(tmp_path / "data" / "chdb")
    found = await run(tmp_path, "verify")
    assert found.returncode == 1 and "onward warehouse rebuild" in found.stdout, found
    rebuilt = subprocess.run(
        [sys.executable, "-m", "onward.cli", *f"warehouse rebuild --json --dir {tmp_path}/data".split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (rebuilt.returncode, counts(rebuilt)) == (0, (2, 2)), rebuilt
    async with reading(settings) as warehouse:
        assert (await warehouse.query("SELECT count() AS n FROM trajectories_v"))[0]["n"] == 2


@pytest.mark.parametrize("verb", ["verify", "rebuild"])
def test_without_a_service_and_without_data_the_command_says_what_to_do(tmp_path, verb):
    done = command(tmp_path, verb)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().split("\n")) == 1 and "onward up" in done.stderr
