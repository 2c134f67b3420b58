"""An answer of the model entered the history, under the id by which the page knows it."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardMessage(Extension):
    def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            args, given = data["args"], data["kwargs"]
            text = given.get("message", args[1] if len(args) > 1 else "")
            get().hook("message_of_agent", args[0], text, data.get("result"))
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
