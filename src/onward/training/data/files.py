"""Training data in files: JSON lines (or one JSON value) of these forms, recognised record by record.

* a trajectory as published (``trajectory.v1``), its reward in the same record (``{"trajectory", "reward"}``),
  in a record of its own (``reward.v1``, any order; the newest one counts), or only as an outcome
  (``metadata.outcome``);
* a line of a frozen dataset (``jobs/<id>/dataset.jsonl``);
* a conversation ``{"messages": […], "tools"?, "reward"?, "success"?, "group"?, "task_type"?}``: without a
  reward it is a demonstration for ``sft``, and unscored for everything else; tools and their calls, in
  OpenAI's form, become the words that the gateway uses for a model without a tool template;
* a correction: in a conversation (``"correction"``: the text in place of its last answer), beside a
  trajectory (``{"trajectory", "feedback": […]}``) or as ``feedback.v1`` in a record of its own: for ``dpo``;
* a pair ``{"prompt", "chosen", "rejected"}``, each a text or messages: for ``dpo``.

These are a user's own files, so no signature is required; all other rules are those of a job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.contracts import Feedback, validate
from onward.errors import ConfigError, ContractError, TrainingError
from onward.lm.tool_words import in_words
from onward.training.data import admission, corrections
from onward.training.data.admission import AdmissionRules, ScoredTrajectory
from onward.training.data.dataset import Shares
from onward.training.spec.algorithms import ALGORITHMS

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
    """Reads dataset lines and the count of exclusions by reason. Raises ConfigError with file and line.

    Raises TrainingError("DATA") when the files contain the work of several policies and ``algorithm`` needs
    one policy, or when too much of them is unscored or, for a policy gradient, has no tokens left.
    """
    text = ALGORITHMS[algorithm].text_is_enough or behaviour == "recompute"
    rules = AdmissionRules(None, None, {}, text, dense)
    trajectories: dict[str, ScoredTrajectory] = {}
    rewards: dict[str, Mapping[str, Any]] = {}
    lines: list[Line] = []
    excluded: Counter[str] = Counter()
    shares = Shares()
    said: list[Feedback] = []
    for where, record in _records(paths):
        if "turns" in record or "trajectory" in record:
            told = record.get("trajectory", record)
            name = str(told.get("trajectory_id"))
            trajectories[name] = ScoredTrajectory(told, record.get("reward"))
            said += [_feedback(where, one) for one in record.get("feedback", ())]
        elif "reward_components" in record:
            _newest(rewards, record)
        elif "signal" in record:
            said.append(_feedback(where, record))
        elif "calls" in record:
            shares.count_read_line(record)
            lines.append(record)
        elif "chosen" in record and "rejected" in record:
            lines += _pair(where, record)
        elif "messages" in record:
            made = _conversation(where, record)
            if "correction" in record:
                _correct(where, record["correction"], made, algorithm, excluded)
            silent = text and "reward" not in record and algorithm != "sft"
            if silent:
                made |= {"outcome": None, "success": None, "raw_total": None}
            unscored = silent and "correction" not in made
            shares.count_read_line(made, unscored=unscored)
            excluded["unscored"] += unscored
            lines += [] if unscored else [made]
        else:
            raise ConfigError(
                f"{where} is no trajectory, reward, conversation or pair (its fields are "
                f"{', '.join(sorted(record)[:6])}): see docs/train-command.md for the forms."
            )
    written = _corrections(said, trajectories, algorithm, excluded)
    scored = [
        ScoredTrajectory(
            item.trajectory, rewards.get(name) or item.reward or _told(item.trajectory), written.get(name)
        )
        for name, item in trajectories.items()
    ]
    lines += _admitted(scored, rules, shares, excluded)
    digests = {line["policy"] for line in lines if "policy" in line} if not text else set()
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


def _admitted(
    scored: Sequence[ScoredTrajectory], rules: AdmissionRules, shares: Shares, excluded: Counter[str]
) -> Iterator[Line]:
    """Yields the admitted lines; for a policy gradient, ``policy`` names the policy that sampled them."""
    for item in scored:
        try:
            made = admission.line(item, rules)
            if not isinstance(made, str):
                made = corrections.apply_correction(made, item, excluded)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"Trajectory {str(item.trajectory.get('trajectory_id'))[:60]!r} has no usable {error} where "
                f"trajectory.v1 and reward.v1 have one: give documents as published."
            ) from None
        shares.count_line(item, made)
        if isinstance(made, str):
            excluded[made] += 1
            continue
        if "calls" in made and not rules.text_is_enough:
            (made["policy"],) = _digests(item.trajectory)  # ``admission`` refuses mixed ones
        yield made


def _records(paths: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"There is no file {path}: give JSON or JSON lines.") from None
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
    """Stores the reward that supersedes the others: the highest revision, then the latest."""
    name = str(reward.get("trajectory_id"))
    known = rewards.get(name)
    if known is None or _age(known) <= _age(reward):
        rewards[name] = reward


def _age(reward: Mapping[str, Any]) -> tuple[int, str]:
    metadata = reward.get("metadata") or {}
    return int(metadata.get("revision") or 0), str(reward.get("timestamp") or "")


def _told(trajectory: Mapping[str, Any]) -> dict[str, Any] | None:
    """Builds a reward from ``metadata.outcome``, for a trajectory without a score."""
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


def _feedback(where: str, record: object) -> Feedback:
    try:
        return validate(record, Feedback)
    except ContractError as error:
        raise ConfigError(f"{where} is no feedback.v1 ({error}): see docs/corrections.md.") from None


def _corrections(
    said: Sequence[Feedback],
    trajectories: Mapping[str, ScoredTrajectory],
    algorithm: str,
    excluded: Counter[str],
) -> dict[str, Feedback]:
    """Returns trajectory id → its last correction; those that match nothing or have no use are counted."""
    given = [one for one in said if corrections.is_correction(one)]
    if algorithm != "dpo":
        excluded["correction_unused"] += len(given)
        return {}
    work = [
        {"trajectory_id": name, "session_id": item.trajectory["session_id"],
         "start_ts": item.trajectory["start_timestamp"].replace("Z", "+00:00")}
        for name, item in trajectories.items()
    ]  # fmt: skip
    found = corrections.match_to_trajectories([(one, one.timestamp) for one in given], work)
    sessions = {row["session_id"] for row in work}
    lost = sum(not one.trajectory_id and one.session_id not in sessions for one in given)
    excluded["correction_of_nothing"] += lost + len(found.keys() - trajectories.keys())
    return found


def _correct(where: str, written: object, line: Line, algorithm: str, excluded: Counter[str]) -> None:
    """Puts the correction of a conversation's last answer into its line; an excluded one is counted."""
    if not isinstance(written, str):
        raise ConfigError(f"{where} has a correction that is no text: give the answer as it should be.")
    at = max((n for n, one in enumerate(line["messages"]) if n and one["role"] == "assistant"), default=None)
    if at is None:
        raise ConfigError(f"{where} has a correction and no answer of the assistant: give the answer first.")
    reason = "correction_unused" if algorithm != "dpo" else corrections.unusable_reason(written)
    answer = None if reason else corrections.in_form(line["messages"][at]["content"], written.strip())
    if answer is None:
        excluded[reason or "correction_other_form"] += 1
    else:
        line["correction"] = {"answer": answer, "message": at}


