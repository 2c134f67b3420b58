"""``POST /api/plugins/onward/signal``: an action of a person in the web interface, a weak vote."""

from helpers.api import ApiHandler, Request, Response


class Signal(ApiHandler):
    """Takes one action. What agents and the scheduler do in their own chats is no feedback and is dropped."""

    async def process(self, input: dict, request: Request) -> dict | Response:
        try:
            from agent import AgentContext
            from usr.plugins.onward.helpers import onward_votes, runtime

            action = onward_votes.read_signal(input)
            found, context = runtime.get(), AgentContext.get(action["context_id"])
            if found is None or (context is not None and not onward_votes.is_of_a_person(context)):
                return {"ok": True, "queued": False}
            return found.feedback(**action)
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            return {"ok": False, "error": f"The action was not taken ({type(error).__name__})."}
