"""AgentGym's TextCraft: a policy that is warmed up on a solver's demonstrations gets better by playing.

``ONWARD_AGENTGYM`` names the folder that holds AgentGym's package ``agentenv_textcraft``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from docs_blocks import run_command
from onward_up import free_port

from onward.errors import NotFoundError
from onward.serving import base_models
from onward.training import checkpoints

START = """
import uvicorn
from agentenv_textcraft.env_wrapper import server


class Copied(dict):
    def get(self, key, default=None):
        found = dict.get(self, key, default)
        return list(found) if isinstance(found, list) else found


tree = server.crafting_tree
tree.itemid_recipes, tree.tag_recipes = Copied(tree.itemid_recipes), Copied(tree.tag_recipes)
uvicorn.run("agentenv_textcraft:app", host="127.0.0.1", port={port}, log_level="warning")
"""
"""Starts the server with lists of recipes that do not grow: its ``reset`` extends them, and the tenth
reset of a goal of depth 3 takes 5 s."""


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    folder = os.environ.get("ONWARD_AGENTGYM")
    if not folder:
        pytest.skip("ONWARD_AGENTGYM names no folder with AgentGym's package agentenv_textcraft")
    try:
        base_models.resolve("smollm2", Path("models"))
    except NotFoundError:
        pytest.skip("the model smollm2 is not on this machine: run 'onward models pull smollm2'")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(port=port)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": folder, "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_held_out_success_in_textcraft_rises_by_playing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        f"--algorithm sft --env {place} --model smollm2 --demonstrations 120 --held-out 24 --seed {seed} "
        "--out warm",
        f"--algorithm rloo --env {place} --model smollm2 --start warm --episodes 32 --group-size 4 --steps 8 "
        f"--held-out 24 --horizon 12 --seed {seed} --out better",
    ):
        code, output = run_command(f"onward train {line}")
        print(output)
        assert code == 0, output
    told = checkpoints.verify(Path("better", "checkpoint")).metrics["held_out"]
    assert told["after"]["success"] > told["before"]["success"], told
