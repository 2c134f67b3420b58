"""A tool is about to run. This file sorts before the one that puts secrets into the arguments."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardToolBegin(Extension):
    async def execute(self, tool_name: Any = "", tool_args: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("tool_begins", self.agent, tool_name, tool_args)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
