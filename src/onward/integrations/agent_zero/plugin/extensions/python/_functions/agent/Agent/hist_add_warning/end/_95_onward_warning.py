"""Agent Zero warned its model."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardWarning(Extension):
    def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            get().hook("warning", args[0], given.get("message", args[1] if len(args) > 1 else ""))
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
