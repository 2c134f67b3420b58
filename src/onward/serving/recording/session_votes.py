"""Last vote per session already sent to the gates; a vote is forwarded only if it differs.

Invariants: the votes are read back from the outcome stream after a restart. So a redelivered vote is not
forwarded again, and an older vote never replaces a newer one.
"""

from __future__ import annotations

from datetime import datetime

from onward.lru import Lru

RELEASES_KEPT = 8


class SessionVotes:
    """Last vote per release and session: its time, and 1 for a negative or 0 for a positive vote."""

    def __init__(self) -> None:
        self._last: Lru[str, dict[str, tuple[datetime, float]]] = Lru(RELEASES_KEPT)

    def is_news(self, release_id: str, session_id: str, at: datetime, value: float) -> bool:
        """Returns whether this vote changes the session's vote at the gates. A later vote with the same value
        does not; it is stored as the last one."""
        known = (self._last.get(release_id) or {}).get(session_id)
        if known is None:
            return True
        if at > known[0] and value == known[1]:
            self.note(release_id, session_id, at, value)
        return at > known[0] and value != known[1]

    def note(self, release_id: str, session_id: str, at: datetime, value: float) -> None:
        """Stores a vote that was sent to the gates."""
        sessions = self._last.setdefault(release_id, {})
        known = sessions.get(session_id)
        if known is None or at > known[0]:
            sessions[session_id] = (at, value)
