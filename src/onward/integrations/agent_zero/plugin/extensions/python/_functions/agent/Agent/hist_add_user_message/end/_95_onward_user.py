"""The user wrote; while the agent works this is an intervention."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardUser(Extension):
    def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            message = given.get("message", args[1] if len(args) > 1 else None)
            intervention = bool(given.get("intervention", args[2] if len(args) > 2 else False))
            get().hook("user_message", args[0], message, intervention)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
