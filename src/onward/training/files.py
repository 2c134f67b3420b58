"""Training data in files: JSON lines (or one JSON value) of these forms, told apart record by record.

* a trajectory as published (``trajectory.v1``), its reward in the same record (``{"trajectory", "reward"}``),
  in a record of its own (``reward.v1``, any order; the newest one counts), or only told
  (``metadata.outcome``);
* a line of a frozen dataset (``jobs/<id>/dataset.jsonl``);
* a conversation ``{"messages": […], "reward"?, "success"?, "group"?, "task_type"?}``: without a reward it is
  a demonstration for ``sft``, and unscored for everything else;
* a pair ``{"prompt", "chosen", "rejected"}``, each a text or messages: for ``dpo``.

Know before changing: these are a person's own files, so no signature is asked for; the rest is as in a job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import ConfigError, TrainingError
from onward.training import admission
from onward.training.admission import Rules, Scored
from onward.training.dataset import Shares
from onward.training.request import TEXT_IS_ENOUGH

Line = dict[str, Any]
_COMPLETION = {"completed_successfully": 1.0, "failed": 0.0, "abandoned": 0.0}


def read(
    paths: Sequence[Path],
    algorithm: str,
    *,
    behaviour: str = "recorded",
    dense: bool = False,
    max_unscored_share: float = 0.2,
    max_masked_share: float = 0.5,
) -> tuple[list[Line], Counter[str]]:
    """Dataset lines, and what was left out by reason. Raises ConfigError with file and line.

    Raises TrainingError("DATA") where the files hold the work of several policies and ``algorithm`` cares,
    and where too much of them is unscored or, for a policy gradient, has no tokens left.
    """
    text = algorithm in TEXT_IS_ENOUGH or behaviour == "recompute"
    rules = Rules(None, None, {}, text, dense)
    trajectories: dict[str, Scored] = {}
    rewards: dict[str, Mapping[str, Any]] = {}
    lines: list[Line] = []
    excluded: Counter[str] = Counter()
    shares = Shares()
    for where, record in _records(paths):
        if "turns" in record or "trajectory" in record:
            told = record.get("trajectory", record)
            name = str(told.get("trajectory_id"))
            trajectories[name] = Scored(told, record.get("reward"))
        elif "reward_components" in record:
            _newest(rewards, record)
        elif "calls" in record:
            shares.add(record)
            lines.append(record)
        elif "chosen" in record and "rejected" in record:
            lines += _pair(where, record)
        elif "messages" in record:
            made = _conversation(where, record)
            unscored = text and "reward" not in record and algorithm != "sft"
            shares.add(made, unscored=unscored)
            if unscored:
                excluded["unscored"] += 1
            else:
                lines.append(made)
        else:
            raise ConfigError(
                f"{where} is no trajectory, reward, conversation or pair (its fields are "
                f"{', '.join(sorted(record)[:6])}): see docs/train-command.md for the forms."
            )
    digests: set[str] = set()
    for name, item in trajectories.items():
        scored = Scored(item.trajectory, rewards.get(name) or item.reward or _told(item.trajectory))
        try:
            made = admission.line(scored, rules)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"Trajectory {name[:60]!r} has no usable {error} where trajectory.v1 and reward.v1 have one: "
                f"give documents as published."
            ) from None
        shares.take(scored, made)
        if isinstance(made, str):
            excluded[made] += 1
            continue
        if "calls" in made and not text:
            (made["policy"],) = _digests(item.trajectory)  # ``admission`` refuses mixed ones
            digests.add(made["policy"])
        lines.append(made)
    shares.refuse(max_unscored_share, 1.0 if text else max_masked_share)
    if len(digests) > 1:
        raise TrainingError(
            "DATA",
            f"The files hold the work of {len(digests)} policies, and {algorithm} learns from one: give "
            f"those of one (model_digest of each call), or use dpo or sft.",
        )
    if not text:
        textual = [line for line in lines if "calls" not in line]
        excluded["no_tokens"] += len(textual)
        lines = [line for line in lines if "calls" in line]
    return lines, +excluded


def _records(paths: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read as text ({type(error).__name__}): give JSON or JSON lines."
            ) from None
        found = False
        for number, value in _values(path, text):
            found = True
            if not isinstance(value, dict):
                raise ConfigError(f"{path}, record {number}, is a {type(value).__name__}: give JSON objects.")
            yield f"{path}, record {number},", value
        if not found:
            raise ConfigError(f"{path} is empty: give JSON lines with at least one record.")


def _values(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, list):
        yield from enumerate(whole, 1)
        return
    if whole is not None:
        yield 1, whole
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}, is not JSON ({error}): give JSON lines.") from None


def _newest(rewards: dict[str, Mapping[str, Any]], reward: Mapping[str, Any]) -> None:
    """Superseding rewards: the highest revision counts, then the latest."""
    name = str(reward.get("trajectory_id"))
    known = rewards.get(name)
    if known is None or _age(known) <= _age(reward):
        rewards[name] = reward


def _age(reward: Mapping[str, Any]) -> tuple[int, str]:
    metadata = reward.get("metadata") or {}
    return int(metadata.get("revision") or 0), str(reward.get("timestamp") or "")


def _told(trajectory: Mapping[str, Any]) -> dict[str, Any] | None:
    """A reward from ``metadata.outcome``, where nobody scored the trajectory."""
    outcome = (trajectory.get("metadata") or {}).get("outcome") or {}
    status = outcome.get("status")
    if status == "partial_completion":
        completion = float(outcome.get("completion_percentage") or 0.0) / 100.0
    elif status in _COMPLETION:
        completion = _COMPLETION[status]
    else:
        return None
    return {
        "metadata": {
            "outcome": {"completion": completion, "success": status == "completed_successfully"},
            "raw_total": completion,
        }
    }


def _digests(trajectory: Mapping[str, Any]) -> set[str]:
    records = [turn["action"].get("sampling") for turn in trajectory["turns"]]
    return {str(record.get("model_digest")) for record in records if record}


def _conversation(where: str, record: Mapping[str, Any]) -> Line:
    messages = _messages(where, record["messages"])
    reward = record.get("reward", 1.0)
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ConfigError(f"{where} has a reward that is no number: give one, or leave it out for sft.")
    success = record.get("success", reward >= 1.0)
    return {
        "trajectory_id": str(record.get("id", where)),
        "session_id": "",
        "task_type": str(record.get("task_type", "general")),
        "group_key": None if record.get("group") is None else str(record["group"]),
        "outcome": float(reward),
        "success": bool(success),
        "unparsable": False,
        "raw_total": float(reward),
        "messages": messages,
    }


def _pair(where: str, record: Mapping[str, Any]) -> list[Line]:
    prompt = record.get("prompt", [])
    start = _messages(where, prompt) if not isinstance(prompt, str) else [_said("user", prompt)]
    made = []
    for side, reward in (("chosen", 1.0), ("rejected", 0.0)):
        answer = record[side]
        said = [_said("assistant", answer)] if isinstance(answer, str) else _messages(where, answer)
        talk = {
            "messages": [*start, *said],
            "reward": reward,
            "group": f"pair at {where}",
            "id": f"{where} {side}",
        }
        made.append(_conversation(where, talk))
    return made


def _messages(where: str, given: object) -> list[dict[str, str]]:
    good = isinstance(given, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in given
    )
    if not good:
        raise ConfigError(f"{where} has messages that are not a list of {{role, content}} with texts.")
    assert isinstance(given, list)
    return [_said(message["role"], message["content"]) for message in given]


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
