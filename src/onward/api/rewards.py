"""``GET /rewards/{trajectory_id}``: the output of ``onward rewards explain --json``, over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI

from onward.context import Context
from onward.http.app import require
from onward.ids import check_id
from onward.reward.scoring.explain import look_up, unknown_id


def add_to(app: FastAPI, ctx: Context) -> None:
    """Adds the route, for callers with the scope ``read``; 404 for a trajectory that was never stored (and
    for a session, whose trajectories are then named)."""

    @app.get("/rewards/{trajectory_id}", dependencies=[Depends(require("read"))])
    async def explain(trajectory_id: str) -> dict[str, Any]:
        """Explains the reward of a trajectory. Scope: read."""
        name = check_id(trajectory_id, "Trajectory id")
        found = await look_up(ctx.warehouse, name, ctx.settings.reward.weights())
        if found is None:
            raise await unknown_id(ctx.warehouse, name)
        return found
