"""Tool ``rl_solution`` of this profile: the report on a finished control job, as YAML."""

from helpers.tool import Response, Tool


class RlSolution(Tool):
    """Answers with YAML, or with one sentence. Never raises."""

    async def execute(self, **kwargs):
        try:
            from usr.plugins.onward.helpers import onward_tools

            text = await onward_tools.solution(self, kwargs)
        except Exception as error:
            text = '{"error": "Onward is not installed here (' + type(error).__name__ + ')."}'
        return Response(message=text, break_loop=False)
