"""The test panel of the demonstration: 100 held-out tasks, run only at the start and the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from onward.context import Context
from onward.demo.display import Stage
from onward.envs import desk
from onward.release import suite
from onward.training.recipes import Recipe

TASKS = 100
TRIES = 2


@dataclass(frozen=True)
class Score:
    """Success over all tries, and per kind of task."""

    success: float
    by_kind: dict[str, float]
    tries: dict[str, int] = field(default_factory=dict)


class TestPanel:
    """Answers are sampled at temperature 1, as they are served; seeds are equal for every policy."""

    __test__ = False  # not a pytest class
    decoding = f"sampled at temperature 1, as served; {TASKS} test tasks, {TRIES} tries each"

    def __init__(self, ctx: Context, recipe: Recipe, seed: int) -> None:
        self._ctx = ctx
        self._recipe = recipe
        self._seed = seed

    async def run(self, adapter_digest: str | None, stage: Stage) -> Score:
        results = []
        for attempt in range(TRIES):
            results += await suite.run_desk(
                self._ctx,
                adapter_digest,
                split="test",
                size=TASKS,
                seed=self._seed * TRIES + attempt,
                max_tokens=self._recipe.max_tokens,
            )
            stage.update(attempt + 1, total=TRIES)
        by_kind: defaultdict[str, list[bool]] = defaultdict(list)
        for result in results:
            by_kind[result.kind].append(result.success)
        return Score(
            success=sum(result.success for result in results) / len(results),
            by_kind={kind: sum(found) / len(found) for kind, found in sorted(by_kind.items())},
            tries={kind: len(found) for kind, found in by_kind.items()},
        )

    def best_constant(self) -> float:
        """Success of the best policy that always gives the same answer."""
        tasks = desk.tasks("test", TASKS)
        return max(desk.success_rate(policy, tasks) for policy in desk.constant_policies())
