"""Reading of ``onward.toml``, of the environment and of what a caller overrides."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from onward.config.release import ReleaseSettings
from onward.config.settings import Settings
from onward.errors import ConfigError
from onward.spelling import closest_name

# Published variable (docs/compatibility.md) → (section, field). Values stay text; pydantic converts them.
SEED_VARIABLES: dict[str, tuple[str, ...]] = {
    "NATS_URL": ("nats", "url"),
    "NATS_TOKEN": ("nats", "token"),
    "AGENTZERO_JETSTREAM": ("agentzero_jetstream",),
    "AGENTGYM_RL_URL": ("external", "agentgym_rl_url"),
    "AGENTGYM_RL_API_KEY": ("external", "agentgym_rl_api_key"),
    "TENSORZERO_BASE_URL": ("external", "tensorzero_base_url"),
    "TENSORZERO_ADMIN_TOKEN": ("external", "tensorzero_admin_token"),
    "MODEL_STORAGE_PATH": ("objects", "models_url"),
    "TRAJECTORY_STORAGE_PATH": ("objects", "trajectories_url"),
    "RL_CAPTURE_OPT_OUT": ("capture", "opt_out"),
    "RL_ALGORITHM": ("training", "algorithm"),
    "RL_BASE_MODEL": ("model", "base"),
    "RL_TRAINING_THRESHOLD": ("training", "threshold"),
    "RL_SCHEDULE_CRON": ("training", "schedule"),
    "REWARD_WEIGHT_TASK_COMPLETION": ("reward", "task_completion"),
    "REWARD_WEIGHT_EFFICIENCY": ("reward", "efficiency"),
    "REWARD_WEIGHT_CODE_QUALITY": ("reward", "code_quality"),
    "REWARD_WEIGHT_USER_FEEDBACK": ("reward", "user_feedback"),
    "REWARD_WEIGHT_SAFETY": ("reward", "safety"),
    "REWARD_WEIGHT_ACCURACY": ("reward", "accuracy"),
    "REWARD_WEIGHT_RUBRIC": ("reward", "rubric"),
    "CANARY_RAMP_HOURS": ("release", "canary_ramp_hours"),
    "ROLLBACK_ERROR_THRESHOLD": ("release", "error_ceiling"),
}


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads ``file`` (or ``./onward.toml`` if it exists), then ``environ``, then ``overrides``.

    ``overrides`` is nested like the file: ``{"model": {"base": "tiny"}}``. Raises ConfigError, whose message
    names the first wrong key and the expected value.
    """
    environ = os.environ if environ is None else environ
    tree: dict[str, Any] = {}
    if file is None and Path("onward.toml").is_file():
        file = Path("onward.toml")
    if file is not None:
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist: give the path of an onward.toml.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}.") from None
    for name, path in SEED_VARIABLES.items():
        if environ.get(name):
            _put(tree, path, environ[name])
    if environ.get("CANARY_INITIAL_TRAFFIC"):
        _set_first_step(tree, environ["CANARY_INITIAL_TRAFFIC"])
    if environ.get("ROLLBACK_REWARD_THRESHOLD"):
        _put(tree, ("release", "reward_margin"), environ["ROLLBACK_REWARD_THRESHOLD"].lstrip("-"))
    for name, value in environ.items():
        if name.startswith("ONWARD_") and "__" in name:
            _put(tree, tuple(name.removeprefix("ONWARD_").lower().split("__")), value)
    if environ.get("ONWARD_DATA_DIR"):
        tree["data_dir"] = environ["ONWARD_DATA_DIR"]
    _merge(tree, overrides or {})
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_sentence(error, file)) from None


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    node = tree
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{part!r} in onward.toml must be a section, not a value.")
    node[path[-1]] = value


def _set_first_step(tree: dict[str, Any], text: str) -> None:
    try:
        share = float(text)
    except ValueError:
        raise ConfigError(f"CANARY_INITIAL_TRAFFIC is {text!r}: expected a share such as 0.10.") from None
    release = tree.setdefault("release", {})
    later = [step for step in release.get("steps", ReleaseSettings.model_validate({}).steps)[1:]]
    release["steps"] = [share, *later]


def _merge(tree: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            _merge(tree.setdefault(key, {}), value)
        else:
            tree[key] = value


def _sentence(error: ValidationError, file: Path | None) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the settings"
    source = f" (in {file} or the environment)" if file else " (from the environment)"
    if first["type"] == "extra_forbidden":
        section: Any = Settings
        for part in first["loc"][:-1]:
            field = getattr(section, "model_fields", {}).get(str(part))
            section = field.annotation if field else get_args(section)[1]
        known = ", ".join(sorted(section.model_fields))
        near = closest_name(str(first["loc"][-1]), section.model_fields)
        if near is None:
            return f"Unknown setting {where!r}{source}: expected one of {known}."
        meant = ".".join([*(str(part) for part in first["loc"][:-1]), near])
        return f"Unknown setting {where!r}{source}: did you mean {meant}? Known here are {known}."
    if first["type"] in ("list_type", "tuple_type"):
        return f"Setting {where!r}{source} is not valid: expected a list in brackets, such as [10, 20, 40]."
    return f"Setting {where!r}{source} is not valid: {first['msg'].removeprefix('Value error, ')}."
