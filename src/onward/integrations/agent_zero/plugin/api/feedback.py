"""``POST /api/plugins/onward/feedback``: a vote of the web interface, under the host's login and CSRF
rule."""

from helpers.api import ApiHandler, Request, Response


class Feedback(ApiHandler):
    """Takes one vote. It is queued when this returns; the worker redacts and stores it."""

    async def process(self, input: dict, request: Request) -> dict | Response:
        try:
            from usr.plugins.onward.helpers import onward_votes, runtime

            vote = onward_votes.read_vote(input)
            found = runtime.get()
            if found is None:
                return {"ok": False, "error": "Onward is not running here: see its status page."}
            return found.feedback(**vote)
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            return {"ok": False, "error": f"The vote was not taken ({type(error).__name__})."}
