"""Dashboards and alert rules of ``deploy/``: every metric in them is one that Onward exports."""

import json
import re
from pathlib import Path

import pytest
import yaml

from onward.telemetry.metrics import ESCALATIONS, JOB_STATUSES, Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
BOARDS = {
    "training-overview.json": "RL Training Overview",
    "model-performance.json": "Model Performance",
    "deployment-health.json": "Deployment Health",
}
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
OURS = re.compile(r"\b(?:agent_rl|onward)_\w+")


def exported() -> set[str]:
    """Names of series: those of a histogram have three endings."""
    names = set()
    for line in Metrics().render().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            names |= {name + ending for ending in endings}
    return names


def queries() -> list[str]:
    found = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    for name in BOARDS:
        for panel in json.loads((DEPLOY / "grafana" / name).read_text())["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    return found


@pytest.mark.parametrize(("name", "title"), BOARDS.items())
def test_a_dashboard_has_its_published_title_and_panels_that_do_not_overlap(name, title):
    board = json.loads((DEPLOY / "grafana" / name).read_text())
    assert board["title"] == title
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) >= 6
    assert [panel["id"] for panel in board["panels"]] == list(range(1, len(places) + 1))


def test_every_metric_of_dashboards_and_rules_is_exported():
    named = {name for query in queries() for name in OURS.findall(query)}
    assert len(named) > 15
    assert named <= exported()


def test_the_published_queries_of_the_quick_reference_have_series():
    published = {
        "agent_rl_trajectories_collected_total", "agent_rl_training_jobs_total", "agent_rl_model_reward_mean",
        "agent_rl_model_errors_total", "agent_rl_model_error_rate",
        "agent_rl_training_duration_seconds_bucket",
        "agent_rl_trajectory_reward_bucket",
    }  # fmt: skip
    assert published <= exported()
    # avg_over_time(agent_rl_trajectory_reward[1h]) asks for the plain name, which a histogram does not have.
    recorded = [rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule]
    assert recorded == ["agent_rl_trajectory_reward"]


def test_counters_that_rules_watch_begin_at_zero_so_that_the_first_alert_is_an_increase():
    watched = {kind for query in queries() for kind in re.findall(r'kind="(\w+)"', query)}
    assert watched <= set(ESCALATIONS)
    registry = Metrics().registry
    for kind in ESCALATIONS:
        assert registry.get_sample_value("onward_alerts_total", {"kind": kind}) == 0.0
    for status in JOB_STATUSES:
        assert registry.get_sample_value("agent_rl_training_jobs_total", {"status": status}) == 0.0
