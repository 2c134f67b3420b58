"""Converts between warehouse rows and scoring: a stored trajectory in, a reward and its row out. Pure.

Invariants: a stored reward is never computed again under the same id. Its payload is published as it is, and
``restore`` adds to the state the same values as its first scoring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onward.config import RewardSettings
from onward.contracts import MAX_BYTES, Feedback, Reward, Trajectory, decode, decode_document, encode
from onward.errors import ContractError
from onward.ids import is_id
from onward.reward.components import (
    Component,
    NotApplicable,
    RubricResult,
    Scored,
    ScoringContext,
    Unscored,
)
from onward.reward.measures.judgement import earned_score, judge
from onward.reward.scoring.score import Provenance, score
from onward.reward.scoring.state import TOTAL, State
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

Row = dict[str, Any]
FEEDBACK_IDS = "feedback_ids"
"""Field of ``metadata``: ids of the feedback that a reward took into account."""
_log = logs.get("rewarder")


@dataclass(frozen=True)
class Candidate:
    """A stored trajectory, ready to be scored."""

    row: Row
    trajectory: Trajectory | Unscored
    code: CodeReport | Unscored | None = None
    rubric: RubricResult | Unscored | None = None

    @property
    def trajectory_id(self) -> str:
        return self.row["trajectory_id"]


@dataclass(frozen=True)
class Cause:
    """Cause for scoring a trajectory again; the empty cause is that of the first reward."""

    kind: str = ""
    """``feedback`` or ``rescore``."""
    cause_id: str = ""
    only: frozenset[str] | None = None
    """Components that are computed anew, while the others retain their raw scores; None: all are computed."""


FIRST = Cause()


def claimed_id(data: bytes) -> str | None:
    """Returns the id that a message claims; None for a message that the collector cannot have stored."""
    try:
        document = decode_document(data)
    except ContractError:
        return None
    name = document.get("trajectory_id") if isinstance(document, dict) else None
    return name if isinstance(name, str) and is_id(name) else None


def decode_trajectory(row: Row) -> Trajectory | Unscored:
    """Decodes the trajectory of a row."""
    try:
        return decode(row["payload"].encode(), Trajectory, max_bytes=2 * MAX_BYTES)
    except ContractError as error:
        return Unscored("contract", error.reason)


def first_reward(
    candidate: Candidate,
    state: State,
    settings: RewardSettings,
    components: Sequence[Component],
    timestamp: datetime,
    feedback: Sequence[Feedback] = (),
) -> Reward | Unscored:
    """Scores a trajectory. Its scores are added to ``state`` unless the answer is Unscored."""
    attempt = state.fork()
    answer = _scored(
        candidate, attempt, settings=settings, components=components, timestamp=timestamp, feedback=feedback
    )
    if isinstance(answer, Reward):
        state.windows, state.baselines = attempt.windows, attempt.baselines
        answer = with_metadata(answer, _feedback_ids(feedback))
    return answer


def superseding_reward(
    candidate: Candidate,
    newest: Row | None,
    cause: Cause,
    state: State,
    settings: RewardSettings,
    components: Sequence[Component],
    timestamp: datetime,
    feedback: Sequence[Feedback] = (),
) -> Row | Unscored | None:
    """Returns the row of a further reward, against ``state``, which is unchanged; None where nothing changed.
    ``newest``: the row of the reward that it replaces; None where the trajectory is unscored so far."""
    old = None if newest is None else decode(newest["payload"].encode(), Reward, max_bytes=2 * MAX_BYTES)
    if old is not None and cause.only is not None:
        components = _with_stored(components, old, cause.only)
    answer = _scored(
        candidate,
        state.fork(),
        settings=settings,
        components=components,
        timestamp=timestamp,
        feedback=feedback,
        cause=cause.cause_id,
        supersedes=None if old is None else old.reward_id,
    )
    if isinstance(answer, Unscored):
        return answer
    if old is not None and _same(old, answer):
        return None
    revision = 0 if newest is None else newest["revision"] + 1
    facts = {
        "revision": revision,
        "cause": {"kind": cause.kind, "id": cause.cause_id},
        **_feedback_ids(feedback),
    }
    return reward_row(with_metadata(answer, facts), candidate.row["stream_seq"], revision)


def reward_row(reward: Reward, stream_seq: int, revision: int = 0) -> Row:
    """Builds the row of table ``rewards``; ``stream_seq`` is the trajectory message's."""
    metadata, outcome = reward.metadata, reward.metadata.outcome
    return {
        "reward_id": reward.reward_id,
        "trajectory_id": reward.trajectory_id,
        "session_id": reward.session_id,
        "ts": reward.timestamp,
        "total_reward": reward.total_reward,
        "raw_total": metadata.raw_total,
        "success": int(outcome.success) if outcome else 0,
        "completion": outcome.completion if outcome else 0.0,
        "unparsable": int(bool(outcome and outcome.unparsable)),
        "model_digest": metadata.model_digest or "",
        "release_id": metadata.release_id or "",
        "task_type": metadata.task_type or "",
        "confidence": metadata.confidence or 0.0,
        "revision": revision,
        "stream_seq": stream_seq,
        "payload": encode(reward).decode(),
    }


