"""The warm start of a rubric writer: its base model, and supervised learning of demonstrations.

For ``tiny`` the base is made from the texts of the training families, and all weights are trained. Another
model keeps its weights and gets an adapter.

Invariants: base, adapter and demonstrations follow from the plan alone, and a step from them, its number and
the saved state. A warm start that is killed ends with the same policy when it is begun again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from onward.errors import TrainingError
from onward.lm import paths, sft
from onward.lm.model import LanguageModel
from onward.lm.tokens import TokenRow
from onward.rubrics.language import WEIGHTS
from onward.rubrics.language.writing import BETWEEN, CLOSING, OPENING, TO_ARGUMENT, TO_WEIGHT
from onward.rubrics.policy import demonstrations, prompts, vocabulary
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.policy.plan import TINY, Plan
from onward.rubrics.tasks import CHECKS, DIMENSIONS, TOPICS, RubricTask
from onward.saved_state import StateFolder

ADAPTER = "writer"
_TEXTS = 32
"""Tasks of each family whose briefs and answers the vocabulary is made of."""
_REPORTED = 100
"""Demonstrations from one event to the next while they are made."""

Emit = Callable[..., None]


def untrained(plan: Plan, tasks: Sequence[RubricTask], folder: Path) -> tuple[LanguageModel, str | None]:
    """Returns the model before any training, with the name of its new adapter. The base of ``tiny`` is
    written to ``folder``."""
    if plan.model == TINY:
        vocabulary.build(folder, _texts(tasks), _words(), plan.size, plan.seed)
        return paths.load(folder), None
    policy = paths.load(Path(plan.model))
    policy.new_adapter(ADAPTER, plan.lora_rank, 2.0 * plan.lora_rank, seed=plan.seed)
    return policy, ADAPTER


def warm_up(
    plan: Plan,
    player: Player,
    tasks: Sequence[RubricTask],
    state: StateFolder,
    emit: Emit,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Trains the player's policy on demonstrations, or goes on from ``state``.

    Returns False if ``stop`` ended it before its last step; its state is saved then. Raises TrainingError
    (CONVERGENCE) after a step that was not finite.
    """
    start = plan.warm_start
    rows = _demonstrations(plan, player, tasks, emit)
    learner = sft.SupervisedLearner(player.policy, player.adapter, _config(plan))
    if state.current is not None:
        learner.restore(state.current)
    for done in learner.update(rows):
        if done.skipped:
            raise TrainingError(
                "CONVERGENCE", "A step of the warm start was not finite: lower warm_start.learning_rate."
            )
        emit("warm_start", step=done.step, total=start.steps, loss=done.loss)
        halts = stop()
        if done.step < start.steps and (halts or done.step % plan.save_every == 0):
            state.save(learner.save, {"done": done.step})
            if halts:
                return False
    return True


def _demonstrations(plan: Plan, player: Player, tasks: Sequence[RubricTask], emit: Emit) -> list[TokenRow]:
    start, rows = plan.warm_start, list[TokenRow]()
    for row in demonstrations.rows(player, tasks, start.care, start.demonstrations, plan.seed):
        rows.append(row)
        if len(rows) % _REPORTED == 0 or len(rows) == start.demonstrations:
            emit("demonstrations", step=len(rows), total=start.demonstrations)
    return rows


def _config(plan: Plan) -> sft.SftConfig:
    start = plan.warm_start
    return sft.SftConfig(
        start.learning_rate,
        start.batch_rows,
        epochs=math.ceil(start.steps * start.batch_rows / start.demonstrations),
        max_steps=start.steps,
        micro_batch_tokens=8192,
        schedule="linear",
        warmup_steps=min(40, start.steps // 2),
        seed=plan.seed,
    )


def _texts(tasks: Sequence[RubricTask]) -> dict[str, list[str]]:
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
    words += [OPENING, BETWEEN, TO_ARGUMENT, TO_WEIGHT, CLOSING]
    words.append(prompts.notes({}))
    words += [prompts.notes(dict.fromkeys(DIMENSIONS, level)) for level in prompts.IMPORTANCE]
    return [*words, *map(str, WEIGHTS)]
