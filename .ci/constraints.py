"""Rewrites constraints.txt: every package with the SHA-256 of its released files.

The versions are those that the file has. To change one, edit it and run this again; a new package is a new
line ``name==version``. Hashes are asked of the index that pip uses, in the JSON form of its simple API
(PEP 691). Kept are those of source archives and of wheels for the Pythons and platforms of docs/install.md.

    python .ci/constraints.py [--index URL]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "constraints.txt"
HEADER = """\
# Every package that an installation by make takes, with the SHA-256 of its files. Made by .ci/constraints.py,
# used by .ci/install.py.
"""
ELSEWHERE = {
    ("torch", "2.13.0"): ["6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"],
}
"""(Name, version) → SHA-256 of builds that the index lacks: PyTorch's CPU build for CPython 3.11 on
Linux x86-64. It has the version number of the GPU build and other bytes."""
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
PLATFORM = re.compile(r"any|manylinux\S*_(x86_64|aarch64)|macosx_\S*_(arm64|universal2)")


def wanted(filename: str) -> bool:
    """Whether a supported machine may install this file."""
    if not filename.endswith(".whl"):
        return filename.endswith((".tar.gz", ".zip"))
    python, abi, platform = filename.removesuffix(".whl").split("-")[-3:]
    current = re.fullmatch(r"(cp|py)31[1-4]", python) is not None
    anywhere = abi in ("abi3", "none") and re.match(r"(py3|py2\.py3|cp3)", python) is not None
    return ((current and not abi.endswith("t")) or anywhere) and any(
        PLATFORM.fullmatch(tag) for tag in platform.split(".")
    )


def released(index: str, name: str, version: str) -> list[str]:
    """SHA-256 of the files of ``name`` in ``version``, sorted. Raises ValueError where there is none."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    request = urllib.request.Request(
        f"{index.rstrip('/')}/{normal}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
    stem = rf"{re.sub('-', '[-_.]+', normal)}-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)"
    found = {
        file["hashes"]["sha256"]
        for file in files
        if re.fullmatch(stem, file["filename"], re.I) and wanted(file["filename"])
    }
    if not found:
        raise ValueError(f"{name}=={version} has no file for a supported machine.")
    return sorted(found)


def lines(pins: list[tuple[str, str]], index: str) -> list[str]:
    """The file's lines, in the order of ``pins``."""
    with ThreadPoolExecutor(4) as pool:
        hashes = dict(zip(pins, pool.map(lambda pin: released(index, *pin), pins), strict=True))
    written = []
    for pin in pins:
        parts = [
            "==".join(pin),
            *(f"    --hash=sha256:{one}" for one in sorted([*hashes[pin], *ELSEWHERE.get(pin, ())])),
        ]
        written.append(" \\\n".join(parts))
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", default=None, help="Simple API of the index. Default: pip's own.")
    index = parser.parse_args().index
    if index is None:
        from pip._internal.models.index import PyPI

        index = PyPI.simple_url
    pins = sorted(set(PIN.findall(FILE.read_text(encoding="utf-8"))), key=lambda pin: pin[0].lower())
    try:
        FILE.write_text(HEADER + "\n".join(lines(pins, index)) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(f"constraints.txt was not changed: {error}")


if __name__ == "__main__":
    main()
