"""Resolves the base and each extra for platforms and Pythons that are not at hand, and installs nothing.

    python .ci/resolve.py            # what docs/install.md calls resolved
    python .ci/resolve.py --python 3.11 --platform macos-arm64 control

pip looks for wheels alone, in the pinned versions, as it would on that platform. A wheel must be there for
every package, and constraints.txt must have its SHA-256. That it also works there is not shown. Needs pip 26
or newer, as ``make`` installs it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from install import CONSTRAINTS, required

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "all", "langchain")
_GLIBC = range(28, 4, -1)
PLATFORMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "linux-x86_64": (
        [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"],
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    ),
    "linux-aarch64": (
        [f"manylinux_2_{minor}_aarch64" for minor in _GLIBC] + ["manylinux2014_aarch64"],
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    ),
    "macos-arm64": (
        ["macosx_14_0_arm64"],
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    ),
}
"""Name → platform tags (glibc 2.28, macOS 14) and what differs in environment markers."""

_PIP = """\
import json, sys
from pip._vendor.packaging import markers
there = {**markers.default_environment(), **json.loads(sys.argv.pop(1))}
markers.default_environment = lambda: there
from pip._internal.cli.main import main
sys.exit(main())
"""
"""pip with the environment markers of another machine: its --platform changes tags alone."""


def resolve(platform: str, python: str, extra: str) -> str:
    """``N packages``, or why it cannot be."""
    tags, differs = PLATFORMS[platform]
    environment = {**differs, "python_version": python, "python_full_version": f"{python}.1"}
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text(_without_hashes(CONSTRAINTS.read_text(encoding="utf-8")), encoding="utf-8")
        report = Path(folder, "report.json")
        command = [sys.executable, "-c", _PIP, json.dumps(environment), "install", "--dry-run", "--quiet"]
        command += ["--ignore-installed", "--only-binary=:all:", "--target", str(Path(folder, "target"))]
        command += ["--python-version", python, *(f"--platform={tag}" for tag in tags)]
        command += ["--report", str(report), "-c", str(pins), *required([extra] if extra else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (errors or done.stderr.splitlines() or ["no message"])[-1]
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    known = set(re.findall(r"sha256:([0-9a-f]{64})", CONSTRAINTS.read_text(encoding="utf-8")))
    odd = [
        f"{one['metadata']['name']} {one['metadata']['version']}"
        for one in found
        if one["download_info"]["archive_info"]["hashes"]["sha256"] not in known
    ]
    return f"no hash of {', '.join(odd)}" if odd else f"{len(found)} packages"


def _without_hashes(text: str) -> str:
    return "".join(f"{pin}\n" for pin in re.findall(r"^[\w.-]+==[^\s\\]+", text, re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", action="append", choices=sorted(PLATFORMS))
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("extras", nargs="*", default=EXTRAS)
    given = parser.parse_args()
    bad = False
    for platform in given.platform or PLATFORMS:
        for python in given.python or PYTHONS:
            for extra in given.extras:
                answer = resolve(platform, python, extra)
                bad |= not answer.endswith(" packages")
                print(f"| {platform} | {python} | {extra or '(base)'} | {answer} |", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
