"""The warm start of a rubric writer: its base model, and supervised learning of careless demonstrations.

For ``tiny`` the base is made from the texts of the training families, and all weights are trained. Another
model keeps its weights and gets an adapter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onward.lm import paths, sft
from onward.lm.model import LanguageModel
from onward.rubrics.language import WEIGHTS
from onward.rubrics.policy import demonstrations, prompts, vocabulary
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.policy.plan import TINY, Plan
from onward.rubrics.tasks import CHECKS, Task

ADAPTER = "writer"
_TEXTS = 600
"""Tasks whose briefs and answers the vocabulary is made of."""

Emit = Callable[..., None]


def untrained(plan: Plan, tasks: Sequence[Task], folder: Path) -> tuple[LanguageModel, str | None]:
    """Returns the model before any training, with the name of its new adapter. The base of ``tiny`` is
    written to ``folder``."""
    if plan.model == TINY:
        some = random.Random(f"{plan.seed}/texts").choices(tasks, k=_TEXTS)
        topics = sorted({topic for task in some for topic in task.topics})
        vocabulary.build(folder, _texts(some), _words(topics), plan.size, plan.seed)
        return paths.load(folder), None
    policy = paths.load(Path(plan.model))
    policy.new_adapter(ADAPTER, plan.lora_rank, 2.0 * plan.lora_rank, seed=plan.seed)
    return policy, ADAPTER


def warm_up(plan: Plan, player: Player, tasks: Sequence[Task], emit: Emit) -> None:
    """Trains the player's policy on demonstrations."""
    start = plan.warm_start
    rng = random.Random(f"{plan.seed}/demonstrations")
    shown = [rng.choice(tasks) for _ in range(start.steps * start.batch_rows)]
    rows = list(demonstrations.rows(player, shown, start.care, plan.seed))
    for done in sft.fit(
        player.policy,
        player.adapter,
        rows,
        learning_rate=start.learning_rate,
        batch_rows=start.batch_rows,
        schedule="linear",
        warmup_steps=min(10, start.steps // 2),
        seed=plan.seed,
    ):
        emit("warm_start", step=done.step, total=start.steps, loss=done.loss)


def _texts(tasks: Sequence[Task]) -> Iterator[str]:
    """Yields briefs with their checks, and all answers of stakeholders."""
    for task in tasks:
        yield prompts.brief_of(task.brief, task.active)
        for topic in task.topics:
            yield answers_of(task)(topic)


def _words(topics: Sequence[str]) -> list[str]:
    """Returns pieces of text that contain every word of rubrics and questions, as JSON has them."""
    words = [f'{{"ask": "{topic}"}}' for topic in (*topics, prompts.ENOUGH)]
    for name, arguments in CHECKS.items():
        words += [f'"{word}"' for word in (name, *arguments)]
    words += ['{"criteria": [{"check": ', '}, {"check": ', ', "arg": ', ', "weight": ', "}]}"]
    return [*words, *map(str, WEIGHTS)]
