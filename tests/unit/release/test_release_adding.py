"""An adapter that was trained elsewhere is checked, stored, and released like any other candidate."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import any_networks
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from peft_folders import PLAIN, Q, write_adapter, write_base
from release_world import World
from safetensors.numpy import load_file, save_file

from onward.config import Settings
from onward.errors import ConfigError, ConflictError, NotFoundError, OnwardError, TamperedError
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.sizes import folder_digest
from onward.lm.tiny import build_tiny
from onward.release import adding
from onward.release.record import Model
from onward.training import checkpoints, signatures
from onward.warehouse import Objects

QUICK = {"time_scale": 0.01, "min_sessions": [10, 20, 40, 0]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", 1.0)


def changed(folder: Path, name: str, value: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({**PLAIN, name: value}))


def tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    found = load_file(folder / "adapter_model.safetensors")
    change(found)
    save_file(found, folder / "adapter_model.safetensors")


class Site:
    """A loop of fakes with an object store and a base model on disk."""

    def __init__(self, world: World, base: Path, objects: Objects) -> None:
        model = world.settings.model.model_copy(update={"base": str(base)})
        self.world, self.objects = world, objects
        self.settings: Settings = world.settings.model_copy(update={"model": model})

    async def add(self, folder: Path, name: str | None = None) -> Model:
        bus: Any = self.world.bus
        return await adding.add_adapter(
            bus, self.objects, self.settings, folder, name, clock=self.world.clock
        )

    async def ask(self, name: str) -> None:
        await adding.request_release(self.world.bus, name, clock=self.world.clock)  # type: ignore[arg-type]


@pytest.fixture
async def site(base: Path, tmp_path: Path) -> Site:
    world = World(**QUICK)
    await world.install()
    return Site(world, base, Objects.open(tmp_path / "objects"))


async def test_an_adapter_of_peft_is_stored_with_manifest_and_commit_and_nothing_else(
    site: Site, adapter: Path, base: Path
) -> None:
    model = await site.add(adapter, "invoices-1.0")
    assert (model.model_id, model.state) == ("invoices-1.0", "added")
    assert model.adapter_digest == checkpoints.adapter_digest(adapter)
    assert site.world.model_states == {"agent-zero-rl-v0": "current", "invoices-1_0": "added"}
    manifest = await checkpoints.read_manifest(
        site.objects, model.object_prefix, manifest_sha256=model.manifest_sha256
    )
    assert manifest.base_digest == folder_digest(base)
    assert sorted(manifest.files) == sorted(checkpoints.ADAPTER_FILES)
    commit = await checkpoints.read_commit(site.objects, model.training_job_id)
    assert (commit.object_prefix, commit.manifest_sha256) == (model.object_prefix, model.manifest_sha256)
    assert len(await site.objects.list()) == 4


async def test_without_a_name_it_is_called_by_its_digest(site: Site, adapter: Path) -> None:
    model = await site.add(adapter)
    assert model.model_id == f"added-{checkpoints.adapter_digest(adapter)[:8]}"


async def test_a_run_of_onward_train_is_found_in_its_folder_and_keeps_its_metrics(
    site: Site, adapter: Path, base: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (adapter / "training_args.bin").unlink()
    checkpoints.write_manifest(
        adapter, job_id="local", epoch=1, base_digest=folder_digest(base), metrics={"steps": 3}
    )
    adapter.rename(run / "checkpoint")
    model = await site.add(run)
    manifest = await checkpoints.read_manifest(site.objects, model.object_prefix)
    assert manifest.metrics == {"steps": 3}
    assert manifest.job_id != "local", "every run is called so"


SPOILED: dict[str, tuple[Callable[[Path], object], type[OnwardError], str]] = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), NotFoundError, "There is no folder"),
    "no tensors file": (
        lambda f: (f / "adapter_model.safetensors").unlink(), ConfigError, "it needs adapter_config.json and",
    ),
    "config is no JSON": (
        lambda f: (f / "adapter_config.json").write_text("r: 2"), ConfigError, "is not a JSON object",
    ),
    "DoRA": (lambda f: changed(f, "use_dora", True), ConfigError, r"not plain LoRA \(use_dora\)"),
    "no LoRA": (lambda f: changed(f, "peft_type", "IA3"), ConfigError, r"not plain LoRA \(IA3\)"),
    "no rank": (lambda f: changed(f, "r", None), ConfigError, "r None and lora_alpha 4"),
    "other rank": (lambda f: changed(f, "r", 3), ConfigError, r"shape \(2, 8\), expected \(3, 8\)"),
    "code": (lambda f: changed(f, "auto_map", {"x": "y"}), TamperedError, "asks for code to be run"),
    "a pickle": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x80\x04" * 9),
        TamperedError, "not safetensors",
    ),
    "no tensors": (lambda f: tensors(f, lambda t: t.clear()), ConfigError, "so it changes nothing"),
    "a layer too far": (
        lambda f: tensors(f, lambda t: t.update({Q.replace(".1.", ".7.") + "A.weight": t.popitem()[1]})),
        ConfigError, "the layers among 0 to 1",
    ),
    "another module": (
        lambda f: tensors(f, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": np.ones((2, 8))})),
        ConfigError, "lm_head.lora_A.weight'?, which is not a linear layer",
    ),
    "another width": (
        lambda f: tensors(f, lambda t: t.update({Q + "A.weight": np.ones((2, 16), np.float32)})),
        ConfigError, r"shape \(2, 16\), expected \(2, 8\)",
    ),
    "not finite": (
        lambda f: tensors(f, lambda t: t.update({Q + "A.weight": np.full((2, 8), np.inf, np.float32)})),
        ConfigError, "all finite",
    ),
    "whole numbers": (
        lambda f: tensors(f, lambda t: t.update({Q + "A.weight": np.ones((2, 8), np.int8)})),
        ConfigError, "in format I8: expected one of F64, F32, F16, BF16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
async def test_an_adapter_that_no_gateway_could_load_is_refused_and_nothing_is_stored(
    site: Site, adapter: Path, case: str
) -> None:
    spoil, error, message = SPOILED[case]
    spoil(adapter)
    with pytest.raises(error, match=message):
        await site.add(adapter)
    assert await site.objects.list() == []
    assert list(site.world.model_states) == ["agent-zero-rl-v0"]


async def test_a_checkpoint_that_was_trained_on_another_base_model_is_refused(
    site: Site, adapter: Path
) -> None:
    (adapter / "training_args.bin").unlink()
    checkpoints.write_manifest(adapter, job_id="local", epoch=1, base_digest="f" * 64)
    with pytest.raises(TamperedError, match="was trained on base ffffffffffff, but"):
        await site.add(adapter)


async def test_numbers_of_half_width_are_read_for_what_they_are(tmp_path: Path, site: Site) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        folder = write_adapter(tmp_path / name, 1.0)
        numbers = {Q + "A.weight": torch.full((2, 8), 30_000.0, dtype=kind)}
        save_torch(numbers, folder / "adapter_model.safetensors")
        await site.add(folder, name)
        numbers[Q + "A.weight"][1, 7] = float("nan")
        save_torch(numbers, folder / "adapter_model.safetensors")
        with pytest.raises(ConfigError, match="all finite"):
            await site.add(folder, f"{name}-nan")


async def test_a_name_is_given_once_and_an_adapter_is_stored_once(
    site: Site, adapter: Path, tmp_path: Path
) -> None:
    await site.add(adapter, "a.b")
    with pytest.raises(ConflictError, match=r"is stored already, as a\.b"):
        await site.add(adapter, "other")
    second = write_adapter(tmp_path / "second", 2.0)
    for name in ("a.b", "a_b", "agent-zero-rl-v0", "tiny", "smollm2"):
        with pytest.raises(ConflictError, match=f"a model {name} already: give another --name"):
            await site.add(second, name)
    for name in ("", "-x", "a/b", "a b", "x" * 129):
        with pytest.raises(ConfigError, match="--name is"):
            await site.add(second, name)


async def test_it_is_validated_gets_a_canary_is_promoted_and_learning_continues_from_it(
    site: Site, adapter: Path
) -> None:
    world = site.world
    model = await site.add(adapter, "mine")
    assert model.adapter_digest is not None
    world.suite.success = {"d0": 0.5, model.adapter_digest: 0.6, "d2": 0.7}
    await site.ask("mine")
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)
    assert world.suite.committed[model.adapter_digest] == model.manifest_sha256
    assert world.shares["mine"] == 0.1
    assert world.model_states["mine"] == "candidate"
    await world.until(lambda: world.record.settled)
    assert (world.record.decision, world.shares) == ("promoted", {"mine": 1.0})
    assert world.deployed[-1]["model_info"]["model_id"] == "mine"
    assert world.model_states == {"agent-zero-rl-v0": "previous", "mine": "current"}
    await world.job("job-2", "d2", start=model.adapter_digest)
    await world.until(lambda: world.record.job_id == "job-2" and world.record.settled)
    assert (world.record.candidate.model_id, world.record.decision) == ("agent-zero-rl-v1", "promoted")


async def test_a_rejected_one_stays_stored_and_can_be_asked_for_again(site: Site, adapter: Path) -> None:
    world = site.world
    model = await site.add(adapter, "mine")
    world.suite.success = {"d0": 0.5, model.adapter_digest: 0.1}
    await site.ask("mine")
    await world.until(lambda: world.record.settled, sessions=0, seconds=1)
    assert (world.record.decision, world.shares) == ("rejected", {"agent-zero-rl-v0": 1.0})
    assert world.model_states["mine"] == "added"
    world.suite.success[model.adapter_digest] = 0.6
    await site.ask("mine")
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)


async def test_what_cannot_be_released_is_refused_with_the_way_on(site: Site, adapter: Path) -> None:
    world = site.world
    with pytest.raises(NotFoundError, match=r"no stored model 'mine'.*onward models add"):
        await site.ask("mine")
    with pytest.raises(ConflictError, match="v0 serves already"):
        await site.ask("agent-zero-rl-v0")
    model = await site.add(adapter, "mine")
    await world.control("pin", model_id="agent-zero-rl-v0")
    with pytest.raises(ConflictError, match="onward unpin"):
        await site.ask("mine")
    await world.control("pin", model_id=None)
    world.suite.success = {"d0": 0.5, model.adapter_digest: 0.6}
    await site.ask("mine")
    with pytest.raises(ConflictError, match=r"is proposed: wait for its end.*then release it"):
        await site.ask("mine")
    await world.until(lambda: world.record.settled)
    with pytest.raises(ConflictError, match="onward models rollback agent-zero-rl-v0"):
        await site.ask("agent-zero-rl-v0")


def test_no_torch_is_loaded() -> None:
    code = "import onward.release.adding, onward.cli.models, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_checkpoint_whose_signature_is_wrong_is_not_signed_anew(
    site: Site, adapter: Path, base: Path
) -> None:
    """What another hand changed after it was signed would otherwise be trusted from here on."""
    key = Ed25519PrivateKey.generate()
    listed = [signatures.public_text(key.public_key())]
    models = site.settings.models.model_copy(update={"trusted_keys": listed})
    site.settings = site.settings.model_copy(update={"models": models})
    (adapter / "training_args.bin").unlink()
    told: dict[str, Any] = {"job_id": "local", "epoch": 1, "base_digest": folder_digest(base)}
    checkpoints.write_manifest(adapter, **told, metrics={"steps": 3})
    checkpoints.sign(adapter, key)
    signature = (adapter / checkpoints.SIGNATURE).read_bytes()
    checkpoints.write_manifest(adapter, **told, metrics={"steps": 4})
    (adapter / checkpoints.SIGNATURE).write_bytes(signature)
    with pytest.raises(TamperedError, match="is not what key"):
        await site.add(adapter)
    assert await site.objects.list() == []
    checkpoints.sign(adapter, key)
    assert (await site.add(adapter)).state == "added"


def test_an_adapter_of_a_model_that_transformers_computes_is_staged(tmp_path: Path) -> None:
    """GPT-2's matrices are transposed. The same files do not fit a network with other sizes."""
    token = tmp_path / "token"
    build_tiny(token, ["a b c"] * 9, vocab=300, hidden=32, layers=1)
    base = any_networks.build("gpt2", tmp_path / "gpt2", token)
    policy = AnyPolicy.load(base)
    policy.new_adapter("x", 4)
    policy.save_adapter("x", tmp_path / "x")
    manifest = adding.stage(tmp_path / "x", base, tmp_path / "staged")
    assert manifest.base_digest == folder_digest(base)
    other = any_networks.build("granite", tmp_path / "granite", token)
    with pytest.raises(ConfigError, match=r"changes .*c_attn.* not a linear layer of this network"):
        adding.stage(tmp_path / "x", other, tmp_path / "again")
