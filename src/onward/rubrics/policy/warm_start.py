"""The warm start of a rubric writer: its base model, and supervised learning of demonstrations.

For ``tiny`` the base is made from the texts of the training families, and all weights are trained. Another
model keeps its weights and gets an adapter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from onward.lm import paths, sft
from onward.lm.model import LanguageModel
from onward.rubrics.language import WEIGHTS
from onward.rubrics.policy import demonstrations, prompts, vocabulary
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.policy.plan import TINY, Plan
from onward.rubrics.tasks import CHECKS, DIMENSIONS, TOPICS, Task

ADAPTER = "writer"
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
    """Trains the player's policy on demonstrations."""
    start = plan.warm_start
    rows = list(demonstrations.rows(player, tasks, start.care, start.demonstrations, plan.seed))
    for done in sft.fit(
        player.policy,
        player.adapter,
        rows,
        learning_rate=start.learning_rate,
        batch_rows=start.batch_rows,
        epochs=math.ceil(start.steps * start.batch_rows / start.demonstrations),
        max_steps=start.steps,
        micro_batch_tokens=8192,
        schedule="linear",
        warmup_steps=min(40, start.steps // 2),
        seed=plan.seed,
    ):
        emit("warm_start", step=done.step, total=start.steps, loss=done.loss)


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
