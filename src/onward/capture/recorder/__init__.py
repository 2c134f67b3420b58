"""The recorder: what an agent embeds to hand its work to Onward.

Redacts, then writes to a local outbox that is durable on return; a background thread publishes. Without a
server, or with one that dies, the agent notices nothing and nothing is lost. A task is recorded in one piece,
when it ends::

    from onward import Recorder

    with Recorder(outbox="outbox.db", nats_url="nats://127.0.0.1:4222") as recorder:
        with recorder.task("Sum the column", task_id="sum-1", domain="data_analysis") as task:
            with task.open_turn("Sum the column") as turn:
                turn.action(client.chat.completions.create(...))
                turn.result("42")
            task.outcome("completed_successfully")

Know before changing: importing this loads neither the message models nor a client of any server; making a
Recorder loads the former, its thread the latter.
"""

from onward.capture.recorder.core import Recorder, Stats
from onward.capture.recorder.sealed_tasks import Held

__all__ = ["Held", "Recorder", "Stats"]
