"""How much of a large store is in memory at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward.export import records
from onward.warehouse.trajectory_queries import TrajectorySelection


class Store:
    """As much of a warehouse as is asked for documents: each of ``megabytes``."""

    def __init__(self, megabytes: float) -> None:
        self._text = "x" * int(megabytes * (1 << 20))
        self.asked: list[int] = []

    async def query(self, sql: str, ids: list[str]) -> list[dict[str, Any]]:
        if "reward_history_v" in sql:
            return []
        self.asked.append(len(ids))
        return [
            {"trajectory_id": name, "payload": json.dumps({"trajectory_id": name, "text": self._text})}
            for name in reversed(ids)
            if name != "gone"
        ]


async def test_documents_come_in_portions_of_a_few_megabytes_and_in_order() -> None:
    store, ids = Store(1.0), [f"t{n}" for n in range(40)]
    found = [record.trajectory["trajectory_id"] async for record in records.documents(store, [*ids, "gone"])]  # type: ignore[arg-type]
    assert found == ids
    assert store.asked[0] == 16 and set(store.asked[1:-1]) == {7}  # 8 MiB hold seven and their keys


async def test_small_documents_come_in_large_portions() -> None:
    store = Store(0.0)
    found = [one async for one in records.documents(store, [f"t{n}" for n in range(600)])]  # type: ignore[arg-type]
    assert len(found) == 600 and store.asked == [16, 256, 256, 72]


class Grouped(Store):
    """Trajectories ``g0-0``, ``g0-1`` …: so many of each group, in pages as they are asked for."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(0.0)
        self._keys = [(f"g{g}", f"g{g}-{n}") for g, size in enumerate(sizes) for n in range(size)]

    async def query(self, sql: str, **given: Any) -> list[dict[str, Any]]:
        if "group_key" not in sql:
            return await super().query(sql, given["ids"])
        rest = [one for one in self._keys if one > (given["group"], given["name"])]
        return [{"group_key": key, "trajectory_id": name} for key, name in rest[: given["n"]]]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_groups_are_whole_whatever_the_page_and_what_is_beyond_the_bound_is_counted(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ID_PAGE", page)
    store = Grouped(1, 5, 2, 7)
    found = [
        ([one.trajectory["trajectory_id"] for one in members], beyond)
        async for members, beyond in records.groups(store, TrajectorySelection(), 3)  # type: ignore[arg-type]
    ]
    assert found == [
        (["g0-0"], 0),
        (["g1-0", "g1-1", "g1-2"], 2),
        (["g2-0", "g2-1"], 0),
        (["g3-0", "g3-1", "g3-2"], 4),
    ]
