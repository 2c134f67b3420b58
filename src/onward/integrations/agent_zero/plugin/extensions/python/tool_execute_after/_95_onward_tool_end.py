"""A tool has answered. This file sorts after the one that masks secrets."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardToolEnd(Extension):
    async def execute(self, tool_name: Any = "", response: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("tool_ends", self.agent, tool_name, response)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
