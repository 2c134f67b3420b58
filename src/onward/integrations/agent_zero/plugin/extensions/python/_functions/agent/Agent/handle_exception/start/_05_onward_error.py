"""An exception in the agent's loop, which stays as it is."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardError(Extension):
    async def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            place = given.get("location", args[1] if len(args) > 1 else "")
            error = given.get("exception", args[2] if len(args) > 2 else None)
            get().hook("error", args[0], place, error)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
