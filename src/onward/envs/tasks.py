"""Names of tasks, their splits, and the hash that identifies the tasks of a measured success rate.

A task is named by split, seed and index and by nothing else; its content is a function of that name.
``split_of`` divides by content, so that no draw, of any seed, can bring a held-out task into training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

SPLITS = ("train", "validation", "test")
"""Policies are trained on the first, chosen on the second, reported on the third."""

_TENTHS = {0: "test", 1: "validation"}


@dataclass(frozen=True, order=True)
class TaskRef:
    """One task of an environment: the ``index``-th of ``split`` in the panel drawn with ``seed``."""

    environment: str
    split: str
    index: int
    seed: int = 0

    @property
    def task_id(self) -> str:
        """Id such as ``maze-test-0-17``; usable as an id everywhere in Onward."""
        return f"{self.environment}-{self.split}-{self.seed}-{self.index}"


def split_of(content: str) -> str:
    """Returns the split of a task with this content: a tenth test, a tenth validation, the rest train."""
    digest = hashlib.sha256(content.encode()).digest()
    return _TENTHS.get(int.from_bytes(digest[:8], "big") % 10, "train")


def panel_hash(definitions: Iterable[object]) -> str:
    """Returns SHA-256 over the canonical JSON of tasks' definitions, in their order."""
    rows = json.dumps(list(definitions), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(rows.encode()).hexdigest()
