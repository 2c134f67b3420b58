"""Report on a run of control training, in the form ``rl_training_solution`` of the seed, as YAML.

Every number is from the run's own files. What was not reached is null, and nothing is estimated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.control.core.spaces import ActionSpec
from onward.control.policies.policy import Policy
from onward.control.running.runs import Folder, RunConfig
from onward.errors import ControlError
from onward.files import read_json

HYPERPARAMETERS = {
    "learning_rate": "learning_rate", "batch_size": "batch_size", "clip": "clip_epsilon", "gamma": "gamma",
    "gae_lambda": "gae_lambda", "n_steps": "n_steps", "epochs": "epochs", "entropy_coef": "entropy_coef",
    "tau": "tau", "buffer_size": "buffer_size", "epsilon_end": "epsilon_end", "num_envs": "num_envs",
}  # fmt: skip
"""Setting of a run → its name in the report; settings that an algorithm lacks are left out."""
_MOST_STAGES = 20
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ ./+-]*")
_BLOCK = re.compile(r"[!-~]([ -~]*[!-~])?\n(([ -~]*[!-~])?\n)*[ -~]*[!-~]\n")
"""Text that a literal block keeps as it is: no line ends with a space, and the text with one end of line."""
_NUMBERS = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def solution(folder: Path) -> dict[str, Any]:
    """Returns the report on the run in ``folder``. Raises ControlError for a run that has no result yet."""
    where = Folder(folder)
    run, summary = where.read(), read_json(where.summary)
    if not isinstance(summary, dict):
        raise ControlError(f"The run in {folder} has no result yet: wait for its end, or resume it.")
    policy, settings = Policy.load(folder), vars(run.settings)
    bonus = str(settings.get("bonus", "none"))
    report = {
        "algorithm": run.algorithm.upper().replace("_", "-") + ("" if bonus == "none" else f" with {bonus}"),
        "environment": run.env,
        "training_configuration": {
            "state_space": _observations(policy),
            "action_space": _actions(policy.parts.actions),
            "reward_design": {
                "task_reward": f"The reward of {run.env}",
                "shaping_rewards": [],
                "exploration_bonus": bonus,
            },
            "hyperparameters": {
                shown: settings[name] for name, shown in HYPERPARAMETERS.items() if name in settings
            },
        },
        "training_results": _results(summary),
        "curriculum_stages": list(_stages(run, summary))[::-1],
        "deployment_code": _deployment(run),
    }
    return {"rl_training_solution": report}


def yaml_text(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML 1.2: two spaces for each level, long texts as literal blocks."""
    return "\n".join(_lines(document, "")) + "\n"


def _results(summary: Mapping[str, Any]) -> dict[str, Any]:
    solved, final = summary.get("solved"), summary["final"]
    return {
        "episodes_to_solve": solved["episode"] if solved else None,
        "final_success_rate": final["success"],
        "average_episode_reward": round(final["return"], 3),
        "training_time_hours": round(summary["seconds"] / 3600, 6),
        "episodes": summary["episodes"],
        "environment_steps": summary["steps"],
    }


def _stages(run: RunConfig, summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the runs that led here, the last one first: each started from the weights of the one before."""
    for _ in range(_MOST_STAGES):
        yield {
            "stage": run.stage or run.env + (f" {json.dumps(run.env_kwargs)}" if run.env_kwargs else ""),
            "episodes": summary["episodes"],
            "success_rate": summary["final"]["success"],
        }
        if not run.start:
            return
        before = Folder(Path(run.start))
        found = read_json(before.summary)
        if not isinstance(found, dict):
            return
        run, summary = before.read(), found


def _observations(policy: Policy) -> str:
    width, images = policy.parts.layout.width, len(policy.parts.layout.images)
    numbers = f"{width}-dimensional numbers" if width else ""
    pictures = f"{images} image{'s' if images > 1 else ''}" if images else ""
    return " + ".join(part for part in (numbers, pictures) if part)


def _actions(actions: ActionSpec) -> str:
    if actions.kind == "box":
        return f"{len(actions.low)}-dimensional continuous control"
    sizes = " × ".join(map(str, actions.sizes))
    return f"{sizes} choices ({actions.kind.replace('_', ' ')})"


def _deployment(run: RunConfig) -> str:
    made = "".join(f", {name}={value!r}" for name, value in (run.env_kwargs or {}).items())
    return f"""import gymnasium
from onward import control

policy = control.Policy.load(folder)  # the folder of this run or of its policy
env = gymnasium.make("{run.env}"{made})
obs, _ = env.reset(seed=0)
done, total = False, 0.0
while not done:
    action = policy.act(obs, deterministic=True)
    obs, reward, terminated, truncated, _ = env.step(action)
    total += float(reward)
    done = terminated or truncated
"""


def _lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, one in value.items():
        if isinstance(one, Mapping) and one:
            yield f"{indent}{_scalar(name)}:"
            yield from _lines(one, indent + "  ")
        elif isinstance(one, list) and one and all(isinstance(item, Mapping) for item in one):
            yield f"{indent}{_scalar(name)}:"
            for item in one:
                first, *rest = _lines(item, indent + "    ")
                yield f"{indent}  - {first.strip()}"
                yield from rest
        elif isinstance(one, str) and _BLOCK.fullmatch(one):
            yield f"{indent}{_scalar(name)}: |"
            yield from (f"{indent}  {line}".rstrip() for line in one.rstrip("\n").split("\n"))
        else:
            yield f"{indent}{_scalar(name)}: {_scalar(one)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.strip() == value and value.lower() not in _RESERVED
        return value if plain else _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return _NUMBERS[repr(value)]
    if isinstance(value, float) and "." not in (text := repr(value)) and "e" in text:
        return text.replace("e", ".0e")  # without a point, YAML 1.1 reads 1e-05 as text
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}" for each in json.dumps(text, ensure_ascii=False)
    )