def _conversation(where: str, record: Mapping[str, Any]) -> Line:
    messages = _messages(where, record["messages"], record.get("tools"))
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
    start = _listed(where, prompt) if not isinstance(prompt, str) else [_said("user", prompt)]
    made = []
    for side, reward in (("chosen", 1.0), ("rejected", 0.0)):
        answer = record[side]
        said = [_said("assistant", answer)] if isinstance(answer, str) else _listed(where, answer)
        talk = {
            "messages": [*start, *said],
            "tools": record.get("tools"),
            "reward": reward,
            "group": f"pair at {where}",
            "id": f"{where} {side}",
        }
        made.append(_conversation(where, talk))
    return made


def _messages(where: str, given: object, tools: object) -> list[dict[str, str]]:
    """Returns role and text of each message; ``tools`` (a list, or its JSON) and calls are put into words."""
    messages = _listed(where, given)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            tools = tools or None
    offered = tools or []
    if not isinstance(offered, list) or not all(_is_function(tool) for tool in offered):
        raise ConfigError(
            f"{where} has tools that are not a list of {{type, function: {{name, parameters}}}}: give them "
            f"as the chat API takes them."
        )
    return [_said(message["role"], message["content"]) for message in in_words(messages, offered)]


def _listed(where: str, given: object) -> list[dict[str, Any]]:
    """Returns ``given`` as messages. Raises ConfigError when one has neither a text nor tool calls."""
    good = isinstance(given, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and (isinstance(message.get("content"), str) or (message.get("content") is None and _calls(message)))
        and (not message.get("tool_calls") or _calls(message))
        for message in given
    )
    if not good:
        raise ConfigError(f"{where} has messages that are not a list of {{role, content}} with texts.")
    assert isinstance(given, list)
    return given


def _calls(message: Mapping[str, Any]) -> bool:
    calls = message.get("tool_calls")
    return isinstance(calls, list) and bool(calls) and all(_is_function(call) for call in calls)


def _is_function(given: object) -> bool:
    function = given.get("function") if isinstance(given, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
