"""The rubric writer as its users see it: load a folder, give it a task, get a rubric.

A writer's folder is an ordinary model folder, or an adapter with the name of its base model, and
``writer.json``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from onward.errors import ConfigError
from onward.files import read_json, write_whole
from onward.lm import paths
from onward.rubrics.language import InvalidRubric, Rubric
from onward.rubrics.policy.episodes import Ask, Attempt, Player, StakeholderOf, answers_of
from onward.rubrics.policy.plan import WRITER_FILE
from onward.rubrics.policy.warm_start import ADAPTER
from onward.rubrics.tasks import RubricTask


class Writer:
    """A trained policy that writes rubrics."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def write(
        self, task: RubricTask, ask: Ask | None = None, *, temperature: float = 0.0, seed: int = 0
    ) -> Rubric:
        """Returns the rubric for ``task``. ``ask(topic)`` answers the writer's questions; None: the task's
        own stakeholder does. Raises InvalidRubric if the writer's text was no rubric."""
        one = self.attempt([task], ask, temperature=temperature, seed=seed)[0]
        if one.rubric is None:
            raise InvalidRubric(one.problem)
        return one.rubric

    def attempt(
        self, tasks: Sequence[RubricTask], ask: Ask | None = None, *, temperature: float = 0.0, seed: int = 0
    ) -> list[Attempt]:
        """Returns whole episodes, with the questions and the text of each, in the order of ``tasks``."""
        stakeholder: StakeholderOf = answers_of if ask is None else lambda _: ask
        return self.player.play(tasks, seed=seed, temperature=temperature, stakeholder=stakeholder)


def load_writer(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Writer:
    """Loads the writer in ``folder``. Raises ConfigError if there is none."""
    return Writer(load_player(folder, device=device, dtype=dtype))


def load_player(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Player:
    """Loads the policy of the writer in ``folder``, to play with or to train on."""
    folder = Path(folder)
    facts = read_json(folder / WRITER_FILE)
    if not isinstance(facts, dict) or not {"questions", "ordered"} <= set(facts):
        found = "an unreadable" if is_whole(folder) else "no"
        raise ConfigError(f"{folder} has {found} {WRITER_FILE}: give the folder 'writer' of a rubrics run.")
    base = facts.get("base")
    policy = paths.load(folder if base is None else Path(base), device=device, dtype=dtype)
    if base is not None:
        policy.add_adapter(ADAPTER, folder)
    adapter = None if base is None else ADAPTER
    return Player(
        policy,
        adapter,
        questions=int(facts["questions"]),
        notes=bool(facts.get("notes", False)),
        ordered=bool(facts["ordered"]),
    )


def is_whole(folder: Path) -> bool:
    """Returns whether ``folder`` has a writer that was saved to its end."""
    return (folder / WRITER_FILE).is_file()


def save_writer(player: Player, folder: Path) -> None:
    """Writes the player's policy to ``folder``; ``writer.json`` comes last, so a folder with it is whole."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = None
    if player.adapter is None:
        player.policy.save(folder)
    else:
        base = str(player.policy.folder.resolve())
        player.policy.save_adapter(player.adapter, folder)
    facts = {
        "base": base,
        "questions": player.questions,
        "notes": player.notes,
        "ordered": player.ordered,
    }
    write_whole(folder / WRITER_FILE, (json.dumps(facts, indent=2) + "\n").encode())
