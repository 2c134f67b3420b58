"""Saving a model draws no bar of transformers, and leaves its setting as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.utils import logging

from onward.lm.any_model.policy import AnyPolicy
from onward.lm.tiny import build_tiny


@pytest.mark.parametrize("shown", [True, False])
def test_a_saved_model_draws_no_bar_and_other_code_keeps_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setattr(logging, "_tqdm_active", shown)
    build_tiny(tmp_path / "tiny", ["one two three"], hidden=16, layers=1, heads=2, intermediate=16)
    policy = AnyPolicy.load(tmp_path / "tiny")  # the load switches bars off for good
    monkeypatch.setattr(logging, "_tqdm_active", shown)
    policy.save(tmp_path / "saved")
    assert logging.is_progress_bar_enabled() == shown
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    assert "model shards" not in capfd.readouterr().err
