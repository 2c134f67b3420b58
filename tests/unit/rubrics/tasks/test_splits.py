"""Splits share nothing, cannot change unseen, and a training process reads no held-out family."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onward.errors import TamperedError
from onward.rubrics.tasks import BLOCK, HELD_OUT_FAMILIES, TRAINING_FAMILIES, make_task
from onward.rubrics.tasks import splits as module
from onward.rubrics.tasks.phrases import ALL_STATED, ASPECTS, BRIEF
from onward.rubrics.tasks.splits import NGRAM, overlaps, splits


def test_the_file_is_pinned_and_follows_from_the_names() -> None:
    found = splits()
    assert set(found.train) | set(found.validation) == set(TRAINING_FAMILIES)
    assert not set(found.train) & set(found.validation)
    assert set(found.held_out) == set(HELD_OUT_FAMILIES)
    assert (len(found.train), len(found.validation), len(found.held_out)) == (20, 4, 8)
    ranked = sorted(TRAINING_FAMILIES, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert sorted(ranked[:4]) == list(found.validation)
    assert found.seeds == {
        "train": 0, "new_seeds": BLOCK, "new_preferences": 2 * BLOCK, "new_parameters": 3 * BLOCK
    }  # fmt: skip
    assert module.proposed() == module.FILE.read_bytes()


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "splits.json"
    changed.write_bytes(module.FILE.read_bytes().replace(b"sla_report", b"sla_repart"))
    monkeypatch.setattr(module, "FILE", changed)
    with pytest.raises(TamperedError, match=r"splits.json is not the file that was pinned"):
        splits.__wrapped__()


def test_training_shares_nothing_with_the_held_out_families() -> None:
    train = [make_task(family, seed) for family in TRAINING_FAMILIES for seed in range(8)]
    held_out = [make_task(family, seed) for family in HELD_OUT_FAMILIES for seed in range(8)]
    assert overlaps(train, held_out) == []
    trained = [task for task in train if task.family in splits().train]
    choosing = [task for task in train if task.family in splits().validation]
    assert (len(trained), len(choosing)) == (160, 32)
    assert overlaps(trained, choosing) == []


def test_two_mentions_of_the_artefact_are_at_most_eleven_words_apart() -> None:
    """So a run of thirteen words of the sentences about preferences has a word of its own family."""
    templates = [*(one for level in BRIEF.values() for one in level), ALL_STATED]
    longest = max((one for aspects in ASPECTS.values() for one in aspects), key=lambda one: len(one.split()))
    before, after = zip(*(one.format(noun="|", aspect=longest).split("|") for one in templates), strict=True)
    most = [max(len(re.findall(r"[\w-]+", one)) for one in side) for side in (before, after)]
    assert sum(most) <= NGRAM - 2  # two families may share one word of their names, such as plan


@pytest.mark.long
def test_training_shares_nothing_with_the_held_out_families_over_many_seeds() -> None:
    train = [make_task(family, seed) for family in TRAINING_FAMILIES for seed in range(50)]
    held_out = [make_task(family, seed) for family in HELD_OUT_FAMILIES for seed in range(50)]
    assert overlaps(train, held_out) == []


def test_training_shares_no_truth_or_artefact_with_the_other_splits() -> None:
    train = [make_task(family, seed) for family in TRAINING_FAMILIES[:6] for seed in range(8)]
    for name in ("new_preferences", "new_parameters"):
        start = splits().seeds[name]
        other = [make_task(family, start + seed) for family in TRAINING_FAMILIES[:6] for seed in range(8)]
        kinds = {found.split()[0] for found in overlaps(train, other)}
        assert kinds <= {"family", "words"}  # the families are the same by design


def test_every_kind_of_overlap_is_found() -> None:
    task, other = make_task("risk_register", 1), make_task("training_plan", 1)
    assert {found.split()[0] for found in overlaps([task], [task])} == {
        "family",
        "words",
        "truth",
        "artefact",
    }
    copied = replace(other, brief=f"{other.brief} {' '.join(task.brief.split()[-14:])}")
    assert {found.split()[0] for found in overlaps([task], [copied])} == {"words"}
    assert {found.split()[0] for found in overlaps([task], [replace(task, family="ab_readout")])} >= {"truth"}


def test_a_training_process_reads_no_held_out_family() -> None:
    code = (
        "import sys\n"
        "from onward.rubrics.tasks import TRAINING_FAMILIES, TaskStakeholder, make_task\n"
        "from onward.rubrics.tasks import baselines, splits\n"
        "splits.splits()\n"
        "for name in TRAINING_FAMILIES:\n"
        "    task = make_task(name, 1)\n"
        "    TaskStakeholder(task).ask('accuracy'); baselines.nearest_copy(task)\n"
        "    task.build(task.probes()[0])\n"
        "print('onward.rubrics.tasks.held_out' in sys.modules)\n"
        "make_task('training_plan', 1)\n"
        "print('onward.rubrics.tasks.held_out' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")
