"""The language model has answered."""

from typing import Any

from helpers.extension import Extension


class OnwardAnswer(Extension):
    async def execute(self, call_data: Any = None, response: Any = "", reasoning: Any = "", **_: Any) -> None:
        try:
            from usr.plugins.onward.helpers.runtime import get

            get().hook("answer", self.agent, call_data, response, reasoning)
        except Exception:  # the agent must not notice
            pass
