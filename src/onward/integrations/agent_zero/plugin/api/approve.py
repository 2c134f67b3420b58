"""``POST /api/plugins/onward/approve``: a person approves or refuses a step of a training profile."""

from helpers.api import ApiHandler, Request, Response


class Approve(ApiHandler):
    """Without ``id`` lists what waits. Login and CSRF token are required: no agent can approve its own
    step."""

    async def process(self, input: dict, request: Request) -> dict | Response:
        if not isinstance(input, dict):
            return {"ok": False, "error": "The body must be a JSON object."}
        try:
            from usr.plugins.onward.helpers import onward_approvals

            name, approved = input.get("id"), input.get("approved")
            decided = isinstance(name, str) and isinstance(approved, bool)
            if decided and not onward_approvals.decide(name, approved):
                return {"ok": False, "error": "This step does not wait any more: look at the list again."}
            return {"ok": True, "waiting": onward_approvals.waiting()}
        except Exception as error:
            return {"ok": False, "error": f"The approval was not taken ({type(error).__name__})."}