def published_row(payload: bytes, stream_seq: int) -> Row:
    """Builds the row of a first reward that was published, with the same bytes."""
    reward = decode(payload, Reward, max_bytes=2 * MAX_BYTES)
    return reward_row(reward, stream_seq) | {"payload": payload.decode()}


def restore(row: Row, trajectory: Trajectory, state: State) -> None:
    """Adds a first reward that is already stored to ``state``, as its scoring did."""
    reward = decode(row["payload"].encode(), Reward, max_bytes=2 * MAX_BYTES)
    for name, component in reward.reward_components.items():
        state.window_of(name).append(component.score)
    state.window_of(TOTAL).append(reward.metadata.raw_total or 0.0)
    if earned_score(judge(trajectory)) > 0.0:
        state.baselines.update(trajectory)


def included_feedback(reward: Row) -> frozenset[str]:
    """Returns the ids of the feedback that a stored reward took into account."""
    metadata = decode(reward["payload"].encode(), Reward, max_bytes=2 * MAX_BYTES).metadata
    found = (metadata.model_extra or {}).get(FEEDBACK_IDS)
    return frozenset(found) if isinstance(found, list) else frozenset()


def with_metadata(reward: Reward, facts: Mapping[str, Any]) -> Reward:
    """Returns ``reward`` with further facts in the open part of its metadata."""
    if not facts:
        return reward
    return reward.model_copy(update={"metadata": reward.metadata.model_copy(update=dict(facts))})


def _feedback_ids(feedback: Sequence[Feedback]) -> dict[str, Any]:
    return {FEEDBACK_IDS: [item.feedback_id for item in feedback]} if feedback else {}


def _scored(candidate: Candidate, state: State, **how: Any) -> Reward | Unscored:
    """Scores a stored row. A component that breaks leaves the trajectory unscored, never zero."""
    row, trajectory = candidate.row, candidate.trajectory
    if isinstance(trajectory, Unscored):
        return trajectory
    provenance = Provenance(row["model_digest"], row["release_id"], row["task_type"])
    try:
        return score(
            trajectory, state, provenance=provenance, code=candidate.code, rubric=candidate.rubric, **how
        )
    except ContractError as error:
        return Unscored("contract", error.reason)
    except Exception as error:  # a defect in one component must not stop all rewards
        _log.exception("a trajectory could not be scored", trajectory_id=row["trajectory_id"])
        return Unscored("component_error", type(error).__name__)


class _StoredScore:
    """A component that repeats the answer of a stored reward."""

    def __init__(self, name: str, reward: Reward) -> None:
        self.name = name
        self._reward = reward

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable:
        component = self._reward.reward_components.get(self.name)
        if component is None:
            left_out = (self._reward.metadata.model_extra or {}).get("not_applicable")
            why = left_out.get(self.name) if isinstance(left_out, dict) else None
            return NotApplicable(why or "it was not part of the reward that is replaced")
        raw = dict(component.raw_data or {})
        return Scored(
            score=component.score,
            source=component.source,
            reasoning=component.reasoning or "",
            raw_data=raw,
            evidence=float(raw.get("evidence", 1.0)),
        )


def _with_stored(components: Sequence[Component], old: Reward, only: Collection[str]) -> list[Component]:
    present = {component.name for component in components}
    parts: list[Component] = [
        component if component.name in only else _StoredScore(component.name, old) for component in components
    ]
    return parts + [_StoredScore(name, old) for name in old.reward_components if name not in present]


def _same(old: Reward, new: Reward) -> bool:
    """Checks whether a new reward adds nothing. Windows that moved are alone no reason for a new reward."""
    return _compared(old) == _compared(new)


def _compared(reward: Reward) -> Any:
    metadata = reward.metadata
    components = {
        name: (part.score, part.weight, part.source, _without_window(part.raw_data or {}))
        for name, part in reward.reward_components.items()
    }
    return components, metadata.raw_total, metadata.outcome, metadata.confidence


def _without_window(raw: Mapping[str, Any]) -> Iterable[Any]:
    return {key: value for key, value in raw.items() if key not in ("normalized", "window")}
