"""``POST /api/plugins/onward/status``: the state of recording, and the switches of the status page."""

from helpers.api import ApiHandler, Request, Response

MOST_NAME = 200


class Status(ApiHandler):
    """Shows the state. ``{"pause": true}`` pauses all recording; ``{"project": "x", "opt_out": true}`` one
    project."""

    async def process(self, input: dict, request: Request) -> dict | Response:
        if not isinstance(input, dict):
            return {"ok": False, "error": "The body must be a JSON object."}
        try:
            from usr.plugins.onward.helpers import runtime

            found = runtime.get()
            if found is None:
                return {"ok": False, "error": "Onward is not running here: install the plugin again."}
            pause, project, opt_out = input.get("pause"), input.get("project"), input.get("opt_out")
            if isinstance(pause, bool):
                found.pause(pause)
            if isinstance(project, str) and len(project) > MOST_NAME:
                return {"ok": False, "error": f"'project' must have at most {MOST_NAME} characters."}
            if isinstance(project, str) and project:
                if isinstance(opt_out, bool):
                    found.set_opt_out(project, opt_out)
                return {"ok": True, **found.status(), "opted_out_here": found.opted_out(project)}
            return {"ok": True, **found.status()}
        except Exception as error:
            return {"ok": False, "error": f"The state cannot be shown ({type(error).__name__})."}
