"""Training data in files: JSON lines (or one JSON value) of these forms, recognised record by record.

* a trajectory as published (``trajectory.v1``), its reward in the same record (``{"trajectory", "reward"}``),
  in a record of its own (``reward.v1``, any order; the newest one counts), or only as an outcome
  (``metadata.outcome``);
* a line of a frozen dataset (``jobs/<id>/dataset.jsonl``);
* a conversation ``{"messages": […], "tools"?, "reward"?, "success"?, "group"?, "task_type"?}``, or with
  ``"prompt"`` and ``"completion"`` in place of messages: without a reward it is a demonstration for ``sft``,
  and unscored for everything else; tools and their calls, in OpenAI's form, are rendered by the chat template
  as the gateway does;
* a correction: in a conversation (``"correction"``: the text in place of its last answer), beside a
  trajectory (``{"trajectory", "feedback": […]}``) or as ``feedback.v1`` in a record of its own: for ``dpo``;
* a pair ``{"prompt", "chosen", "rejected"}``, each a text or messages, or in OpenAI's form (``"input"``,
  ``"preferred_output"``, ``"non_preferred_output"``): for ``dpo``.

These are a user's own files, so no signature is required; all other rules are those of a job. A record that
cannot be learnt from is left out under a name and counted; one that is none of these forms is refused, and so
is a field that looks mistyped. Other unknown fields are named.
"""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.contracts import Feedback, validate
from onward.errors import ConfigError, ContractError, TrainingError
from onward.lm.tool_words import in_words
from onward.training.data import admission, corrections, messages
from onward.training.data.admission import AdmissionRules, ScoredTrajectory
from onward.training.data.dataset import Shares, leave_out
from onward.training.data.messages import LeftOutError
from onward.training.data.report import DataReport
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
) -> tuple[list[Line], DataReport]:
    """Reads dataset lines; the report counts what was left out. Raises ConfigError with file and record.

    Raises TrainingError("DATA") when the files contain the work of several policies and ``algorithm`` needs
    one policy, or when too much of them is unscored or, for a policy gradient, has no tokens left.
    """
    text = ALGORITHMS[algorithm].text_is_enough or behaviour == "recompute"
    rules = AdmissionRules(None, None, {}, text, dense)
    trajectories: dict[str, ScoredTrajectory] = {}
    places: dict[str, str] = {}
    rewards: dict[str, Mapping[str, Any]] = {}
    lines: list[Line] = []
    excluded = DataReport()
    shares = Shares()
    said: list[Feedback] = []
    for where, record in _records(paths):
        form = _form(where, record)
        _name_unread(where, record, form, excluded)
        try:
            if form == "trajectory":
                _refuse_not_finite(record)
                told = record.get("trajectory", record)
                name = str(told.get("trajectory_id"))
                trajectories[name] = ScoredTrajectory(told, record.get("reward"))
                places[name] = _place(where)
                said += [_feedback(where, one) for one in record.get("feedback", ())]
            elif form == "reward":
                _refuse_not_finite(record)
                _newest(rewards, record)
            elif form == "feedback":
                said.append(_feedback(where, record))
            elif form == "line":
                made = _line(where, record)
                shares.count_read_line(made)
                lines.append(made)
            elif form == "pair":
                lines += _pair(where, record)
            else:
                made = _conversation(where, record if form == "conversation" else _completed(where, record))
                if "correction" in record:
                    _correct(where, record["correction"], made, algorithm, excluded)
                silent = text and "reward" not in record and algorithm != "sft"
                if silent:
                    made |= {"outcome": None, "success": None, "raw_total": None}
                unscored = silent and "correction" not in made
                shares.count_read_line(made, unscored=unscored)
                if unscored:
                    excluded.leave_out("unscored", _place(where))
                else:
                    lines.append(made)
        except LeftOutError as reason:
            excluded.leave_out(reason.reason, _place(where))
    written = _corrections(said, trajectories, algorithm, excluded)
    scored = [
        ScoredTrajectory(
            item.trajectory, rewards.get(name) or item.reward or _told(item.trajectory), written.get(name)
        )
        for name, item in trajectories.items()
    ]
    lines += _admitted(scored, rules, shares, excluded, places)
    digests = {line["policy"] for line in lines if "policy" in line} if not text else set()
    shares.refuse(max_unscored_share, 1.0 if text else max_masked_share)
    if len(digests) > 1:
        raise TrainingError(
            "DATA",
            f"The files hold the work of {len(digests)} policies, and {algorithm} learns from one: give "
            f"those of one (model_digest of each call), or use dpo or sft.",
        )
    if not text:
        for line in lines:
            if "calls" not in line:
                leave_out(excluded, "no_tokens", line)
        lines = [line for line in lines if "calls" in line]
    for reason in [name for name, count in excluded.items() if not count]:
        del excluded[reason]
    return lines, excluded


