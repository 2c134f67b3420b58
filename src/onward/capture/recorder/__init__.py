"""The recorder: an agent embeds it to send its work to Onward.

It redacts, then writes to a local outbox that is durable on return; a background thread publishes. Without a
server, or if the server dies, the agent is not affected and nothing is lost. A task is recorded in one piece,
when it ends::

    from onward import Recorder

    with Recorder(outbox="outbox.db", nats_url="nats://127.0.0.1:4222") as recorder:
        with recorder.task("Sum the column", task_id="sum-1", domain="data_analysis") as task:
            with task.open_turn("Sum the column") as turn:
                turn.action(client.chat.completions.create(...))
                turn.result("42")
            task.outcome("completed_successfully")

Invariants: importing this loads neither the message models nor a client of any server. Making a Recorder
loads the models, its thread loads the client.
"""

from onward.capture.recorder.core import Recorder, Stats
from onward.capture.recorder.sealed_tasks import Held

__all__ = ["Held", "Recorder", "Stats"]
