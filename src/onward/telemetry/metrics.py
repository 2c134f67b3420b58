"""Every Prometheus metric, in one place, on its own registry.

Published dashboards query the names that start with ``agent_rl_``: renaming one breaks them. Every model
metric carries ``model_version``. Onward's own names start with ``onward_``.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REWARD_BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The published buckets of ``agent_rl_trajectory_reward``."""
_LENGTH_BUCKETS = (1, 2, 3, 5, 8, 13, 21, 34, 50, 100, 200)
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
JOB_STATUSES = ("completed", "failed", "cancelled")
ESCALATIONS = (
    "training_failed", "training_keeps_failing", "release_rejected", "rolled_back", "collection_errors",
    "nats_away", "trainer_unreachable", "policy_degraded", "unscored",
)  # fmt: skip
"""Kinds of alerts that rules of Prometheus watch."""
_JOB_BUCKETS = (10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)


class Metrics:
    """One set of metrics per process (or per test): nothing is registered globally."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)

        self.trajectories_collected = counter(
            "agent_rl_trajectories_collected", "Trajectories collected", ["agent_type", "task_domain"]
        )
        self.trajectory_reward = histogram(
            "agent_rl_trajectory_reward", "Total reward of a trajectory", buckets=REWARD_BUCKETS
        )
        self.trajectory_length = histogram(
            "agent_rl_trajectory_length", "Turns of a trajectory", buckets=_LENGTH_BUCKETS
        )
        self.training_jobs = counter("agent_rl_training_jobs", "Training jobs by final status", ["status"])
        self.training_duration = histogram(
            "agent_rl_training_duration_seconds", "Wall time of a job", buckets=_JOB_BUCKETS
        )
        self.training_samples = gauge(
            "agent_rl_training_samples", "Trajectories in the latest training dataset"
        )
        self.model_reward_mean = gauge(
            "agent_rl_model_reward_mean", "Mean raw total of a model", ["model_version"]
        )
        self.model_benchmark_score = gauge(
            "agent_rl_model_benchmark_score",
            "Validation score of a model, 0 to 1",
            ["model_version", "task_type"],
        )
        self.model_deployments = counter("agent_rl_model_deployments", "Deployments by status", ["status"])
        self.model_traffic = gauge(
            "agent_rl_model_traffic_percentage", "Traffic of a model, 0 to 100", ["model_version"]
        )
        self.model_error_rate = gauge(
            "agent_rl_model_error_rate", "Share of sessions with an error", ["model_version"]
        )
        self.model_errors = counter("agent_rl_model_errors", "Sessions with an error", ["model_version"])
        self.dead_letters = counter(
            "onward_dead_letters", "Messages put aside as unusable", ["stream", "reason"]
        )
        self.duplicates = counter("onward_duplicates", "Messages that were already stored", ["stream"])
        self.redactions = counter("onward_redactions", "Secrets and personal data removed", ["kind"])
        self.held = counter(
            "onward_held", "Messages held encrypted because they could not be redacted", ["reason"]
        )
        self.opted_out = counter("onward_opted_out", "Trajectories dropped before storage by an opt-out")
        self.unscored = counter(
            "onward_unscored", "Trajectories without a valid reward, by cause", ["reason"]
        )
        self.feedback_posts = counter(
            "onward_feedback_posts",
            "Feedback that was posted over HTTP, by the way in and its result",
            ["way", "result"],
        )
        self.unscored_share = gauge(
            "onward_unscored_share", "Share of the last 200 trajectories without a valid reward"
        )
        self.rewarder_lag = gauge(
            "onward_rewarder_lag",
            "Messages on the trajectory stream that the active rewarder has not decided yet",
        )
        self.superseded = counter(
            "onward_superseding_rewards", "Rewards that replaced an earlier one", ["cause"]
        )
        self.feedback = counter("onward_feedback", "Feedback that was stored", ["kind", "signal"])
        self.release_outcome = gauge(
            "onward_release_mean_outcome",
            "Mean judged outcome of a model's sessions in its latest release, 0 to 1",
            ["model_version"],
        )
        self.outcomes_refused = counter(
            "onward_outcomes_refused", "Outcomes on the bus that no gateway signed; they do not count"
        )
        self.alerts = counter("onward_alerts", "Alerts raised", ["kind"])
        self.child_restarts = counter(
            "onward_child_restarts", "Child processes that died or hung and were started again", ["child"]
        )
        self.disk_used = gauge(
            "onward_disk_used_ratio", "Used share of the fullest disk of the data folder, 0 to 1"
        )
        self.stream_used = gauge(
            "onward_stream_used_ratio", "Used share of a stream's byte limit, 0 to 1", ["stream"]
        )
        self.role_restarts = counter("onward_role_restarts", "Restarts of a role after a failure", ["role"])
        self.collector_seconds = histogram(
            "onward_collector_seconds",
            "From the message's time on the stream to its durable row",
            buckets=_SECONDS_BUCKETS,
        )
        self.rewarder_seconds = histogram(
            "onward_rewarder_seconds",
            "From the message's time on the stream to its published reward",
            buckets=_SECONDS_BUCKETS,
        )
        self.gateway_seconds = histogram(
            "onward_gateway_seconds",
            "What the gateway adds to a call, engine time excluded",
            buckets=_SECONDS_BUCKETS,
        )

        # A counter that begins at 1 has no increase: rules and success rates need the 0 before it.
        for status in JOB_STATUSES:
            self.training_jobs.labels(status=status)
        for kind in ESCALATIONS:
            self.alerts.labels(kind=kind)
        self.model_deployments.labels(status="rollback")

    def render(self) -> bytes:
        """Returns the text of ``/metrics`` in the Prometheus exposition format."""
        return generate_latest(self.registry)
