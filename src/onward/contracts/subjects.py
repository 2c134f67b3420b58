"""The subjects of the bus, each with its messages, publishers and readers.

``topics.json`` is generated from ``TOPICS``. A subject is part of the contract: once published it never
changes its meaning; a new meaning is a new version (``.v2``).
"""

from __future__ import annotations

from typing import NamedTuple

TRAJECTORY = "agent.rl.trajectory.v1"
REWARD = "agent.rl.reward.v1"
FEEDBACK = "agent.rl.feedback.v1"
TRAINING_REQUEST = "agent.rl.training.request.v1"
TRAINING_STATUS = "agent.rl.training.status.v1"
TRAINING_CONTROL = "agent.rl.training.control.v1"
TRAINING_RUBRICS = "agent.rl.training.rubrics.v1"
TRAINING_STATUS_REQUEST = "agent.rl.training.status.request"
"""Core request and reply. No stream stores it, or the stream would answer instead of the trainer."""
TRAINER_MESSAGE = "agent.rl.trainer.request"
"""Core request and reply: a message of the superior agent to its rl-trainer. Outside of
``agent.rl.training.>``, which the published stream stores as a whole."""
MODEL_DEPLOYED = "agent.rl.model.deployed.v1"
OUTCOME = "agent.rl.outcome.v1"
ALERT = "agent.rl.alert.v1"
REPORT = "agent.rl.report.v1"
AUDIT = "agent.rl.audit.v1"
DLQ = "agent.rl.dlq.v1"
"""Prefix of dead letters: those of a stream go to ``agent.rl.dlq.v1.<stream>``."""


class Topic(NamedTuple):
    subject: str
    schema: str | None
    """File name under ``schemas/``; None if the message has no published schema."""
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    stream: str | None
    description: str


TOPICS: tuple[Topic, ...] = (
    Topic(
        TRAJECTORY, "trajectory.v1.schema.json", ("agent", "gateway", "collector"), ("collector", "rewarder"),
        "RL_TRAJECTORIES", "Multi-turn interaction of an agent with its task.",
    ),
    Topic(
        REWARD, "reward.v1.schema.json", ("rewarder",), ("gateway", "analytics"), "RL_REWARDS",
        "Computed reward of one trajectory.",
    ),
    Topic(
        FEEDBACK, "feedback.v1.schema.json", ("agent", "api", "gateway"), ("rewarder", "gateway"),
        "RL_FEEDBACK", "Feedback of a user on a session, a trajectory or a turn: words or behaviour.",
    ),
    Topic(
        TRAINING_REQUEST, "training.request.v1.schema.json", ("coordinator", "operator"), ("trainer",),
        "RL_TRAINING", "Request for one training job.",
    ),
    Topic(
        TRAINING_STATUS, "training.status.v1.schema.json", ("trainer",), ("coordinator", "archiver"),
        "RL_TRAINING", "Progress and result of a training job.",
    ),
    Topic(
        TRAINING_CONTROL, None, ("operator",), ("trainer",), "RL_TRAINING",
        "Request for one job that trains a control policy for an environment.",
    ),
    Topic(
        TRAINING_RUBRICS, None, ("operator",), ("trainer",), "RL_TRAINING",
        "Request for one job that trains a rubric writer.",
    ),
    Topic(
        TRAINING_STATUS_REQUEST, None, ("operator",), ("trainer",), None,
        "Request and reply: the status of one job.",
    ),
    Topic(
        TRAINER_MESSAGE, None, ("operator",), ("coordinator",), None,
        "Request and reply: a message of the superior agent, such as 'Trigger training job'.",
    ),
    Topic(
        MODEL_DEPLOYED, "model.deployed.v1.schema.json", ("releaser",), ("agent", "archiver", "monitoring"),
        "RL_DEPLOY", "A model was deployed, moved to another share of traffic, or restored by a rollback.",
    ),
    Topic(
        OUTCOME, "outcome.v1.schema.json", ("gateway",), ("releaser", "gateway", "archiver"), "RL_OUTCOMES",
        "Outcome of one session under one arm of a release.",
    ),
    Topic(ALERT, None, ("any role",), ("operator",), None, "Something that a person should look at."),
    Topic(
        REPORT, None, ("coordinator", "releaser"), ("agent", "operator"), None,
        "Reports of the rl-trainer to its superior agent: sentences, daily summaries and reports on jobs.",
    ),
    Topic(AUDIT, None, ("any role",), ("operator",), "RL_AUDIT", "Who did what, when and why."),
    Topic(
        f"{DLQ}.*", None, ("collector", "archiver", "rewarder", "coordinator", "trainer", "gateway"),
        ("operator",), "RL_DLQ", "Messages that no consumer could process, with the reason in the headers.",
    ),
)  # fmt: skip
