"""Installs the plugin into an Agent Zero folder, and removes it again.

A manifest in the plugin's folder lists each file that was written, with its hash. A file with another hash
was changed by a user: it stays, and the new version is written beside it, with the ending ``.new``.

Invariants: nothing of Agent Zero itself is touched, and no file of a user is overwritten or removed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onward import __version__
from onward.errors import ConfigError
from onward.files import make_folder, read_json, write_whole

SOURCE = Path(__file__).parent / "plugin"
PLUGIN = "usr/plugins/onward"
PROFILE = "agents/rl-trainer"
"""Place that the seed names for the profile. The plugin's own folder has the other profile."""
MANIFEST = f"{PLUGIN}/.onward-manifest.json"
WORKER = f"{PLUGIN}/worker.json"
"""Interpreter that has Onward: the plugin's worker runs with it, outside of Agent Zero's own environment."""
KEPT = ("data", "config.json")
"""Names in the plugin's folder that its user and the plugin itself write: settings, and work for NATS."""

Action = Literal["new", "updated", "unchanged", "kept", "removed"]


@dataclass(frozen=True)
class Step:
    """One file, and what an installation does with it."""

    action: Action
    path: str
    """Relative to the Agent Zero folder."""
    note: str = ""


def install(root: Path, *, dry_run: bool = False, python: str = sys.executable) -> list[Step]:
    """Installs or updates the plugin; returns each file and what happened to it.

    With ``dry_run`` nothing is written. Raises ConfigError for a folder that is no Agent Zero, for one that
    is too old, and for a folder that cannot be written.
    """
    require_agent_zero(root)
    before = _manifest(root)
    wanted = dict(_wanted(python))
    steps, files = [], {}
    for path, data in sorted(wanted.items()):
        target = root / path
        steps.append(_decide(target, path, data, before.get(path)))
        files[path] = digest(data)
        if dry_run:
            continue
        if steps[-1].action in ("new", "updated"):
            _write(target, data)
        elif steps[-1].action == "kept" and _digest_of(_beside(target)) != files[path]:
            _write(_beside(target), data)
    steps += _drop(root, {path: old for path, old in before.items() if path not in wanted}, dry_run=dry_run)
    if not dry_run:
        document = {"version": __version__, "files": files}
        _write(root / MANIFEST, (json.dumps(document, indent=1) + "\n").encode())
    return steps


def uninstall(root: Path, *, dry_run: bool = False) -> list[Step]:
    """Removes what ``install`` wrote and no user changed; returns each file and what happened to it.

    Settings and the plugin's data, with work that waits for NATS, stay. Raises ConfigError where nothing is
    installed.
    """
    before = _manifest(root)
    if not before:
        raise ConfigError(
            f"There is no plugin of Onward in {root}: give the folder that it was installed to."
        )
    steps = _drop(root, before, dry_run=dry_run)
    if not dry_run:
        (root / MANIFEST).unlink(missing_ok=True)
        for place in (root / PLUGIN, root / PROFILE):
            _remove_empty(place)
    left = [name for name in KEPT if (root / PLUGIN / name).exists()]
    return [*steps, *(Step("kept", f"{PLUGIN}/{name}", "yours, not of the installation") for name in left)]


def require_agent_zero(root: Path) -> None:
    """Checks that ``root`` is an Agent Zero with the hooks of today. Raises ConfigError."""
    if not root.is_dir():
        raise ConfigError(
            f"{root} is no folder: give the one that Agent Zero runs in (/a0 in its container)."
        )
    if (root / "python" / "helpers" / "extension.py").exists() and not (root / "helpers").exists():
        raise ConfigError(_too_old(root))
    if not (root / "agent.py").is_file() or not (root / "helpers").is_dir():
        raise ConfigError(
            f"{root} is no Agent Zero: expected agent.py and helpers/ in it; give the folder that it runs in "
            "(/a0 in its container)."
        )
    extension = root / "helpers" / "extension.py"
    if not extension.is_file() or "def extensible" not in extension.read_text(errors="replace"):
        raise ConfigError(_too_old(root))


def installed_version(root: Path) -> str | None:
    """Returns the version of Onward that installed the plugin in ``root``; None if none did."""
    found = read_json(root / MANIFEST)
    return found.get("version") if isinstance(found, dict) else None


def changes(root: Path) -> list[Step]:
    """Returns the installed files that are changed or missing now."""
    found = []
    for path, expected in _manifest(root).items():
        now = _digest_of(root / path)
        if now is None:
            found.append(Step("removed", path, "is missing"))
        elif now != expected:
            found.append(Step("kept", path, "was changed"))
    return found


def plugin_files() -> Iterator[Path]:
    """Yields the plugin's files in the wheel, relative to its folder."""
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path.relative_to(SOURCE)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _too_old(root: Path) -> str:
    return (
        f"The Agent Zero in {root} is too old: its helpers/extension.py has no 'extensible', so there are no "
        "hooks to record from; update it to version 1.7 or newer."
    )


def _wanted(python: str) -> Iterator[tuple[str, bytes]]:
    for relative in plugin_files():
        name = relative.as_posix()
        place = name if name.startswith(PROFILE + "/") else f"{PLUGIN}/{name}"
        yield place, (SOURCE / relative).read_bytes()
    worker = {"python": python, "version": __version__}
    yield WORKER, (json.dumps(worker, indent=1) + "\n").encode()


def _decide(target: Path, path: str, data: bytes, recorded: str | None) -> Step:
    now = _digest_of(target)
    if now is None:
        return Step("new", path)
    if now == digest(data):
        return Step("unchanged", path)
    if now == recorded:
        return Step("updated", path)
    return Step("kept", path, f"you changed it; the new version is in {_beside(target).name}")


def _drop(root: Path, files: dict[str, str], *, dry_run: bool) -> list[Step]:
    steps = []
    for path, recorded in sorted(files.items()):
        target = root / path
        now = _digest_of(target)
        if now == recorded:
            steps.append(Step("removed", path))
        elif now is not None:
            steps.append(Step("kept", path, "you changed it"))
        if dry_run:
            continue
        if now == recorded:
            target.unlink()
        if _digest_of(_beside(target)) == recorded:
            _beside(target).unlink()
    return steps


def _manifest(root: Path) -> dict[str, str]:
    found: Any = read_json(root / MANIFEST)
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict):
        return {}
    return {path: sha for path, sha in files.items() if isinstance(sha, str) and _is_ours(path)}


def _is_ours(path: str) -> bool:
    """Returns whether a manifest may name ``path``: a damaged one must not lead anywhere else."""
    return path.startswith((PLUGIN + "/", PROFILE + "/")) and ".." not in Path(path).parts


def _digest_of(path: Path) -> str | None:
    """Returns the hash of a file; None if there is none; no hash at all for a link or a folder."""
    if path.is_symlink() or path.is_dir():
        return "not a plain file"
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): make it readable.") from error


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _write(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    try:
        write_whole(path, data)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): run this as the user that Agent Zero runs as."
        ) from error


def _remove_empty(folder: Path) -> None:
    """Removes ``folder`` and the folders in it that hold no file of a user; compiled files are none."""
    for path in sorted(folder.rglob("__pycache__/*.pyc")):
        path.unlink()
    for path in sorted([folder, *folder.rglob("*")], reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
