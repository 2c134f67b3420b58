"""The measured traffic of a release, asked of the real embedded warehouse."""

from __future__ import annotations

from pathlib import Path

import pytest
from trajectory_store import DAY, store, trajectory

from onward.release.traffic import sessions_per_day
from onward.warehouse import EmbeddedWarehouse


async def test_sessions_a_day_are_those_of_the_last_three_days(tmp_path: Path) -> None:
    embedded = EmbeddedWarehouse(tmp_path)
    warehouse = await embedded.start()
    assert await sessions_per_day(warehouse, DAY) is None, "no traffic"
    await store(warehouse, [trajectory("old", hours=-80)], [])
    assert await sessions_per_day(warehouse, DAY) is None, "none for three days"

    soon = [trajectory("minutes-1", hours=-0.1), trajectory("minutes-2", hours=-0.1)]
    await store(warehouse, soon, [])
    assert await sessions_per_day(warehouse, DAY) == pytest.approx(2 * 24), "six minutes count as an hour"

    again = trajectory("again", hours=-9, session_id="s-first")
    await store(warehouse, [trajectory("first", hours=-48), again], [])
    assert await sessions_per_day(warehouse, DAY) == pytest.approx(3 / 2), "three sessions in two days"

    await warehouse.close()
    await embedded.stop()
