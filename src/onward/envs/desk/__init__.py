"""The desk: a small office assistant with six tools, the environment that ships with Onward.

Success is decided by program and needs both the right value and the real use of the tool it comes
from, so no constant or guessing policy can win; partial credit (completion) is a separate number.
"""

from onward.envs.desk.episode import MAX_STEPS, DeskOutcome, Episode, Message, Step
from onward.envs.desk.reference import constant_policies, demonstrations, play, solve, success_rate
from onward.envs.desk.tasks import KINDS, SPLITS, TEMPLATES, Task, panel_hash, task_from_id, tasks
from onward.envs.desk.tools import SYSTEM_PROMPT, TOOLS

__all__ = [
    "KINDS",
    "MAX_STEPS",
    "SPLITS",
    "SYSTEM_PROMPT",
    "TEMPLATES",
    "TOOLS",
    "DeskOutcome",
    "Episode",
    "Message",
    "Step",
    "Task",
    "constant_policies",
    "demonstrations",
    "panel_hash",
    "play",
    "solve",
    "success_rate",
    "task_from_id",
    "tasks",
]
