"""The language model is about to be asked, with the final prompt."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardPrompt(Extension):
    async def execute(self, call_data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("call_model", self.agent, call_data)
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
