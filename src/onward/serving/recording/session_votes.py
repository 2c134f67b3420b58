"""The last vote of each session that the gates have been told of: what makes a further one news.

Know before changing: it is read back from the outcome stream after a restart, so a vote that is delivered
again is not told again, and an older one never replaces a newer one.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

RELEASES_KEPT = 8


class SessionVotes:
    """Per release and session: when the last vote was given, and 1 for one against, 0 for one in favour."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, dict[str, tuple[datetime, float]]] = OrderedDict()

    def is_news(self, release_id: str, session_id: str, at: datetime, value: float) -> bool:
        """Whether this vote changes what the gates know of the session. A later one of the same kind does
        not, and is remembered as the last."""
        known = self._last.get(release_id, {}).get(session_id)
        if known is None:
            return True
        if at > known[0] and value == known[1]:
            self.note(release_id, session_id, at, value)
        return at > known[0] and value != known[1]

    def note(self, release_id: str, session_id: str, at: datetime, value: float) -> None:
        """The gates were told."""
        sessions = self._last.setdefault(release_id, {})
        known = sessions.get(session_id)
        if known is None or at > known[0]:
            sessions[session_id] = (at, value)
        while len(self._last) > RELEASES_KEPT:
            self._last.popitem(last=False)
