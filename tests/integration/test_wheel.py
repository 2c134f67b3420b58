"""The wheel in an empty environment: what somebody has who installs the package alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onward import __version__
from onward.contracts.examples import TRAJECTORY

ROOT = Path(__file__).parents[2]
MOST_MEGABYTES = 120
RECORD = """
import onward
with onward.Recorder("outbox.db", agent_id="agent") as recorder:
    with recorder.task("What is 6 times 7?") as task:
        task.turn(observation="What is 6 times 7?", action="42")
        task.outcome("completed_successfully")
    print(recorder.stats().recorded)
"""


def _run(*command: str | Path, folder: Path) -> str:
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _newest() -> str | None:
    """The newest Python on this machine that is newer than the one of the tests."""
    for minor in range(19, sys.version_info.minor, -1):
        program = shutil.which(f"python3.{minor}")
        if (
            program
            and subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
        ):
            return program
    return None


def _bytes_in(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copied = shutil.copytree(
        ROOT, folder / "clone", ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "tests")
    )
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, copied, folder=folder)
    return next(folder.glob("*.whl"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["the Python of the tests", "the newest Python"])
def test_the_wheel_alone_is_small_and_records_redacts_and_scores(
    wheel: Path, tmp_path: Path, which: str
) -> None:
    python = sys.executable if which == "the Python of the tests" else _newest()
    if python is None:
        pytest.skip("no newer Python is on this machine")
    _run(python, "-m", "venv", tmp_path / "empty", folder=tmp_path)
    programs = tmp_path / "empty" / "bin"
    packages = next((tmp_path / "empty" / "lib").glob("python*")) / "site-packages"
    before = _bytes_in(packages)
    pins = re.findall(r"^[\w.-]+==[^\s\\]+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    (tmp_path / "pins.txt").write_text("\n".join(pins), encoding="utf-8")
    _run(programs / "python", "-m", "pip", "install", "-q", "-c", "pins.txt", wheel, folder=tmp_path)
    grown = (_bytes_in(packages) - before) / 1e6
    assert grown < MOST_MEGABYTES
    for absent in ("torch", "chdb", "fastapi", "numpy", "structlog"):
        assert not list(packages.glob(f"{absent}*"))

    assert _run(programs / "onward", "--version", folder=tmp_path) == f"onward {__version__}\n"
    assert _run(programs / "python", "-c", RECORD, folder=tmp_path) == "1\n"
    (tmp_path / "note.txt").write_text("write to ann.miller" + "@uni-hamburg.de")
    assert _run(programs / "onward", "redact", "note.txt", folder=tmp_path) == "write to <EMAIL:1>"
    (tmp_path / "one.json").write_text(json.dumps(TRAJECTORY))
    scored = json.loads(_run(programs / "onward", "rewards", "score", "one.json", folder=tmp_path))
    assert scored["components"]["task_completion"]["score"] == 1.0
