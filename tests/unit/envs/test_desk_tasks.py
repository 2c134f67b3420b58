"""The panel: sizes, balance, splits by template, and no dependence on the interpreter's hash seed."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from onward.envs.desk import KINDS, SPLITS, TEMPLATES, demonstrations, panel_hash, tasks
from onward.envs.desk.tasks import CORES, OPENINGS
from onward.errors import NotFoundError
from onward.ids import is_id

SIZES = {"train": 200, "validation": 100, "test": 100}


def test_splits_share_phrases_but_no_wording() -> None:
    wordings = {split: {t.wording for t in TEMPLATES if t.split == split} for split in SPLITS}
    assert len(TEMPLATES) == 80 >= 40
    assert {split: len(found) for split, found in wordings.items()} == {
        "train": 40,
        "validation": 20,
        "test": 20,
    }
    assert not wordings["train"] & wordings["validation"]
    assert not wordings["train"] & wordings["test"]
    assert not wordings["validation"] & wordings["test"]
    for kind in KINDS:
        trained = " ".join(t.wording for t in TEMPLATES if t.split == "train" and t.kind == kind)
        assert all(phrase in trained for phrase in OPENINGS + CORES[kind])


@pytest.mark.parametrize("split", SPLITS)
def test_panel_is_balanced_over_kinds_and_without_repeats(split: str) -> None:
    panel = tasks(split, SIZES[split])
    assert Counter(t.kind for t in panel) == dict.fromkeys(KINDS, SIZES[split] // 5)
    assert len({t.instructions for t in panel}) == SIZES[split]
    assert len({t.task_id for t in panel}) == SIZES[split]
    assert all(is_id(t.task_id) for t in panel)
    own = {t.template_id for t in TEMPLATES if t.split == split}
    assert {t.template_id for t in panel} == own


def test_instructions_of_test_never_occur_in_training() -> None:
    trained = {t.instructions for seed in range(5) for t in tasks("train", 256, seed)}
    for split in ("validation", "test"):
        assert not trained & {t.instructions for t in tasks(split, 100)}


def test_demonstrations_use_training_templates_only() -> None:
    beginnings = {t.wording.split("{")[0] for t in TEMPLATES if t.split == "train"}
    for messages in demonstrations(100):
        assert messages[0]["role"] == "system"
        assert any(messages[1]["content"].startswith(b) for b in beginnings)
    wordings = {m[1]["content"] for m in demonstrations(200)}
    held_out = {t.instructions for split in ("validation", "test") for t in tasks(split, 100)}
    assert not wordings & held_out


def test_a_shorter_panel_is_the_beginning_of_a_longer_one() -> None:
    assert tasks("train", 30, 4) == tasks("train", 200, 4)[:30]
    assert tasks("train", 30, 4)[29].task_id == "desk-train-4-29"


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="train, validation, test"):
        tasks("dev", 1)


def test_panel_hash_separates_splits_and_seeds_and_ignores_the_hash_seed() -> None:
    assert len({panel_hash(split) for split in SPLITS} | {panel_hash("train", seed=1)}) == 4
    code = "from onward.envs.desk import panel_hash; print(panel_hash('test'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {panel_hash("test")}


def test_importing_the_desk_does_not_import_torch() -> None:
    code = "import sys, onward.envs.desk; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
