"""A task of the main agent, or of a subordinate, begins."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardStart(Extension):
    async def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("start", data["args"][0])
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
