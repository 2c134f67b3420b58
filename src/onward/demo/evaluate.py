"""Test panel of the demonstration: held-out templates, run only at the start and the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from onward.context import Context
from onward.envs import desk
from onward.progress import Bar
from onward.release.validation import suite
from onward.serving.engines.registry import AdapterRegistry
from onward.suites.suite import ItemResult
from onward.training.signatures import Trust
from onward.training.spec.recipes import Recipe

TASKS = 100


@dataclass(frozen=True)
class Score:
    """Success over all tasks, and per kind of task."""

    success: float
    by_kind: dict[str, float]
    tries: dict[str, int] = field(default_factory=dict)


class TestPanel:
    """Test tasks and seeds, equal for every policy. Answers are sampled at temperature 1, as served."""

    __test__ = False  # not a pytest class

    def __init__(self, ctx: Context, recipe: Recipe, panels: int) -> None:
        """``panels``: panels of 100 tasks, each with tasks of its own."""
        self._ctx = ctx
        self._panels = panels
        self.decoding = f"sampled at temperature 1, as served, on {panels} x {TASKS} test tasks"
        self._registry = AdapterRegistry(
            ctx.bus, ctx.objects, ctx.settings.data_dir / "models", Trust.from_settings(ctx.settings)
        )
        self._max_tokens = recipe.max_tokens

    async def run(
        self, model_id: str | None, adapter_digest: str | None, stage: Bar, panels: int | None = None
    ) -> Score:
        """Measures the success of a released model, or of the base model alone if both arguments are None.
        ``panels``: fewer panels than usual."""
        panels = panels or self._panels
        results: list[ItemResult] = []
        async with suite.engine_of(self._ctx) as engine:
            if model_id is not None and adapter_digest is not None:
                folder = await self._registry.fetch(model_id, adapter_digest)
                await engine.load_adapter(adapter_digest, folder)
            for panel in range(panels):
                results += await suite.run_desk(
                    engine, adapter_digest, split="test", size=TASKS, seed=panel, max_tokens=self._max_tokens
                )
                stage.update(panel + 1, total=panels)
        return score(results)

    def best_constant(self) -> float:
        """Returns the success of the best policy that always gives the same answers."""
        tasks = [task for panel in range(self._panels) for task in desk.tasks("test", TASKS, panel)]
        return max(desk.success_rate(policy, tasks) for policy in desk.constant_policies().values())


def score(results: list[ItemResult]) -> Score:
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for result in results:
        by_kind[result.kind].append(result.success)
    return Score(
        success=sum(result.success for result in results) / len(results),
        by_kind={kind: sum(found) / len(found) for kind, found in sorted(by_kind.items())},
        tries={kind: len(found) for kind, found in by_kind.items()},
    )
