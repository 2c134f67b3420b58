import io
import json
import logging
import sys

import pytest

from onward.clock import ManualClock
from onward.contracts import subjects
from onward.errors import ConfigError
from onward.telemetry import Alerts, Metrics, logs


class Recorder:
    def __init__(self, fail: bool = False) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.fail = fail

    async def notify(self, subject: str, data: bytes) -> None:
        if self.fail:
            raise ConnectionError("away")
        self.sent.append((subject, data))


SEED_NAMES = [
    "agent_rl_trajectories_collected_total",
    "agent_rl_trajectory_reward",
    "agent_rl_trajectory_length",
    "agent_rl_training_jobs_total",
    "agent_rl_training_duration_seconds",
    "agent_rl_training_samples",
    "agent_rl_model_reward_mean",
    "agent_rl_model_benchmark_score",
    "agent_rl_model_deployments_total",
    "agent_rl_model_traffic_percentage",
    "agent_rl_model_error_rate",
    "agent_rl_model_errors_total",
]


def test_the_seed_names_and_labels_are_what_dashboards_query():
    metrics = Metrics()
    metrics.trajectories_collected.labels(agent_type="developer", task_domain="coding").inc()
    metrics.training_jobs.labels(status="completed").inc()
    metrics.model_errors.labels(model_version="v2").inc(3)
    metrics.model_reward_mean.labels(model_version="v2").set(0.5)
    for gauge in (metrics.model_traffic, metrics.model_error_rate):
        gauge.labels(model_version="v2").set(0)
    metrics.model_benchmark_score.labels(model_version="v2", task_type="desk").set(0.25)
    metrics.model_deployments.labels(status="deployed").inc()
    metrics.trajectory_reward.observe(0.3)
    text = metrics.render().decode()
    for name in SEED_NAMES:
        assert f"\n{name}" in text, name
    assert 'agent_rl_trajectories_collected_total{agent_type="developer",task_domain="coding"} 1.0' in text
    assert 'agent_rl_model_errors_total{model_version="v2"} 3.0' in text
    assert 'agent_rl_trajectory_reward_bucket{le="0.2"} 0.0' in text
    assert 'agent_rl_trajectory_reward_bucket{le="0.4"} 1.0' in text


def test_two_sets_of_metrics_do_not_share_a_registry():
    first, second = Metrics(), Metrics()
    first.alerts.labels(kind="x").inc()
    assert second.registry.get_sample_value("onward_alerts_total", {"kind": "x"}) is None


async def test_an_alert_reaches_the_bus_and_the_counter():
    bus, metrics = Recorder(), Metrics()
    await Alerts(bus, ManualClock(), metrics).raise_("unscored", "Too many.", "critical", share=0.12)
    ((subject, data),) = bus.sent
    assert subject == subjects.ALERT
    assert json.loads(data) == {
        "kind": "unscored",
        "message": "Too many.",
        "severity": "critical",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "facts": {"share": 0.12},
    }
    assert metrics.registry.get_sample_value("onward_alerts_total", {"kind": "unscored"}) == 1.0


async def test_an_alert_while_the_bus_is_away_is_still_counted_and_does_not_raise():
    metrics = Metrics()
    await Alerts(Recorder(fail=True), ManualClock(), metrics).raise_("nats", "Away.")
    assert metrics.registry.get_sample_value("onward_alerts_total", {"kind": "nats"}) == 1.0


def test_logs_are_one_json_object_a_line(capsys):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.setup("info", json=True)
        logs.get("collector").info("stored", rows=12)
        logging.getLogger("nats").warning("reconnect")
        logs.get("collector").debug("hidden")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        root.handlers[:], root.level = before, level
    assert [(line["event"], line["level"], line["logger"]) for line in lines] == [
        ("stored", "info", "collector"),
        ("reconnect", "warning", "nats"),
    ]
    assert lines[0]["rows"] == 12


def test_a_line_for_a_person_has_time_part_event_and_facts():
    event = {
        "timestamp": "2026-12-01T00:15:44.967624Z",
        "logger": "api",
        "level": "info",
        "event": "api serves",
    }
    assert logs.Lines()(None, "info", {**event, "url": "http://h:1", "why": None}) == (
        "00:15:44  api          api serves: url http://h:1"
    )
    assert logs.Lines()(None, "error", {**event, "level": "error", "exception": "Traceback …"}) == (
        "00:15:44  api          ERROR: api serves\nTraceback …"
    )


def test_a_line_for_a_person_shows_the_sentence_of_an_alert_and_obeys_no_control_character():
    event = {"timestamp": "2026-12-01T00:15:44Z", "logger": "alerts", "level": "warning", "event": "alert"}
    line = logs.Lines(colours=True)(
        None,
        "warning",
        {**event, "kind": "disk", "message": "The disk fills.", "severity": "warning", "at": "\x1b[2J"},
    )
    assert line == "\x1b[33m00:15:44  alerts       WARNING: The disk fills. (disk): at '\\x1b[2J'\x1b[0m"


def test_a_terminal_gets_lines_and_a_pipe_gets_json(monkeypatch):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = {}
    try:
        for terminal in (True, False):
            monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
            stream.isatty = lambda terminal=terminal: terminal
            logs.setup("info")
            logs.get("collector").info("stored", rows=12)
            written[terminal] = stream.getvalue()
    finally:
        root.handlers[:], root.level = before, level
    assert written[True].rstrip().endswith("collector    stored: rows 12")
    assert json.loads(written[False])["rows"] == 12


def test_an_unknown_level_is_one_sentence():
    with pytest.raises(ConfigError, match="expected one of debug, info"):
        logs.setup("loud")
