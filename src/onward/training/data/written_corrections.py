"""Corrections that people wrote, joined with the trajectories of one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onward.contracts import Feedback, decode
from onward.reward.role.feedback import SESSION_TRAJECTORIES
from onward.reward.stored_feedback import as_time
from onward.training.data import corrections
from onward.training.data.admission import ScoredTrajectory
from onward.warehouse import Warehouse, reward_queries


async def with_corrections(w: Warehouse, page: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """Returns the page with the last correction of each trajectory; one of a whole session applies to its
    last work."""
    names = {item.trajectory["trajectory_id"] for item in page}
    sessions = {item.trajectory["session_id"] for item in page}
    rows = await reward_queries.feedback_about(w, names, sessions)
    rows = [row for row in rows if row["signal"] == corrections.SIGNAL]
    whole = {row["session_id"] for row in rows if not row["trajectory_id"]}
    work = await reward_queries.trajectories_of_sessions(w, whole, SESSION_TRAJECTORIES)
    said = [(decode(row["payload"].encode(), Feedback), as_time(row["received_at"])) for row in rows]
    found = corrections.match_to_trajectories(said, work.values())
    return [replace(item, correction=found.get(item.trajectory["trajectory_id"])) for item in page]