_SIDES = ("chosen", "rejected")
_WITHOUT_EFFECT = frozenset({"parallel_tool_calls", "metadata", "store"})
_CONVERSATION = frozenset(
    {"messages", "tools", "functions", "reward", "success", "group", "task_type", "id", "correction"}
)
_FIELDS: dict[str, frozenset[str]] = {
    "line": frozenset(
        {"trajectory_id", "session_id", "task_type", "group_key", "outcome", "success", "unparsable",
         "raw_total", "calls", "messages", "tools", "staleness", "turn_rewards", "correction", "policy",
         "vote", "place"}
    ),
    "pair": frozenset(
        {"prompt", *_SIDES, "input", "preferred_output", "non_preferred_output", "tools", "functions", "id"}
    ),
    "conversation": _CONVERSATION,
    "completion": frozenset({"prompt", "completion", *_CONVERSATION} - {"messages"}),
}  # fmt: skip
"""Form of a record → its fields. Published documents are open: their schemas allow others."""
_TYPO = 0.8
"""Similarity from which an unknown field is taken for a mistyped one."""


def _form(where: str, record: Mapping[str, Any]) -> str:
    """Returns the form of a record. Raises ConfigError if it has none."""
    if "turns" in record or "trajectory" in record:
        return "trajectory"
    if "reward_components" in record:
        return "reward"
    if "signal" in record:
        return "feedback"
    if "calls" in record or ("messages" in record and "group_key" in record):
        return "line"
    if all(side in record for side in _SIDES) or "preferred_output" in record:
        return "pair"
    if "messages" in record:
        return "conversation"
    if "prompt" in record and "completion" in record:
        return "completion"
    raise ConfigError(
        f"{where} is no trajectory, reward, conversation or pair (its fields are "
        f"{', '.join(sorted(record)[:6])}): see docs/train-command.md for the forms."
    )


def _name_unread(where: str, record: Mapping[str, Any], form: str, excluded: DataReport) -> None:
    """Notes the fields that the form does not have. Raises ConfigError for one that looks mistyped."""
    known = _FIELDS.get(form)
    for name in record if known is not None else ():
        if known is None or name in known or name in _WITHOUT_EFFECT:
            continue
        near = difflib.get_close_matches(name, known - set(record), 1, _TYPO)
        if near:
            raise ConfigError(
                f"{where} has the field {name[:40]!r}, which is not read: rename it to {near[0]!r}, if that "
                f"is meant, or leave it out."
            )
        excluded.unread.setdefault(name[:40], _place(where))


