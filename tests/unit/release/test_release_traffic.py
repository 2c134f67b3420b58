"""Measured traffic, without a warehouse that answers."""

from datetime import UTC, datetime
from typing import Any

from onward.errors import WarehouseError
from onward.release.traffic import sessions_per_day


class Away:
    async def query(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        raise WarehouseError("The warehouse is away.")


async def test_traffic_is_unknown_while_the_warehouse_is_away() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert await sessions_per_day(Away(), now) is None  # type: ignore[arg-type]
