"""Tool ``subscribe_nats`` of this profile: a call of Onward's tool of the same name."""

from helpers.tool import Response, Tool


class SubscribeNats(Tool):
    """Answers with compact JSON, or with one sentence. Never raises."""

    async def execute(self, **kwargs):
        try:
            from usr.plugins.onward.helpers import onward_tools

            text = await onward_tools.answer(self, "subscribe_nats", kwargs)
        except Exception as error:
            text = '{"error": "Onward is not installed here (' + type(error).__name__ + ')."}'
        return Response(message=text, break_loop=False)
