"""Benchmarks keep their promises: ``--json`` and ``--quick`` everywhere, one sentence for a missing peer."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

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


def measured(monkeypatch: pytest.MonkeyPatch, scratch: Path, *words: str) -> tuple[Path, str]:
    """What the benchmarks of language models measure with these words on the command line."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    lm_measure = importlib.import_module("lm_measure")
    return lm_measure.model_folder(lm_measure.arguments("").parse_args(list(words)), scratch)


def test_a_benchmark_measures_the_model_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pulled model, once it is there; before that a sentence, and no other model in its place."""
    base_models = importlib.import_module("onward.serving.base_models")
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as ended:
        measured(monkeypatch, tmp_path)
    assert ended.value.code == 2
    assert "run `onward models pull smollm2`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        measured(monkeypatch, tmp_path, "--model", str(tmp_path / "absent"))

    folder, name = measured(monkeypatch, tmp_path / "random", "--quick")
    weights = load_file(folder / "model.safetensors")
    size = sum(tensor.size for tensor in weights.values())
    assert name == f"tiny, {size:,} parameters" and name in capsys.readouterr().err
    assert measured(monkeypatch, tmp_path / "again", "--model", "tiny")[1] == name

    pulled = tmp_path / "cache" / "smollm2-0.1.2"
    shutil.copytree(folder, pulled)
    base_models._mark(pulled, base_models.SMOLLM2)
    assert measured(monkeypatch, tmp_path) == (pulled, f"smollm2, {size:,} parameters")
    assert measured(monkeypatch, tmp_path, "--model", str(folder))[0] == folder


@pytest.mark.slow
def test_the_benchmark_of_algorithms_runs_on_the_present_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every algorithm, and demonstrations of a built-in environment, each as small as can be."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    program = importlib.import_module("lm_algorithms")
    file = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["lm_algorithms.py", "--quick", "--json", str(file)])
    assert program.main() == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    assert [(run["task"], run["algorithm"]) for run in result["runs"]] == [
        ("first", "reinforce"), ("first", "rloo"), ("first", "ppo"),
    ]  # fmt: skip
    spoken = program.demonstrated("crafting", 2)
    assert len(spoken) == 2 and all(talk[-1]["role"] == "assistant" for talk in spoken)


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
