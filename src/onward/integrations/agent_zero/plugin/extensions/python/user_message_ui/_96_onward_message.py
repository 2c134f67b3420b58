"""The next message of a user, sent from the interface: a correction, thanks, or an interruption."""

import logging

from helpers.extension import Extension


class OnwardMessage(Extension):
    """Hands the message to the worker, which reads it. This point is called for the interface alone, so no
    message of an agent or the scheduler arrives here."""

    async def execute(self, data=None, **kwargs):
        try:
            from usr.plugins.onward.helpers import onward_votes, runtime

            found, text = runtime.get(), (data or {}).get("message")
            context = getattr(self.agent, "context", None)
            if found is None or context is None or not isinstance(text, str) or not text.strip():
                return
            if not onward_votes.is_of_a_person(context):
                return
            if _is_running(context):
                found.feedback(**onward_votes.implicit(context.id, None, "interrupted"))
                return
            answer = onward_votes.last_answer(context)
            if answer is not None:
                found.feedback(**onward_votes.implicit(context.id, answer, "message", text))
        except Exception as error:  # the message goes its way
            logging.getLogger("onward").warning("a message was not read: %s", type(error).__name__)


def _is_running(context):
    is_running = getattr(context, "is_running", False)
    return bool(is_running() if callable(is_running) else is_running)