def _completed(where: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a prompt and its completion as a conversation."""
    talk = [*_said(where, record["prompt"], "user"), *_said(where, record["completion"], "assistant")]
    return {**record, "messages": talk}


def _line(where: str, record: Mapping[str, Any]) -> Line:
    """Returns a line of a frozen dataset. Raises ConfigError for one that lacks a field."""
    _refuse_not_finite(record)
    missing = [name for name in _SCORES if name not in record]
    calls = record.get("calls", [])
    if missing or not isinstance(calls, list):
        raise ConfigError(
            f"{where} is a line of a dataset without {missing[0] if missing else 'a list of calls'}: give "
            f"lines as a job writes them."
        )
    for call in calls:
        absent = [
            name for name in admission.CALL_FIELDS[:6] if not isinstance(call, dict) or name not in call
        ]
        if absent:
            raise ConfigError(f"{where} has a call without {absent[0]}: give lines as a job writes them.")
        if call["logprobs"] is not None and len(call["logprobs"]) != len(call["token_ids"]):
            raise LeftOutError("other_lengths")
    return {"place": _place(where), **record}


_SCORES = ("trajectory_id", "task_type", "group_key", "outcome", "success", "unparsable", "raw_total")


def _refuse_not_finite(value: object) -> None:
    """Raises LeftOutError for a number that is NaN or infinite, anywhere in ``value``."""
    if isinstance(value, float) and not math.isfinite(value):
        raise LeftOutError("not_finite")
    if isinstance(value, dict):
        for one in value.values():
            _refuse_not_finite(one)
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, float | dict | list):
                _refuse_not_finite(one)


def _admitted(
    scored: Sequence[ScoredTrajectory],
    rules: AdmissionRules,
    shares: Shares,
    excluded: DataReport,
    places: Mapping[str, str],
) -> Iterator[Line]:
    """Yields the admitted lines; for a policy gradient, ``policy`` names the policy that sampled them."""
    for item in scored:
        name = str(item.trajectory.get("trajectory_id"))
        try:
            made = admission.line(item, rules)
            if not isinstance(made, str):
                made = corrections.apply_correction(made, item, excluded)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{places[name]}, trajectory {name[:60]!r}, has no usable {error} where trajectory.v1 and "
                f"reward.v1 have one: give documents as published."
            ) from None
        shares.count_line(item, made)
        if isinstance(made, str):
            excluded.leave_out(made, places[name])
            continue
        if "calls" in made and not rules.text_is_enough:
            (made["policy"],) = _digests(item.trajectory)  # ``admission`` refuses mixed ones
        yield {**made, "place": places[name]}


def _records(paths: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8-sig")
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
    for number, line in enumerate(text.split("\n"), 1):  # a text may hold other line separators
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
            "outcome": {
                "completion": completion,
                "success": None if status == "partial_completion" else completion == 1.0,
            },
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


def _correct(where: str, written: object, line: Line, algorithm: str, excluded: DataReport) -> None:
    """Puts the correction of a conversation's last answer into its line; an excluded one is counted."""
    if not isinstance(written, str):
        raise ConfigError(f"{where} has a correction that is no text: give the answer as it should be.")
    at = max((n for n, one in enumerate(line["messages"]) if n and one["role"] == "assistant"), default=None)
    if at is None:
        raise ConfigError(f"{where} has a correction and no answer of the assistant: give the answer first.")
    reason = "correction_unused" if algorithm != "dpo" else corrections.unusable_reason(written)
    answer = None
    if not reason:
        (said,) = in_words([line["messages"][at]], ())
        answer = corrections.in_form(said["content"], written.strip())
    if answer is None:
        excluded.leave_out(reason or "correction_other_form", _place(where))
    else:
        line["correction"] = {"answer": answer, "message": at}


def _conversation(where: str, record: Mapping[str, Any]) -> Line:
    """Returns the line of a conversation. Raises ConfigError, LeftOutError."""
    reward, outcome = record.get("reward", 1.0), record.get("success")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ConfigError(f"{where} has a reward that is no number: give one, or leave it out for sft.")
    if not math.isfinite(reward):
        raise LeftOutError("not_finite")
    if outcome is not None and outcome not in (True, False):
        raise ConfigError(f"{where} has a success that is neither true nor false: give one, or leave it out.")
    if outcome is None and "reward" not in record:
        outcome = True  # a demonstration
    talk = messages.messages_of(where, record["messages"])
    tools = messages.tools_of(where, record.get("tools"), record.get("functions"))
    reason = messages.problem(talk)
    if reason is not None:
        raise LeftOutError(reason)
    return {
        "trajectory_id": str(record.get("id", _place(where))),
        "session_id": "",
        "task_type": str(record.get("task_type", "general")),
        "group_key": None if record.get("group") is None else str(record["group"]),
        "outcome": float(reward),
        "success": None if outcome is None else bool(outcome),
        "unparsable": False,
        "raw_total": float(reward),
        "messages": talk,
        **({"tools": tools} if tools else {}),
        "place": _place(where),
    }


def _pair(where: str, record: Mapping[str, Any]) -> list[Line]:
    """Returns the lines of a pair, in our form or OpenAI's (``input``, ``preferred_output`` …)."""
    given = record.get("input")
    given = given if isinstance(given, dict) else {}
    tools = given.get("tools", record.get("tools"))
    start = _said(where, given.get("messages", record.get("prompt", [])), "user")
    names = ("preferred_output", "non_preferred_output") if "preferred_output" in record else _SIDES
    made = []
    for side, name, reward in zip(_SIDES, names, (1.0, 0.0), strict=True):
        talk = {
            "messages": [*start, *_said(where, record[name], "assistant")],
            "tools": tools,
            "functions": record.get("functions"),
            "reward": reward,
            "group": f"pair at {where}",
            "id": f"{where} {side}",
        }
        made.append(_conversation(where, talk))
    return made


def _said(where: str, given: object, role: str) -> list[Any]:
    if isinstance(given, str):
        return [{"role": role, "content": given}]
    if not isinstance(given, list):
        raise ConfigError(
            f"{where} has a prompt or an answer that is neither a text nor messages: give one of them."
        )
    return given


def _place(where: str) -> str:
    return where.rstrip(",")
