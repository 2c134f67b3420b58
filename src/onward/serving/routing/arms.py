"""The sticky assignment of sessions to arms, as pure functions.

A session is assigned once per release, at first contact, by a hash of (release, session) against the
candidate's weight at that moment. It keeps its arm for the life of the release: a change of weights affects
only new sessions. The assignment record is what the gates' evidence is joined with.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from onward.contracts.buckets import ArmName, Assignment, Desired, DesiredArm


@dataclass(frozen=True)
class Arm:
    arm: ArmName
    model_id: str
    adapter_digest: str | None
    weight: float


@dataclass(frozen=True)
class Routes:
    """Routes that the gateway serves now. ``revision`` -1: no desired state yet, the base model serves."""

    revision: int
    release_id: str | None
    step: int
    current: Arm
    candidate: Arm | None = None

    @property
    def open(self) -> bool:
        """True if a release is under way, so that sessions are assigned and counted."""
        return self.release_id is not None and self.candidate is not None

    @property
    def weight(self) -> float:
        """The candidate's share; 0 without a candidate."""
        return self.candidate.weight if self.candidate is not None else 0.0

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.current,) if self.candidate is None else (self.current, self.candidate)

    @property
    def digests(self) -> set[str]:
        return {arm.adapter_digest for arm in self.arms if arm.adapter_digest is not None}

    def arm(self, name: ArmName) -> Arm:
        """Returns the arm of that name; current if the release no longer has a candidate."""
        return self.candidate if name == "candidate" and self.candidate is not None else self.current


def base_routes(model_id: str) -> Routes:
    """Returns routes with the base model alone, which serves before anything was released."""
    return Routes(-1, None, 0, Arm("current", model_id, None, 1.0))


def routes_of(desired: Desired) -> Routes:
    """Returns what a gateway serves for a desired state."""
    arms: dict[str, Arm] = {}
    for arm in desired.arms:
        name: ArmName = "candidate" if arm.arm == "candidate" else "current"
        arms[name] = Arm(name, arm.model_id, arm.adapter_digest, arm.weight)
    return Routes(
        revision=desired.revision,
        release_id=desired.release_id,
        step=desired.step or 0,
        current=arms["current"],
        candidate=arms.get("candidate"),
    )


def desired_of(routes: Routes) -> Desired:
    """Returns what ``routes_of`` reads as ``routes``."""
    return Desired(
        revision=routes.revision,
        release_id=routes.release_id,
        step=routes.step,
        arms=[DesiredArm(**asdict(arm)) for arm in routes.arms],
    )


def fraction(release_id: str, session_id: str) -> float:
    """Returns a number in [0, 1) that depends on release and session alone, uniform over sessions."""
    digest = hashlib.sha256(f"{release_id}\x1f{session_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose(release_id: str, session_id: str, candidate_weight: float) -> ArmName:
    """Returns the arm of a session at first contact: P(candidate) = ``candidate_weight``."""
    return "candidate" if fraction(release_id, session_id) < candidate_weight else "current"


def assign(routes: Routes, session_id: str, assigned_at: str, before: Assignment | None = None) -> Assignment:
    """Returns a new assignment under the open release of ``routes``; ``before`` is of an older release."""
    assert routes.release_id is not None
    name = choose(routes.release_id, session_id, routes.weight)
    earlier = () if before is None else (*before.earlier, before.release_id)[-8:]
    arm = routes.arm(name)
    return Assignment(
        session_id=session_id,
        release_id=routes.release_id,
        arm=name,
        weight=routes.weight,
        assigned_at=assigned_at,
        model_id=arm.model_id,
        earlier=earlier,
    )


def session_key(session_id: str) -> str:
    """Returns the key in ``rl_sessions``: a session id may be any text, a key may not."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]
