"""Precision on real agent logs: at most one false positive per 100 KB, and every change has a verdict.

The files are public trajectories of other projects; where the folder is absent those tests are skipped.
"""

from __future__ import annotations

import json
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import redaction_corpus as corpus
from onward.redaction import redact

ROOT = Path(__file__).parents[3]
FILES = ROOT.parent / "shared" / "data" / "trajectories"

TRUE_HITS: dict[str, dict[str, int]] = {
    "sweagent-1.traj": {"USER": 1},
    "sweagent-2.traj": {"USER": 1},
    "sweagent-3.traj": {"EMAIL": 7},
}
"""file → kind → places that hold what the kind says. USER: the login name of whoever reported the issue,
in a path below /Users. EMAIL: the address of a package's author, in its setup.py, shown by a tool."""
FALSE_POSITIVES: dict[str, dict[str, int]] = {}
"""file → kind → places that were changed and should not be."""

needs_files = pytest.mark.skipif(not FILES.is_dir(), reason="the sample trajectories are not here")


def _documents() -> dict[str, Any]:
    found = sorted(file for file in FILES.glob("*") if file.suffix in (".json", ".traj"))
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in found}


def _together(*tables: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    names = {name for table in tables for name in table}
    return {
        name: {kind: count for table in tables for kind, count in table.get(name, {}).items()}
        for name in names
    }


@needs_files
def test_every_change_on_real_files_is_listed_with_a_verdict() -> None:
    counts = {name: redact(document).counts for name, document in _documents().items()}
    changed = {name: found for name, found in counts.items() if found}
    assert changed == _together(TRUE_HITS, FALSE_POSITIVES)


@needs_files
def test_at_most_one_false_positive_per_100_kb() -> None:
    size = sum(len("\n".join(corpus.texts(document)).encode()) for document in _documents().values())
    false = sum(count for found in FALSE_POSITIVES.values() for count in found.values())
    assert size > 400_000
    assert false <= size / 100_000


@needs_files
def test_real_files_keep_structure_and_a_second_run_changes_nothing() -> None:
    for name, document in _documents().items():
        once = redact(document).document
        assert corpus.kept(document, once), name
        assert redact(once).document == once, name


@needs_files
def test_a_planted_secret_is_found_in_every_real_file() -> None:
    """One of each layer, in the last text of the file."""
    planted = [
        case for case in corpus.cases(5) if case.kind in ("github personal", "flag password", "iban DE")
    ]
    for name, document in _documents().items():
        for case in planted:
            after = redact({"log": document, "last": corpus.in_context(case, "full stop")}).document
            assert not corpus.leaked(case, after), (name, case.kind)


@pytest.mark.long
def test_the_sources_of_pythons_library_stay() -> None:
    """11 MB of code full of words such as password and token. Addresses and authors go rightly;
    everything else that changes counts as false, example passwords in docstrings included."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(file.parts)]
    size, changed = 0, Counter[str]()
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        size += len(text)
        changed.update(redact([text]).counts)
    false = {kind: count for kind, count in changed.items() if kind not in ("EMAIL", "PERSON")}
    assert size > 5_000_000
    assert sum(false.values()) <= size / 500_000, false
