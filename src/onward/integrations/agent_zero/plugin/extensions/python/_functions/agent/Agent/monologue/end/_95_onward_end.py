"""A task ends with its final text, or with an exception, which stays as it is."""

import logging
from typing import Any

from helpers.extension import Extension


class OnwardEnd(Extension):
    async def execute(self, data: Any = None, **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("end", data["args"][0], data.get("result"), data.get("exception"))
        except Exception as error:  # the agent must not notice
            logging.getLogger("onward").debug("a hook did nothing: %s", type(error).__name__)
