"""Installs the plugin into an Agent Zero folder, and removes it again.

A manifest in the plugin's folder lists each file that was written, with its hash. A file with another hash
was changed by a user: it stays, and the new version is written beside it, with the ending ``.new``. The
manifest is written first, with the hashes of before, so a run that was killed is completed by the next one.

Invariants: nothing of Agent Zero itself is touched, and no file of a user is overwritten or removed.
"""

from __future__ import annotations

import hashlib
import json
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onward import __version__
from onward.errors import ConfigError
from onward.files import locked_folder, make_folder, read_json, remove_drafts, write_whole

SOURCE = Path(__file__).parent / "plugin"
PLUGIN = "usr/plugins/onward"
PROFILE = "agents/rl-trainer"
"""Place that the seed names for the profile. The plugin's own folder has the other profile."""
MANIFEST = f"{PLUGIN}/.onward-manifest.json"
WORKER = f"{PLUGIN}/worker.json"
"""Interpreter that has Onward: the plugin's worker runs with it, outside of Agent Zero's own environment."""
KEPT = ("data", "config.json")
"""Names in the plugin's folder that its user and the plugin itself write: settings, and work for NATS."""

MODE = 0o644
"""Mode of what is written, less the umask: another user must not change code that Agent Zero runs."""
_OTHER = "not a plain file"
_Hashes = dict[str, frozenset[str]]
"""Path → the hashes that this program has written there."""

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
    with _alone(root, dry_run):
        require_agent_zero(root)
        before, wanted = _manifest(root), dict(_wanted(python))
        files = {path: digest(data) for path, data in sorted(wanted.items())}
        steps = [_decide(root, path, sha, before.get(path, frozenset())) for path, sha in files.items()]
        if not dry_run:
            _save(root, files, before)
            for step in steps:
                _do(root, step, wanted[step.path], before.get(step.path, frozenset()))
        gone = {path: old for path, old in before.items() if path not in wanted}
        steps += _drop(root, gone, dry_run=dry_run)
        if not dry_run:
            _save(root, files, {})
    return steps


def uninstall(root: Path, *, dry_run: bool = False) -> list[Step]:
    """Removes what ``install`` wrote and no user changed; returns each file and what happened to it.

    Settings and the plugin's data, with work that waits for NATS, stay. Raises ConfigError where nothing is
    installed, and for a folder that cannot be written.
    """
    with _alone(root, dry_run):
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


def is_unfinished(root: Path) -> bool:
    """Returns whether the last installation was killed before its end."""
    found = read_json(root / MANIFEST)
    return isinstance(found, dict) and "before" in found


def changes(root: Path) -> list[Step]:
    """Returns the installed files that are changed or missing now."""
    found = []
    for path, written in _manifest(root).items():
        now = _digest_of(root / path)
        if now is None:
            found.append(Step("removed", path, "is missing"))
        elif now not in written:
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


def _decide(root: Path, path: str, sha: str, written: frozenset[str]) -> Step:
    target = root / path
    now = _digest_of(target)
    if now is None:
        return Step("new", path)
    if now == sha:
        return Step("unchanged", path)
    if now in written:
        return Step("updated", path)
    if _digest_of(_beside(target)) in (None, sha, *written):
        return Step("kept", path, f"you changed it; the new version is in {_beside(target).name}")
    return Step("kept", path, f"you changed it and {_beside(target).name}")


def _do(root: Path, step: Step, data: bytes, written: frozenset[str]) -> None:
    """Carries out one step. A ``.new`` beside the file is replaced or removed only if we wrote it."""
    target, sha = root / step.path, digest(data)
    beside, there = _beside(target), _digest_of(_beside(target))
    if step.action in ("new", "updated"):
        _write(target, data)
    if step.action == "kept" and there in (None, *written) and there != sha:
        _write(beside, data)
    elif step.action != "kept" and there in (sha, *written):
        beside.unlink()
    for path in (target, beside):
        remove_drafts(target.parent, path.name)


def _drop(root: Path, files: Mapping[str, frozenset[str]], *, dry_run: bool) -> list[Step]:
    steps = []
    for path, written in sorted(files.items()):
        target = root / path
        now = _digest_of(target)
        if now in written:
            steps.append(Step("removed", path))
        elif now is not None:
            steps.append(Step("kept", path, "you changed it"))
        if dry_run:
            continue
        for each in (target, _beside(target)):
            if _digest_of(each) in written:
                each.unlink()
            remove_drafts(target.parent, each.name)
    return steps


def _save(root: Path, files: dict[str, str], before: _Hashes) -> None:
    """Writes the manifest. ``before``: hashes that files may still have, as long as the work is not done."""
    document: dict[str, Any] = {"version": __version__, "files": files}
    if before:
        document["before"] = {path: sorted(written) for path, written in before.items()}
    _write(root / MANIFEST, (json.dumps(document, indent=1) + "\n").encode())
    remove_drafts((root / MANIFEST).parent, Path(MANIFEST).name)


def _manifest(root: Path) -> _Hashes:
    found: Any = read_json(root / MANIFEST)
    written: dict[str, set[str]] = {}
    for name in ("files", "before"):
        part = found.get(name) if isinstance(found, dict) else None
        for path, hashes in part.items() if isinstance(part, dict) else ():
            given = hashes if isinstance(hashes, list) else [hashes]
            if _is_ours(path):
                written.setdefault(path, set()).update(one for one in given if isinstance(one, str))
    return {path: frozenset(hashes - {_OTHER}) for path, hashes in written.items()}


def _is_ours(path: str) -> bool:
    """Returns whether a manifest may name ``path``: a damaged one must not lead anywhere else."""
    inside = path.startswith((PLUGIN + "/", PROFILE + "/")) and ".." not in Path(path).parts
    return inside and path.isprintable()


def _digest_of(path: Path) -> str | None:
    """Returns the hash of a file; None if there is none; no hash at all for anything else, such as a link.
    Raises OSError."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return _OTHER
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _write(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    write_whole(path, data, MODE)


@contextmanager
def _alone(root: Path, dry_run: bool) -> Iterator[None]:
    """Lets one installation at a time work on ``root``. Raises ConfigError, also for what the system
    refuses."""
    try:
        if dry_run or not root.is_dir():
            yield
            return
        with locked_folder(root, f"Another installation works on {root}: wait until it has ended."):
            yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or root} cannot be read or changed ({error.strerror}): run this as the user "
            "that Agent Zero runs as."
        ) from error


def _remove_empty(folder: Path) -> None:
    """Removes ``folder`` and the folders in it that hold no file of a user; compiled files are none."""
    for path in sorted(folder.rglob("__pycache__/*.pyc")):
        path.unlink()
    for path in sorted([folder, *folder.rglob("*")], reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
