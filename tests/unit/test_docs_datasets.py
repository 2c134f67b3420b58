"""The commands of docs/datasets.md, on a data folder with the dataset that a job has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_blocks import ROOT, blocks, run_blocks
from snapshot_folder import stored_dataset

pytestmark = pytest.mark.slow


def test_the_commands_of_the_page_run_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    stored_dataset(tmp_path / "onward-data")
    found = blocks(ROOT / "docs" / "datasets.md", "dataset")
    assert sum(block.text.count("$ onward datasets ") for block in found) == 6
    run_blocks(found)
