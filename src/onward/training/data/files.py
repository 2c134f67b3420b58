"""Training data in files: JSON lines (or one JSON value) of these forms, recognised record by record.

* a trajectory as published (``trajectory.v1``), its reward in the same record (``{"trajectory", "reward"}``),
  in a record of its own (``reward.v1``, any order; the newest one counts), or only as an outcome
  (``metadata.outcome``);
* a line of a frozen dataset (``jobs/<id>/dataset.jsonl``);
* a conversation ``{"messages": […], "tools"?, "reward"?, "success"?, "group"?, "task_type"?}``, or with
  ``"prompt"`` and ``"completion"`` in place of messages. A ``success`` without a reward is a reward of 1 or
  0; without both it is a demonstration for ``sft``, and unscored for everything else; tools and their calls,
  in OpenAI's form, are rendered by the chat template as the gateway does;
* a correction: in a conversation (``"correction"``: the text in place of its last answer), beside a
  trajectory (``{"trajectory", "feedback": […]}``) or as ``feedback.v1`` in a record of its own: for ``dpo``;
* a pair ``{"prompt", "chosen", "rejected"}``, each a text or messages, or in OpenAI's form (``"input"``,
  ``"preferred_output"``, ``"non_preferred_output"``): for ``dpo``.

These are a user's own files, so no signature is required; all other rules are those of a job. A record that
cannot be learnt from is left out under a name and counted; one that is none of these forms is refused, and so
is a field that looks mistyped. Other unknown fields are named.
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
from onward.training.data import admission, corrections, records
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
        form = records.form_of(where, record)
        records.name_unread(where, record, form, excluded)
        try:
            if form == "trajectory":
                records.refuse_not_finite(record)
                told = record.get("trajectory", record)
                name = str(told.get("trajectory_id"))
                trajectories[name] = ScoredTrajectory(told, record.get("reward"))
                places[name] = records.place_of(where)
                said += [_feedback(where, one) for one in record.get("feedback", ())]
            elif form == "reward":
                records.refuse_not_finite(record)
                _newest(rewards, record)
            elif form == "feedback":
                said.append(_feedback(where, record))
            elif form == "line":
                made = records.line_of(where, record, text=text)
                shares.count_read_line(made)
                lines.append(made)
            elif form == "pair":
                lines += records.pair(where, record)
            else:
                made = records.conversation(
                    where, record if form == "conversation" else records.completed(where, record)
                )
                if "correction" in record:
                    _correct(where, record["correction"], made, algorithm, excluded)
                scored = "reward" in record or record.get("success") is not None
                silent = text and not scored and algorithm != "sft"
                if silent:
                    made |= {"outcome": None, "success": None, "raw_total": None}
                unscored = silent and "correction" not in made
                shares.count_read_line(made, unscored=unscored)
                if unscored:
                    excluded.leave_out("unscored", records.place_of(where))
                else:
                    lines.append(made)
        except LeftOutError as reason:
            excluded.leave_out(reason.reason, records.place_of(where))
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
        excluded.leave_out(reason or "correction_other_form", records.place_of(where))
    else:
        line["correction"] = {"answer": answer, "message": at}
