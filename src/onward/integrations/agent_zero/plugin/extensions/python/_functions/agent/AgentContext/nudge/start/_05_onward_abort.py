"""The user stops, resets, nudges or removes a chat."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardAbort(Extension):
    def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            get().hook("abort", args[0] if args else given.get("id", ""), "nudge")
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
