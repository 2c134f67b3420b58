"""``onward models check``, and the refusal of a bad model folder by every command that takes one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import run_command
from model_folders import BAD, bad_folder, good_model

from onward import children
from onward.bus.server import NatsServer
from onward.lm.model_folder import inspect
from onward.training.job import model_needs


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_model(tmp_path_factory.mktemp("models") / "good")


def test_a_good_folder_is_described(good: Path, tmp_path: Path) -> None:
    code, text = run_command(f"onward models check {good} --dir {tmp_path}")
    assert code == 0
    for fact in (
        "llama",
        "fast: ",
        "0.0 GB on disk",
        "answers end with",
        "<|im_end|>",
        "to train an adapter",
        "local: loads adapters; all answers can be trained on; streams",
    ):
        assert fact in text
    code, text = run_command(f"onward models check {good} --dir {tmp_path} --json")
    found = json.loads(text)
    assert code == 0
    assert found["servable"] is True and found["why"] is None
    assert found["parameters"] == inspect(good).parameters and found["dtype"] == "F32"
    assert {name: need["fits"] for name, need in found["memory"].items()} == {
        "serving": True, "lora": True, "full": True,
    }  # fmt: skip
    assert found["memory"]["serving"]["bytes"] == int(model_needs.needs(inspect(good))["serving"].total)


def test_the_limits_of_the_chosen_engine_are_shown(good: Path, tmp_path: Path) -> None:
    """SGLang's log-probs are before top-p and top-k: such answers are not trained on."""
    file = tmp_path / "onward.toml"
    file.write_text('[model]\nengine = "sglang"\n[sglang]\nurl = "http://127.0.0.1:1"\n')
    _, text = run_command(f"onward models check {good} --config {file} --dir {tmp_path}")
    shown = " ".join(text.split())
    assert "sglang: loads adapters; answers can be trained on without top-p, top-k or a grammar" in shown
    _, text = run_command(f"onward models check {good} --config {file} --dir {tmp_path} --json")
    assert json.loads(text)["engine"] == {
        "name": "sglang", "adapters": True, "token_ids": True, "logprobs": True, "truncated_logprobs": False,
        "streams": False, "trains": True,
    }  # fmt: skip


def test_memory_is_that_of_the_number_format_and_the_path_of_the_run(good: Path, tmp_path: Path) -> None:
    """By default those of the settings. Weights of 2 bytes in place of 4; no second copy without our pass."""
    file = tmp_path / "onward.toml"
    file.write_text('[model]\ndtype = "bfloat16"\npath = "transformers"\n')
    asked = {
        "": ("float32", "auto"),
        "--dtype bfloat16": ("bfloat16", "auto"),
        f"--config {file}": ("bfloat16", "transformers"),
        f"--config {file} --dtype auto": ("float32", "transformers"),
    }
    for options, (dtype, path) in asked.items():
        _, text = run_command(f"onward models check {good} --dir {tmp_path} --json {options}")
        found, expected = json.loads(text), model_needs.needs(inspect(good), dtype=dtype, path=path)  # type: ignore[arg-type]
        assert found["memory_dtype"] == dtype
        assert found["path"] == ("fast" if path == "auto" else path)
        for purpose, need in expected.items():
            assert found["memory"][purpose]["bytes"] == int(need.total)
    _, text = run_command(f"onward models check {good} --dir {tmp_path} --dtype bfloat16")
    assert "Memory in bfloat16, estimated" in text
    code, text = run_command(f"onward models check {good} --dir {tmp_path} --dtype int8")
    assert (code, text) == (2, "--dtype is 'int8': give one of auto, float32, bfloat16, float16.\n")


def test_an_alias_of_the_settings_is_checked(good: Path, tmp_path: Path) -> None:
    file = tmp_path / "onward.toml"
    file.write_text(f'[models.aliases]\n"qwen2.5-32b-instruct" = "{good}"\n')
    code, text = run_command(f"onward models check Qwen2.5-32B-Instruct --config {file} --json")
    assert (code, json.loads(text)["folder"]) == (0, str(good))


def test_a_model_that_does_not_fit_is_described_and_is_not_servable(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onward.cli import models_check

    monkeypatch.setattr(models_check, "free_memory", lambda: 300 << 20)
    code, text = run_command(f"onward models check {good} --dir {tmp_path}")
    assert code == 2
    assert "serving needs more memory than the 0.3 GB that are free" in text and "no" in text


def test_a_bad_folder_is_one_sentence_or_one_document(good: Path, tmp_path: Path) -> None:
    folder = bad_folder(good, tmp_path, "gptq")
    code, text = run_command(f"onward models check {folder}")
    assert code == 2 and text.count("\n") <= 1 and "quantised (gptq)" in text
    code, text = run_command(f"onward models check {folder} --json")
    document = json.loads(text)
    assert (code, document["servable"]) == (2, False) and "quantised (gptq)" in document["why"]


DOORS = {
    "up": "onward up --dir DATA",
    "run": "onward run gateway --dir DATA",
    "train": "onward train --algorithm rloo --env maze --model FOLDER --out DATA/run",
    "demo": "onward demo --model FOLDER --dir DATA",
    "check": "onward models check FOLDER --dir DATA",
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["pickle only", "vision", "no tokenizer", "too large", "unknown name"])
def test_no_command_starts_anything_for_a_model_that_cannot_be_used(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str, kind: str
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("something slow was started")

    monkeypatch.setattr(NatsServer, "start", started)
    monkeypatch.setattr(children, "start", started)
    if kind == "too large":
        from onward.cli import models_check

        folder, sentence = str(good), "0.3 GB are free|0.3 GB that are free"
        for module in (model_needs, models_check):
            monkeypatch.setattr(module, "free_memory", lambda: 300 << 20)
    elif kind == "unknown name":
        folder, sentence = "qwen2.5-32b-instruct", r"\[models.aliases\]"
    else:
        folder, sentence = str(bad_folder(good, tmp_path, kind)), BAD[kind][1]
    monkeypatch.setenv("RL_BASE_MODEL", folder)
    for port in ("ONWARD_HTTP__GATEWAY_PORT", "ONWARD_HTTP__API_PORT"):
        monkeypatch.setenv(port, "0")
    command = DOORS[door].replace("FOLDER", folder).replace("DATA", str(tmp_path / "data"))
    code, text = run_command(command)
    assert code == 2
    assert re.search(sentence, text), text
    assert "Traceback" not in text
