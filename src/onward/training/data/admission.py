"""Admission of trajectories to a job, and the part of each that is stored: one rule, one name, one count.

Silent training on less data, or on other data, would spoil the loop. Policy gradients accept only calls that
the trained policy sampled, signed by the gateway, with full sampling support, not voided by redaction.
Preference and supervised learning need only the text. A missing reward is *unscored*, never zero. If it is
missing because the outcome of the task was not reported, the reason is ``no_outcome`` and does not count
against the rewarder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from onward.capture import provenance
from onward.capture.collecting.trajectory_row import is_unjudged
from onward.contracts import Feedback
from onward.lm import tokens
from onward.reward.components.user_feedback import NEUTRAL
from onward.training.data import conversations, grammars
from onward.training.data.grammars import Stated

CALL_FIELDS = ("generation_id", "continues", "prompt_ids", "token_ids", "logprobs", "temperature", "top_p",
               "top_k")  # fmt: skip
SHAPED = ("presence_penalty", "frequency_penalty", "logit_bias")
"""Fields of a record that say that the policy's logits were shifted: its log-probs are then of a distribution
that no learner computes. A policy gradient has such tokens as context and never learns from them."""
_TOKENS = ("prompt_ids", "token_ids", "logprobs")
_TEXT_REMAINS = frozenset({"no_tokens", "engine_without_tokens", "broken_chain"})
"""Reasons for missing usable tokens that leave the text usable."""


@dataclass(frozen=True)
class ScoredTrajectory:
    """A stored trajectory with its newest reward (None: unscored), and its last correction."""

    trajectory: Mapping[str, Any]
    reward: Mapping[str, Any] | None
    correction: Feedback | None = None
    """Set only when the job learns from corrections; such a trajectory needs no reward."""
    identity: str = ""
    """Policy version and hash of the redacted document (``trajectory_row.identity``)."""
    sequence: int = 0
    """Place in the stream; 0 in files."""


@dataclass(frozen=True)
class AdmissionRules:
    """Rules of a job. ``staleness`` maps the digest of each admitted policy to how many policies ago it
    served. None: any policy, for text. ``signing_key`` None checks no signature (a user's own files)."""

    staleness: Mapping[str, int] | None
    signing_key: bytes | None
    filters: Mapping[str, Any] = field(default_factory=dict)
    text_is_enough: bool = False
    dense: bool = False


def line(item: ScoredTrajectory, rules: AdmissionRules) -> dict[str, Any] | str:
    """Returns the dataset line of one trajectory, or the reason for its exclusion."""
    trajectory, reward = item.trajectory, item.reward
    reason = _filtered(trajectory, rules.filters)
    if reason is not None:
        return reason
    if reward is None and item.correction is None:
        return why_unscored(trajectory)
    records = [turn["action"].get("sampling") for turn in trajectory["turns"]]
    present = [record for record in records if record]
    reason = _sampled(present, rules)
    if reason == "no_tokens" and _lacks_tokens(trajectory):
        reason = "engine_without_tokens"
    if reason is not None and not (rules.text_is_enough and reason in _TEXT_REMAINS):
        return reason
    made = _scores(trajectory, reward)
    if reason is None:
        made["staleness"] = (rules.staleness or {}).get(str(present[0].get("model_digest")), 0)
        stated = grammars.stated(present)
        made["calls"] = [_call(record, rules, stated) for record in present]
        if used := {call["grammar"]: stated[call["grammar"]] for call in made["calls"] if "grammar" in call}:
            made["grammars"] = used
    else:
        made["messages"] = conversations.messages_of(trajectory)
        reason = _unanswered(made["messages"])
        if reason is not None:
            return reason
    if rules.dense and reward is not None:
        dense = _turn_rewards(trajectory, reward, rules)
        if dense is None:
            return "no_turn_rewards"
        made["turn_rewards"] = dense
    return made


def _lacks_tokens(trajectory: Mapping[str, Any]) -> bool:
    """Returns whether the gateway reports that its engine gives no token ids or no log-probs."""
    engine = (trajectory.get("metadata") or {}).get("engine")
    return isinstance(engine, Mapping) and not (
        engine.get("token_ids", True) and engine.get("logprobs", True)
    )


def why_unscored(trajectory: Mapping[str, Any]) -> str:
    """Returns the reason under which a trajectory without a reward is counted."""
    return "no_outcome" if is_unjudged(trajectory.get("metadata") or {}) else "unscored"


def is_shaped(record: Mapping[str, Any], stated: Stated) -> bool:
    """Returns whether a penalty, a bias, or a grammar that is not ``stated`` changed the distribution of this
    call. Under a stated grammar the learner computes the same distribution."""
    if any(record.get(name) for name in SHAPED):
        return True
    return bool(record.get("constraint")) and not grammars.is_stated(record, stated)


def _call(record: Mapping[str, Any], rules: AdmissionRules, stated: Stated) -> dict[str, Any]:
    """Returns the stored part of a call, without the tokens of a voided one: no signature covers those."""
    kept = {name: record.get(name) for name in CALL_FIELDS}
    if record.get("tokens_void"):
        return kept | {name: [] for name in _TOKENS}
    if rules.text_is_enough:
        return kept
    if is_shaped(record, stated):
        kept["trains"] = False
    elif record.get("constraint"):
        kept["grammar"] = grammars.name_of(record)
    return kept


def _scores(trajectory: Mapping[str, Any], reward: Mapping[str, Any] | None) -> dict[str, Any]:
    context = trajectory["task_context"]
    about = {
        "trajectory_id": trajectory["trajectory_id"],
        "task_id": context.get("task_id"),
        "session_id": trajectory["session_id"],
        "task_type": context.get("task_type") or context.get("domain") or "general",
        "group_key": group_key(context),
    }
    if reward is None:
        return {**about, "outcome": None, "success": None, "unparsable": False, "raw_total": None}
    outcome = reward["metadata"]["outcome"]
    voted = vote(reward)
    return {
        **about,
        "outcome": float(outcome["completion"]),
        "success": None if outcome["success"] is None else bool(outcome["success"]),
        "unparsable": bool(outcome.get("unparsable")),
        "raw_total": float(reward["metadata"]["raw_total"]),
        **({"vote": voted} if voted else {}),
    }


def group_key(context: Mapping[str, Any]) -> str | None:
    """Returns the key of task, panel hash, seed and start state; the sampling policy is compared separately.
    ``group_id`` names task and start together; the other fields about them must agree as well."""
    group = context.get("group_id")
    if group is None:
        return None
    told = {name: context[name] for name in ("panel_hash", "seed", "start_state") if name in context}
    return str(group) if not told else json.dumps([group, told], sort_keys=True)


def _filtered(trajectory: Mapping[str, Any], filters: Mapping[str, Any]) -> str | None:
    """Returns the reason for which the request's filter excludes this trajectory, or None."""
    limit = filters.get("max_trajectory_length")
    if limit is not None and len(trajectory["turns"]) > limit:
        return "too_long"
    domains = filters.get("task_domains")
    if domains and trajectory["task_context"].get("domain") not in domains:
        return "other_domain"
    if trajectory.get("subordinate_profile") in (filters.get("exclude_subordinate_profiles") or ()):
        return "excluded_profile"
    span = filters.get("date_range") or {}
    when = datetime.fromisoformat(trajectory["start_timestamp"].replace("Z", "+00:00"))
    if (span.get("start") and when < span["start"]) or (span.get("end") and when > span["end"]):
        return "outside_dates"
    return None


def _unanswered(messages: Sequence[Mapping[str, str]]) -> str | None:
    """Returns the reason for which ``conversations.token_row`` cannot encode these messages, or None."""
    roles = [message["role"] for message in messages[1:]]
    if "assistant" not in roles:
        return "no_answer"
    if any(one == other == "assistant" for one, other in pairwise(roles)):
        return "answers_in_a_row"
    return None


def _sampled(present: Sequence[Mapping[str, Any]], rules: AdmissionRules) -> str | None:
    """Returns the reason for which these generation records cannot be trained on, or None."""
    if not present:
        return "no_tokens"
    digests = {str(record.get("model_digest")) for record in present}
    if rules.staleness is not None and not digests <= set(rules.staleness):
        return "mixed_policies" if len(digests) > 1 else "other_policy"
    if len(digests) > 1:
        return "mixed_policies"
    calls = [record for record in present if not record.get("tokens_void")]
    if not calls:
        return "tokens_void"
    if not rules.text_is_enough:
        stated = grammars.stated(present)
        learned = [one for one in calls if not is_shaped(one, stated)]  # shaped ones are context alone
        if not learned:
            return "shaped_logits"
        if any(record.get("top_p", 1.0) != 1.0 or record.get("top_k") is not None for record in learned):
            return "truncated_support"
        if any(not record.get("temperature") for record in learned):
            return "greedy"  # drawn at temperature 0: no distribution, so no gradient
    key = rules.signing_key
    if key is not None and not all(provenance.verify(record, key) for record in calls):
        return "bad_signature"
    known: set[str] = set()
    for record in present:
        if record.get("continues") is not None and record["continues"] not in known:
            return "broken_chain"  # it continues a call that is not in this trajectory
        known.add(record["generation_id"])
    return None


def masked(calls: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns stored calls whose tokens cannot be trained on: voided ones, those that continue them, and
    those that are context alone."""
    return {one["generation_id"] for one in calls if one.get("trains") is False} | tokens.left_out(
        (one["generation_id"], one.get("continues"), len(one["token_ids"])) for one in calls
    )


def _turn_rewards(
    trajectory: Mapping[str, Any], reward: Mapping[str, Any], rules: AdmissionRules
) -> list[float] | None:
    """Returns one number per call that can be trained on, or None if the reward has no dense part."""
    told = reward["metadata"].get("dense")
    if not told:
        return None
    earned = {entry["turn_id"]: float(entry["reward"]) for entry in told}
    records = [turn["action"].get("sampling") for turn in trajectory["turns"]]
    stated = grammars.stated([record for record in records if record])
    void = masked([_call(record, rules, stated) for record in records if record])
    turns = zip(trajectory["turns"], records, strict=True)
    return moved_rewards(
        (earned.get(turn["turn_id"], 0.0), bool(record) and record["generation_id"] not in void)
        for turn, record in turns
    )


def moved_rewards(turns: Iterable[tuple[float, bool]]) -> list[float] | None:
    """Returns the reward of each turn that trains, from (reward, whether it trains) of all turns; None if
    none trains. The reward of another turn goes to the next one that trains, or to the last one, so that
    none is lost."""
    result: list[float] = []
    waiting = 0.0
    for reward, trains in turns:
        waiting += reward
        if trains:
            result.append(waiting)
            waiting = 0.0
    if not result:
        return None
    result[-1] += waiting
    return result


def vote(reward: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns weight, score and time of the explicit vote in a reward; None without a vote."""
    part = (reward.get("reward_components") or {}).get("user_feedback")
    if part is None or (part.get("raw_data") or {}).get("kind") != "explicit":
        return None
    return {"weight": float(part["weight"]), "score": float(part["score"]), "at": str(reward["timestamp"])}


def one_per_session(lines: Iterable[dict[str, Any]]) -> set[str]:
    """Removes from ``raw_total`` every explicit vote but the newest of its session, so that a single user
    cannot vote a policy up or down; returns the trajectories of the removed ones.

    A line has under ``vote`` the result of ``vote`` for its reward; the field is deleted here. Only
    ``raw_total`` contains votes, never the outcome. A vote that does not count is replaced by the neutral
    score, under its own weight.
    """
    newest: dict[str, dict[str, Any]] = {}
    voted = [line for line in lines if "vote" in line]
    for line in voted:
        best = newest.get(line["session_id"])
        if best is None or _order(line) > _order(best):
            newest[line["session_id"]] = line
    spare = {line["trajectory_id"] for line in voted if newest[line["session_id"]] is not line}
    settle_votes(voted, spare)
    return spare


def settle_votes(voted: Iterable[dict[str, Any]], spare: Collection[str]) -> None:
    """Makes the votes of the trajectories ``spare`` neutral, and deletes the field of every vote."""
    for line in voted:
        cast = line.pop("vote")
        if line["trajectory_id"] in spare:
            line["raw_total"] += cast["weight"] * (NEUTRAL - cast["score"])


def _order(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["vote"]["at"], line["trajectory_id"]
