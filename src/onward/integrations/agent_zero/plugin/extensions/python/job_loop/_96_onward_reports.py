"""Reports of the rl-trainer, shown in the chats that requested its work. Called about once a minute."""

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
            if reports and found.host.config(None).get("show_reports", True):
                kept.reports_shown = onward_reports.show(reports, list(AgentContext.all()), _notify)
        except Exception:
            pass  # the host's jobs go on


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
    except Exception:
        pass  # the sentence is in the chat
