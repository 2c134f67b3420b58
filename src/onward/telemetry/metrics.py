"""Every Prometheus metric, in one place, on its own registry.

Published dashboards query the names that start with ``agent_rl_``: renaming one breaks them. Every model
metric carries ``model_version``. Onward's own names start with ``onward_``.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REWARD_BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The published buckets of ``agent_rl_trajectory_reward``."""
_LENGTH_BUCKETS = (1, 2, 3, 5, 8, 13, 21, 34, 50, 100, 200)
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_JOB_BUCKETS = (10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)


class Metrics:
    """One set of metrics per process (or per test): nothing is registered globally."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seed_metrics()
        self._own_metrics()

    def render(self) -> bytes:
        """Returns the text of ``/metrics`` in the Prometheus exposition format."""
        return generate_latest(self.registry)

    def _seed_metrics(self) -> None:
        r = self.registry
        self.trajectories_collected = Counter(
            "agent_rl_trajectories_collected",
            "Trajectories collected",
            ["agent_type", "task_domain"],
            registry=r,
        )
        self.trajectory_reward = Histogram(
            "agent_rl_trajectory_reward", "Total reward of a trajectory", buckets=REWARD_BUCKETS, registry=r
        )
        self.trajectory_length = Histogram(
            "agent_rl_trajectory_length", "Turns of a trajectory", buckets=_LENGTH_BUCKETS, registry=r
        )
        self.training_jobs = Counter(
            "agent_rl_training_jobs", "Training jobs by final status", ["status"], registry=r
        )
        self.training_duration = Histogram(
            "agent_rl_training_duration_seconds", "Wall time of a job", buckets=_JOB_BUCKETS, registry=r
        )
        self.training_samples = Gauge(
            "agent_rl_training_samples", "Trajectories in the latest training dataset", registry=r
        )
        self.model_reward_mean = Gauge(
            "agent_rl_model_reward_mean", "Mean raw total of a model", ["model_version"], registry=r
        )
        self.model_benchmark_score = Gauge(
            "agent_rl_model_benchmark_score",
            "Validation score of a model, 0 to 1",
            ["model_version", "task_type"],
            registry=r,
        )
        self.model_deployments = Counter(
            "agent_rl_model_deployments", "Deployments by status", ["status"], registry=r
        )
        self.model_traffic = Gauge(
            "agent_rl_model_traffic_percentage", "Traffic of a model, 0 to 100", ["model_version"], registry=r
        )
        self.model_error_rate = Gauge(
            "agent_rl_model_error_rate", "Share of sessions with an error", ["model_version"], registry=r
        )
        self.model_errors = Counter(
            "agent_rl_model_errors", "Sessions with an error", ["model_version"], registry=r
        )

    def _own_metrics(self) -> None:
        r = self.registry
        self.dead_letters = Counter(
            "onward_dead_letters", "Messages put aside as unusable", ["stream", "reason"], registry=r
        )
        self.duplicates = Counter(
            "onward_duplicates", "Messages that were already stored", ["stream"], registry=r
        )
        self.redactions = Counter(
            "onward_redactions", "Secrets and personal data removed", ["kind"], registry=r
        )
        self.held = Counter(
            "onward_held",
            "Messages held encrypted because they could not be redacted",
            ["reason"],
            registry=r,
        )
        self.opted_out = Counter(
            "onward_opted_out", "Trajectories dropped before storage by an opt-out", registry=r
        )
        self.unscored = Counter(
            "onward_unscored", "Trajectories without a valid reward, by cause", ["reason"], registry=r
        )
        self.feedback_posts = Counter(
            "onward_feedback_posts",
            "Feedback that was posted over HTTP, by the way in and its result",
            ["way", "result"],
            registry=r,
        )
        self.unscored_share = Gauge(
            "onward_unscored_share", "Share of the last 200 trajectories without a valid reward", registry=r
        )
        self.rewarder_lag = Gauge(
            "onward_rewarder_lag",
            "Messages on the trajectory stream that the active rewarder has not decided yet",
            registry=r,
        )
        self.superseded = Counter(
            "onward_superseding_rewards", "Rewards that replaced an earlier one", ["cause"], registry=r
        )
        self.feedback = Counter("onward_feedback", "Feedback that was stored", ["kind", "signal"], registry=r)
        self.release_outcome = Gauge(
            "onward_release_mean_outcome",
            "Mean judged outcome of a model's sessions in its latest release, 0 to 1",
            ["model_version"],
            registry=r,
        )
        self.alerts = Counter("onward_alerts", "Alerts raised", ["kind"], registry=r)
        self.collector_seconds = Histogram(
            "onward_collector_seconds",
            "From the message's time on the stream to its durable row",
            buckets=_SECONDS_BUCKETS,
            registry=r,
        )
        self.rewarder_seconds = Histogram(
            "onward_rewarder_seconds",
            "From the message's time on the stream to its published reward",
            buckets=_SECONDS_BUCKETS,
            registry=r,
        )
        self.gateway_seconds = Histogram(
            "onward_gateway_seconds",
            "What the gateway adds to a call, engine time excluded",
            buckets=_SECONDS_BUCKETS,
            registry=r,
        )
