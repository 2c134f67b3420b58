"""A tool's result entered the history; of an interrupted tool it is the progress."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardResult(Extension):
    def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            tool = given.get("tool_name", args[1] if len(args) > 1 else "")
            text = given.get("tool_result", args[2] if len(args) > 2 else "")
            get().hook("result_stored", args[0], tool, text)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
