"""The language model has answered."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardAnswer(Extension):
    async def execute(self, call_data: Any = None, response: Any = "", reasoning: Any = "", **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("answer", self.agent, call_data, response, reasoning)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
