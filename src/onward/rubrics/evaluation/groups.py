"""Groups of criteria with their ids: one group for each preference and each evaluator of the workflow."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from onward.rubrics.evaluation.models import Evaluator, PreferenceWeights, WorkflowRubric
from onward.rubrics.language.free import StagedRubric


@dataclass(frozen=True)
class Group:
    """An evaluator, or a free rubric, in one of its two roles. Ids of the roles never meet."""

    id: str
    name: str
    kind: Literal["preference", "workflow"]
    evaluator: Evaluator | StagedRubric

    def criteria(self) -> Iterator[tuple[str, WorkflowRubric]]:
        """Yields (id, criterion) of an evaluator. A repeated name gets a number."""
        if isinstance(self.evaluator, StagedRubric):
            return
        seen: Counter[str] = Counter()
        for criterion in self.evaluator.rubrics:
            seen[criterion.name] += 1
            count = seen[criterion.name]
            number = f"#{count}" if count > 1 else ""
            yield f"{self.id}/{part_of_id(criterion.name)}{number}", criterion


def groups_of(
    preferences: PreferenceWeights | None, evaluators: Iterable[Evaluator | StagedRubric] | None
) -> list[Group]:
    """Returns the groups; preferences without an evaluator have none."""
    found = [
        Group(f"preference/{part_of_id(one.name)}", one.name, "preference", one.evaluator)
        for one in (preferences.preferences if preferences is not None else ())
        if one.evaluator is not None
    ]
    seen: Counter[str] = Counter()
    for evaluator in evaluators or ():
        seen[evaluator.name] += 1
        number = f"#{seen[evaluator.name]}" if seen[evaluator.name] > 1 else ""
        id_ = f"workflow/{part_of_id(evaluator.name)}{number}"
        found.append(Group(id_, evaluator.name, "workflow", evaluator))
    return found


def part_of_id(name: str) -> str:
    """Returns a name as it stands in an id, so that two criteria never have one id."""
    return name.replace("%", "%25").replace("/", "%2F").replace("#", "%23")


def seed_of(parts: Sequence[object]) -> int:
    """Returns a seed of 31 bits from parts: the engine's seed, an id, a time step."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
