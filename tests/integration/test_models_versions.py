"""``onward models tree|tag|verify|diff|register`` on the real bus and object store, while nothing runs."""

import asyncio
import json
from pathlib import Path

from docs_blocks import run_command
from peft_folders import write_adapter, write_base

from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.config import Settings
from onward.ids import model_key
from onward.release.record import Model, Releases
from onward.warehouse import Objects


async def test_versions_are_tagged_verified_and_compared(own_server: NatsServer, tmp_path: Path) -> None:
    bus = await Bus.connect(own_server.url, token=own_server.token, clock=SystemClock(), name="test")
    await bus.ensure_streams(migrate=True)
    base = Model(
        model_id="v0", adapter_digest=None, object_prefix="", training_job_id="w", state="current",
        base_digest="b" * 64,
    )  # fmt: skip
    await bus.bucket("rl_models").put(model_key("v0"), base.dump())
    await bus.close()
    await own_server.stop()
    file = tmp_path / "onward.toml"
    file.write_text(f'[model]\nbase = "{write_base(tmp_path / "base")}"\n')

    async def command(words: str) -> tuple[int, str]:
        return await asyncio.to_thread(
            run_command, f"onward {words} --dir {tmp_path / 'data'} --config {file}"
        )

    for name, value in (("one", 1.0), ("two", 2.0)):
        folder = write_adapter(tmp_path / name, value)
        code, output = await command(f"models register {folder} --name {name}")
        assert (code, output.split(".")[0]) == (0, f"{name} is stored"), output

    assert await command("models tag one good") == (0, "one has the tag good.\n")
    assert await command("models tag two good") == (
        2, "one has the tag good already: move it with --move.\n",
    )  # fmt: skip
    assert await command("models tag two good --move") == (0, "two has the tag good now, which one had.\n")
    code, output = await command("models tag two 'Not One'")
    assert code == 2 and output.startswith("'Not One' is no tag")
    code, output = await command("models tree --json")
    assert {row["model_id"]: row["tags"] for row in json.loads(output)["versions"]} == {
        "v0": [], "one": [], "two": ["good"],
    }  # fmt: skip
    jobs = {row["model_id"]: row["training_job_id"] for row in json.loads(output)["versions"]}
    assert jobs["v0"] is None and jobs["one"] is not None  # no job made the base model

    code, output = await command("models verify good --json")
    found = json.loads(output)
    assert (code, found["sound"], found["model_id"], found["manifest"]) == (0, True, "two", "as committed")
    code, output = await command("models diff one good --json")
    told = json.loads(output)
    assert "adapter_digest" in {one["name"] for one in told["fields"]}
    assert all(row["difference"] > 0 for row in told["layers"]) and told["layers"]

    objects = Objects.open(Settings.model_validate({"data_dir": tmp_path / "data"}).objects_at)
    prefix = next(one["a"] for one in told["fields"] if one["name"] == "object_prefix")
    await objects.put(f"{prefix}/adapter_model.safetensors", b"another file")
    code, output = await command("models verify one")
    assert code == 1 and "does not match its manifest" in " ".join(output.split())


async def test_a_release_keeps_the_tags_that_an_operator_gave(bus: Bus) -> None:
    """The releaser writes its own copy of a model, which may be older than a tag."""
    releases = Releases(bus, SystemClock())
    model = Model(model_id="kept-tags", adapter_digest="d", object_prefix="p", training_job_id="j")
    await bus.bucket("rl_models").put(
        model_key(model.model_id), model.model_copy(update={"tags": ["good"]}).dump()
    )

    async def fence() -> None:
        return None

    await releases.put_model(model.model_copy(update={"state": "retired"}), fence)
    stored = await releases.model("kept-tags")
    assert stored is not None and (stored.state, stored.tags) == ("retired", ["good"])
