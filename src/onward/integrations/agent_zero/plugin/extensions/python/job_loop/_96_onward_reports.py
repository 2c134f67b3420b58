"""Reports of the rl-trainer, shown in the chats that requested its work. Called about once a minute."""

import logging
import sys

from helpers.extension import Extension


class OnwardReports(Extension):
    """Shows the reports that arrived since the last call."""

    async def execute(self, **kwargs):
        try:
            from agent import AgentContext
            from usr.plugins.onward.helpers import onward_reports, runtime

            found = runtime.get()
            if found is None:
                return
            # Agent Zero loads this file anew now and then; the runtime's module stays.
            kept = sys.modules.get("_onward_agent_zero")
            after = getattr(kept, "reports_shown", 0)
            reports = found.reports(after)
            if not reports:
                return
            kept.reports_shown = onward_reports.last_of(reports)  # also if they are switched off at present
            if found.host.config(None).get("show_reports", True):
                onward_reports.show(reports, list(AgentContext.all()), _notify)
        except Exception as error:  # the host's jobs go on
            logging.getLogger("onward").warning("reports could not be shown: %s", type(error).__name__)


def _notify(sentence):
    try:
        from helpers.notification import NotificationManager, NotificationPriority, NotificationType

        NotificationManager.send_notification(
            type=NotificationType.INFO,
            priority=NotificationPriority.NORMAL,
            message=sentence,
            title="Onward",
            group="onward",
        )
    except Exception as error:  # the sentence is in the chat
        logging.getLogger("onward").debug("no notification: %s", type(error).__name__)
