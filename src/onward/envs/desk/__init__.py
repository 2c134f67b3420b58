"""The desk: a small office assistant with six tools, the environment that ships with Onward.

A program decides success. It requires both the right value and real use of the tool that gives it, so no
constant or guessing policy can win. Partial credit (completion) is a separate number.
"""

from onward.envs.desk.episode import MAX_STEPS, DeskOutcome, Episode, Message, Step
from onward.envs.desk.reference import constant_policies, demonstrations, play, solve, success_rate
from onward.envs.desk.tasks import KINDS, SPLITS, TEMPLATES, Task, panel_hash, tasks
from onward.envs.desk.tools import SYSTEM_PROMPT, TOOLS

__all__ = [
    "KINDS", "MAX_STEPS", "SPLITS", "SYSTEM_PROMPT", "TEMPLATES", "TOOLS", "DeskOutcome", "Episode",
    "Message", "Step", "Task", "constant_policies", "demonstrations", "panel_hash", "play", "solve",
    "success_rate", "tasks",
]  # fmt: skip
