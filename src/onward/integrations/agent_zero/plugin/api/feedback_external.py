"""``POST /api/plugins/onward/feedback_external``: votes from other channels, with Agent Zero's API key.

For plugins that bring chats in by messenger or mail. The key is the host's own; there is no cookie to abuse,
so the CSRF rule does not apply.
"""

from helpers.api import ApiHandler, Request, Response


class FeedbackExternal(ApiHandler):
    """Takes one vote on the last answer of a chat, or on the answer that ``message_id`` names."""

    @classmethod
    def requires_auth(cls) -> bool:
        return False

    @classmethod
    def requires_csrf(cls) -> bool:
        return False

    @classmethod
    def requires_api_key(cls) -> bool:
        return True

    async def process(self, input: dict, request: Request) -> dict | Response:
        try:
            from agent import AgentContext
            from usr.plugins.onward.helpers import onward_votes, runtime

            vote = {**onward_votes.read_vote(input), "source": "api"}
            found, context = runtime.get(), AgentContext.get(vote["context_id"])
            if found is None:
                return {"ok": False, "error": "Onward is not running here: see its status page."}
            if vote["message_id"] is None and context is not None:
                vote["message_id"] = onward_votes.last_answer(context)
            return found.feedback(**vote)
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            return {"ok": False, "error": f"The vote was not taken ({type(error).__name__})."}
