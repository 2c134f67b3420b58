from __future__ import annotations

import pytest
from rubric_writer import toy_plan

from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.policy.warm_start import untrained


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    """A player of an untrained tiny network."""
    policy, adapter = untrained(toy_plan(), training_tasks((), 32), tmp_path_factory.mktemp("tiny-writer"))
    return Player(policy, adapter)
