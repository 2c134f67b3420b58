"""Tools on checkpoints and models: fetch one, measure one. Both work in the background."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError, OnwardError
from onward.release.record import Releases
from onward.suites.finding import ALIASES, FACTORIES
from onward.tools.arguments import DownloadCheckpoint, RunBenchmarks
from onward.tools.overview import check_model
from onward.tools.toolbox import Toolbox
from onward.training.spec.environment_plan import is_listed

_OF_CALLER = frozenset({"file", "inspect"})
"""Forms whose rest is a path, or code."""
END_SECONDS = 5.0
"""Time for a cancelled measurement to end."""


async def download_checkpoint(box: Toolbox, arguments: DownloadCheckpoint) -> dict[str, Any]:
    """Fetches a checkpoint, checks every file of it, and returns a job at once."""
    key = key_of(arguments.s3_path, box.settings)
    folder = target(arguments.local_path, box.downloads) / key
    return await box.background.start("download", _download(box.settings, key, folder))


async def _download(settings: Settings, key: str, folder: Path) -> dict[str, Any]:
    from onward.training import checkpoints
    from onward.training.signatures import Trust
    from onward.warehouse import Objects

    trust = Trust.from_settings(settings)
    if folder.exists():
        manifest = await asyncio.to_thread(checkpoints.verify, folder, trust)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        manifest = await checkpoints.fetch(Objects.open(settings.objects_at), key, folder, trust=trust)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return {
        "folder": str(folder),
        "files": sorted(manifest.files),
        "bytes": sum(sizes),
        "adapter_digest": manifest.adapter_digest,
        "training_job_id": manifest.job_id,
        "verified": True,
    }


def key_of(path: str, settings: Settings) -> str:
    """Returns the key of a checkpoint in the store of models. Raises ConfigError for a path outside of it."""
    from onward.warehouse.objects import check_key

    local = str((settings.data_dir / "objects").resolve())
    roots = [f"{store.rstrip('/')}/" for store in (settings.objects_at, local, Path(local).as_uri())]
    root = next((root for root in roots if path.startswith(root)), "")
    if not root and ("://" in path or path.startswith("/")):
        raise ConfigError(
            f"s3_path is {path[:120]!r}: expected a folder in the store of models, {roots[0]}, or its key "
            f"there, such as checkpoints/JOB/EPOCH."
        )
    return check_key(path.removeprefix(root).strip("/"))


def target(given: str, root: Path) -> Path:
    """Returns the folder for a download. The published default stands for ``root``. Raises ConfigError for a
    folder that is not inside it."""
    top = root.resolve()
    asked = Path(given)
    if asked == Path("/tmp/checkpoints"):
        return top
    folder = (top / asked).resolve()
    if not folder.is_relative_to(top):
        raise ConfigError(f"local_path is {given[:120]!r}: give a folder below {top}.")
    return folder


async def run_benchmarks(box: Toolbox, arguments: RunBenchmarks) -> dict[str, Any]:
    """Compares a stored model with the current one on suites, without traffic. Returns a job at once."""
    for name in arguments.tasks:
        check_suite(name, box.settings)
    async with box.service.bus() as bus:
        model_id = await stored_model(bus, arguments.model_path)
    return await box.background.start("benchmarks", _benchmarks(box, model_id, arguments.tasks))


def check_suite(name: str, settings: Settings) -> None:
    """Raises ConfigError for a suite that a tool may not name: to load a task of Inspect, an environment or
    a file is to run code, call an address or read a path that the caller chose. What the operator listed
    in ``validation.suites`` or ``training.environments`` may be named."""
    head, _, rest = ALIASES.get(name, name).partition(":")
    if name in settings.validation.suites:
        return
    if head not in FACTORIES:
        known = ", ".join([*ALIASES, *(one for one in FACTORIES if one not in _OF_CALLER)])
        raise ConfigError(f"There is no suite {name[:80]!r}: give some of {known}.")
    if head in _OF_CALLER or (head == "env" and not is_listed(rest, settings.training.environments)):
        raise ConfigError(
            f"The suite {name[:80]!r} is not one that a tool may name: let the operator list it in "
            f"validation.suites."
        )


async def stored_model(bus: Bus, given: str) -> str:
    """Returns the id of the model that ``given`` names by id or by its checkpoint. Raises NotFoundError."""
    releases = Releases(bus, SystemClock())
    for model in await releases.models():
        prefix = model.object_prefix
        if given == model.model_id or (prefix and given.rstrip("/").endswith(prefix)):
            return model.model_id
    raise NotFoundError(
        f"No stored model has the id or the checkpoint {given[:120]!r}: status with part 'models' lists "
        f"them, and deploy_to_tensorzero stores a checkpoint as a model."
    )


async def _benchmarks(box: Toolbox, model_id: str, tasks: list[str]) -> dict[str, Any]:
    """Runs ``onward validate``, which stores its result below ``validations/`` of the data folder."""
    from onward import children

    suites = [word for name in dict.fromkeys(tasks) for word in ("--suite", name)]
    where = ["--dir", str(box.settings.data_dir)]
    if box.config_file is not None:
        where += ["--config", str(box.config_file)]
    with tempfile.TemporaryDirectory(prefix="onward-benchmarks-") as scratch:
        log = Path(scratch) / "errors.log"
        child = await children.start(
            "onward.cli", "validate", check_model(model_id), *suites, *where, "--json",
            log=log, passed=("*",), group=True, python=sys.executable,  # it reads the same settings
        )  # fmt: skip
        try:
            out, _ = await child.communicate()
        finally:
            await children.end(child, END_SECONDS)
        said = log.read_text(errors="replace").strip()
    try:
        found = json.loads(out)
    except ValueError:
        last = said.splitlines()[-1] if said else f"it ended with code {child.returncode}"
        raise OnwardError(f"The measurement of {model_id} failed: {last[:500]}") from None
    summary = found.get("summary", {})
    return {
        "model_id": found["model"],
        "against": found["against"],
        "verdict": found["verdict"],
        "improvement": found.get("improvement"),
        "suites": summary.get("suites"),
        "safety": summary.get("safety"),
        "not_run": found.get("not_run"),
    }
