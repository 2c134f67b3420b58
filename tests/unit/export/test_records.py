"""How much of a large store is in memory at a time."""

from __future__ import annotations

import json
from typing import Any

from onward.export import records


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
            {"trajectory_id": name, "payload": json.dumps({"id": name, "text": self._text})}
            for name in reversed(ids)
            if name != "gone"
        ]


async def test_documents_come_in_portions_of_a_few_megabytes_and_in_order() -> None:
    store, ids = Store(1.0), [f"t{n}" for n in range(40)]
    found = [record.trajectory["id"] async for record in records.documents(store, [*ids, "gone"])]  # type: ignore[arg-type]
    assert found == ids
    assert store.asked[0] == 16 and set(store.asked[1:-1]) == {7}  # 8 MiB hold seven and their keys


async def test_small_documents_come_in_large_portions() -> None:
    store = Store(0.0)
    found = [one async for one in records.documents(store, [f"t{n}" for n in range(600)])]  # type: ignore[arg-type]
    assert len(found) == 600 and store.asked == [16, 256, 256, 72]
