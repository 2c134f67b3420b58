"""Installs this checkout with its extras into the environment of the Python that runs this.

    .venv/bin/python .ci/install.py server lm demo

Every file is checked against the SHA-256 that constraints.txt has for it. ``pip install -c constraints.txt
-e .`` cannot do that: with hashes pip refuses what is installed from a folder, and older pips ask for them in
the requirement itself. So pip comes first, then what the extras require, then this checkout alone.

PyTorch's CPU and GPU builds have one version number and different bytes. An installed one is taken as it is.
Else pip chooses, and the bytes of its choice must be known: with hashes given, pip would pass over a build in
a folder (``find-links``), which is how a CPU build is often provided.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
SELF = re.compile(r"onward\[([\w,-]+)\]")


def required(extras: list[str]) -> Iterator[str]:
    """The requirements of the package and of ``extras``. Raises KeyError for an extra that there is not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def of_extra(extra: str) -> Iterator[str]:
        for requirement in project["optional-dependencies"][extra]:
            own = SELF.fullmatch(requirement)
            if own is None:
                yield requirement
            else:
                for inner in own[1].split(","):
                    yield from of_extra(inner)

    yield from project["dependencies"]
    for extra in extras:
        yield from of_extra(extra)


def pinned(name: str) -> str:
    """The lines of constraints.txt for ``name``, hashes included."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(name)}==[^\\\n]*(?:\\\n[^\\\n]*)*", text, re.MULTILINE)
    if found is None:
        raise KeyError(name)
    return found[0]


def pip(*arguments: str, command: str = "install") -> None:
    """Run pip's ``command``; a failure ends this program, since pip has said why."""
    words = [sys.executable, "-m", "pip", command, "--disable-pip-version-check", *arguments]
    if (code := subprocess.call(words)) != 0:
        sys.exit(code)


def install_torch(folder: Path) -> None:
    """Install the build of PyTorch that pip chooses, if its SHA-256 is known."""
    pip("--no-deps", "--dest", str(folder), pinned("torch").split()[0], command="download")
    (wheel,) = folder.glob("torch-*.whl")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest not in pinned("torch"):
        sys.exit(
            f"{wheel.name} has SHA-256 {digest}, which constraints.txt does not list: if you trust this "
            f"build, install it into {sys.prefix} yourself and run this again."
        )
    pip("--no-deps", str(wheel))


def main() -> None:
    requirements = sorted(set(required(sys.argv[1:])))
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "tools.txt")
        tools.write_text(f"{pinned('pip')}\n{pinned('setuptools')}\n", encoding="utf-8")
        pip("--quiet", "--require-hashes", "-r", str(tools))
        if any(re.match(r"torch\b", one) for one in requirements) and not _installed("torch"):
            install_torch(Path(folder))
        wanted = Path(folder, "requirements.txt")
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        pip("--require-hashes", "-c", str(CONSTRAINTS), "-r", str(wanted))
    pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))


def _installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
