"""The warm start of a rubric writer: its base model, exercises in reading, and careless demonstrations.

For ``tiny`` the base is made from the texts of the training families, and all weights are trained. Another
model keeps its weights and gets an adapter.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onward.lm import paths, sft
from onward.lm.model import LanguageModel
from onward.lm.tokens import TokenRow
from onward.rubrics.language import WEIGHTS
from onward.rubrics.policy import demonstrations, exercises, prompts, vocabulary
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.policy.plan import TINY, Plan
from onward.rubrics.tasks import CHECKS, DIMENSIONS, TOPICS, Task

ADAPTER = "writer"
_EXERCISES = 5_000
"""Most exercises that are made; longer reading repeats them."""
_TEXTS = 32
"""Tasks of each family whose briefs and answers the vocabulary is made of."""

Emit = Callable[..., None]


def untrained(plan: Plan, tasks: Sequence[Task], folder: Path) -> tuple[LanguageModel, str | None]:
    """Returns the model before any training, with the name of its new adapter. The base of ``tiny`` is
    written to ``folder``."""
    if plan.model == TINY:
        vocabulary.build(folder, _texts(tasks), _words(), plan.size, plan.seed)
        return paths.load(folder), None
    policy = paths.load(Path(plan.model))
    policy.new_adapter(ADAPTER, plan.lora_rank, 2.0 * plan.lora_rank, seed=plan.seed)
    return policy, ADAPTER


def warm_up(plan: Plan, player: Player, tasks: Sequence[Task], emit: Emit) -> None:
    """Trains the player's policy on exercises in reading, and then on demonstrations."""
    start = plan.warm_start
    reading = start.reading_steps if player.notes else 0
    total = reading + start.steps
    if reading:
        count = min(reading * start.reading_rows, _EXERCISES)
        rows = list(exercises.exercise_rows(player, tasks, count, plan.seed))
        for step, loss in _fitted(player, rows, start.reading_rate, start.reading_rows, reading, plan.seed):
            emit("warm_start", step=step, total=total, loss=loss)
    rng = random.Random(f"{plan.seed}/demonstrations")
    shown = [rng.choice(tasks) for _ in range(start.demonstrations)]
    rows = list(demonstrations.rows(player, shown, start.care, plan.seed))
    for step, loss in _fitted(player, rows, start.learning_rate, start.batch_rows, start.steps, plan.seed):
        emit("warm_start", step=reading + step, total=total, loss=loss)


def _fitted(
    player: Player, rows: Sequence[TokenRow], rate: float, batch: int, steps: int, seed: int
) -> Iterator[tuple[int, float]]:
    """Trains on ``rows``, as often as ``steps`` need; yields the number and the loss of each step."""
    for done in sft.fit(
        player.policy,
        player.adapter,
        rows,
        learning_rate=rate,
        batch_rows=batch,
        epochs=math.ceil(steps * batch / len(rows)),
        max_steps=steps,
        micro_batch_tokens=8192,
        schedule="linear",
        warmup_steps=min(10, steps // 2),
        seed=seed,
    ):
        yield done.step, done.loss


def _texts(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Returns, by family, briefs with their checks and all answers of stakeholders, of a few tasks each."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for task in tasks:
        if task.seed < _TEXTS:
            found[task.family] += [prompts.brief_of(task.brief, task.active)]
            found[task.family] += [prompts.answered(topic, answers_of(task)(topic)) for topic in TOPICS]
    return found


def _words() -> list[str]:
    """Returns pieces of text that contain every word of rubrics and questions, as JSON has them."""
    words = [f'{{"ask": "{topic}"}}' for topic in (*TOPICS, prompts.ENOUGH)]
    for kind in CHECKS.values():
        words += [f'"{word}"' for word in (kind.name, *kind.args)]
    words += ['{"criteria": [{"check": ', '}, {"check": ', ', "arg": ', ', "weight": ', "}]}"]
    words.append(prompts.notes({}))
    words += [prompts.notes(dict.fromkeys(DIMENSIONS, level)) for level in prompts.IMPORTANCE]
    return [*words, *map(str, WEIGHTS)]
