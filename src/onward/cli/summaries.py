"""First paragraph of each command's help, so that ``onward --help`` need not load the commands."""

from __future__ import annotations

PANELS: dict[str, dict[str, str]] = {
    "First steps": {
        "demo": "Watch an agent get better: the whole loop on this machine, with real parts and no "
        "service needed.",
        "up": "Start the service: the whole loop in one process, with NATS and ClickHouse built in.",
        "status": "Show what serves, what comes next and the last release; then streams, jobs, releases and"
        " counts.",
        "run": "Start one role of the service in a process of its own, beside the others.",
    },
    "Agents and data": {
        "agent-zero": "The plugin for Agent Zero: install it, check it, remove it.",
        "trajectories": "What agents did, turn by turn: look, or take it to another library.",
        "sft": "Demonstrations: what scored well, to imitate.",
        "redact": "Print FILE without secrets and personal data. Each JSON line is redacted by itself.",
        "feedback": "Votes from chat pages: tokens and their keys.",
        "rewards": "Rewards: how one came about, scores of a file, what other weights would do.",
        "mcp": "Serve the tools to an agent: Claude, Cursor, VS Code, Agent Zero, any client of the "
        "protocol.",
        "tools": "Tools by which an agent works with the loop: list them, print their schemas, call one.",
        "rescore": "Score stored trajectories again, with present weights and components.",
        "quarantine": "Held bodies: encrypted since they could not be redacted. Look, try again, or drop.",
        "dlq": "Dead letters: messages that could not be processed. Look, send again, or drop.",
    },
    "Training and control": {
        "models": "Base models on this machine, and the policies that were released.",
        "train": "Train a policy from files (--data) or in an environment (--env). No service is needed.",
        "env": "Environments: tasks with a verdict by program. List, serve or play them.",
        "training": "Training jobs of the service: start one by hand. 'onward jobs' follows it.",
        "jobs": "Training jobs: which ran, why one failed, what it came to.",
        "datasets": "Frozen datasets of jobs: where each row came from, and whether it is unchanged.",
        "validate": "Compare a stored model with the current one on the same items, without any traffic.",
        "keys": "Keys that sign checkpoints: make one, show its public half, sign what is stored.",
        "rubrics": "Rubrics: train a model that writes them, and see how well they score work.",
        "control": "Control policies for Gymnasium environments: train, evaluate, resume, export, compare.",
    },
    "Operating": {
        "releases": "What was released and why not; what the release that is under way shall do.",
        "incidents": "What rolled-back candidates failed at, with cause and recommendation.",
        "ab": "A/B tests of two stored models: a fixed split, an interval to read at any time, a stop rule.",
        "pause": "Stop learning until 'onward resume': trajectories are still stored and scored.",
        "resume": "Resume learning.",
        "pin": "Serve one model and release nothing until 'onward unpin'.",
        "unpin": "Allow releases again.",
        "buckets": "Records of the service: look at them, find the unreadable ones, drop one.",
        "nats": "A NATS server of your own: its logins and their rights.",
        "warehouse": "The warehouse: find rows that it lost, and store them again.",
        "streams": "JetStream streams: see and migrate differences.",
        "contracts": "The messages that cross the bus, as JSON Schema.",
    },
}
"""Panels of ``onward --help``: title → command → summary, in this order."""
SUMMARIES = {name: text for panel in PANELS.values() for name, text in panel.items()}
