"""Benchmarks keep their promises: ``--json`` and ``--quick`` everywhere, one sentence for a missing peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = [file for file in sorted(FOLDER.glob("*.py")) if "__main__" in file.read_text(encoding="utf-8")]
SHARED = [file for file in sorted(FOLDER.glob("*.py")) if file not in PROGRAMS]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda file: file.stem)
def test_every_benchmark_takes_json_and_quick_and_is_in_the_readme(program: Path) -> None:
    text = program.read_text(encoding="utf-8")
    text += "".join(file.read_text(encoding="utf-8") for file in SHARED if f"{file.stem} import" in text)
    assert '"--json"' in text
    assert '"--quick"' in text
    assert f"`{program.name}`" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", ["langsmith", "presidio_analyzer", "stdnum"])
def test_a_missing_peer_is_one_sentence_that_says_what_to_install(module: str) -> None:
    code = (
        f"import sys, runpy; sys.modules[{module!r}] = None; sys.path.insert(0, {str(FOLDER)!r}); "
        f"sys.argv = ['redaction.py', '--quick']; runpy.run_path({str(FOLDER / 'redaction.py')!r}, "
        "run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "is not installed; run: pip install -e '.[bench]'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["redaction", "lm_sampling", "reward"])
def test_quick_runs_and_writes_json(name: str, tmp_path: Path) -> None:
    if name == "redaction":
        pytest.importorskip("presidio_analyzer", reason="run: pip install -e '.[bench]'")
    file = tmp_path / "result.json"
    program = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--json", str(file)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=280, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr[-2000:]
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["benchmark"] == name
