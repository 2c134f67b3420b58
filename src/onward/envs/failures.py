"""Causes for which an environment could not play an episode.

Such an episode is unscored: its reward is unknown, which is not zero.
"""

from __future__ import annotations

from onward.errors import OnwardError

CAUSES: dict[str, str] = {
    "connection": "the server cannot be reached, or cut the connection",
    "create_timeout": "no answer to create in time",
    "reset_timeout": "no answer to reset in time",
    "step_timeout": "no answer to a step in time; it was not sent again, since it may have been played",
    "observe_timeout": "no answer to a question for the observation in time",
    "bad_answer": "the answer is not of the protocol's form",
    "env_error": "the environment itself reported an error",
    "refused": "the server refused the request (status 4xx): a wrong task, key or address",
    "lost_instance": "the server no longer knows the episode: it restarted, or the episode idled too long",
    "policy_timeout": "the policy gave no action in time",
}
"""Cause → its meaning."""


class EnvironmentFailure(OnwardError):
    """An environment's failure. ``cause`` is a key of ``CAUSES``; ``status`` is the HTTP status, if any."""

    def __init__(self, cause: str, message: str, status: int | None = None) -> None:
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} is no cause of a failure: give one of {', '.join(CAUSES)}.")
        super().__init__(message)
        self.cause, self.status = cause, status
