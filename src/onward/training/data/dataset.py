"""The frozen dataset of a job: one content-addressed file, made once, read only by the job child.

A line is one trajectory with the calls that its policy sampled, or its messages where text is enough.
``selection`` chooses the lines. Exclusions are counted under the names of ``admission``; groups are kept or
dropped whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import TrainingError
from onward.training.data import admission, grammars
from onward.training.data.admission import ScoredTrajectory
from onward.training.data.report import DataReport
from onward.training.data.sampling import Stratum
from onward.training.spec.algorithms import ALGORITHMS

FILE = "dataset.jsonl"
EVAL_FILE = "eval.jsonl"
"""Data that a run is judged on and not trained on."""
Line = dict[str, Any]

_MASKED = frozenset({"tokens_void", "broken_chain"})
"""Reasons that leave a trajectory without a token to train on although a policy sampled it."""
REMEDIES: dict[str, str] = {
    "no_tokens": "let the agent call the model through Onward's gateway, which captures tokens, or train "
    "with dpo or sft, which need only text, or (files only) say --behaviour recompute",
    "engine_without_tokens": "sample with model.engine local, vllm or sglang, whose answers have token ids "
    "and log-probs, or train with dpo or sft, which need only text",
    "truncated_support": "sample with top_p 1 and no top_k, since log-probs over a kept set are not those of "
    "the policy, or train with dpo or sft",
    "shaped_logits": "ask for answers without penalties and logit_bias, and sample answers of a forced form "
    "with model.engine local, whose masks can be computed again, or train with dpo or sft",
    "greedy": "sample at a temperature above 0, or train with dpo or sft",
    "group_of_one": "collect several attempts per task, or use reinforce or ppo, which need no groups",
    "no_group": "record task_context.group_id, or use reinforce or ppo, which need no groups",
    "other_policy": "collect work of the policy that serves now",
    "below_min_reward": "lower min_reward",
    "no_turn_rewards": "set reward.dense and score again, or leave dense_rewards out",
    "unscored": "check the rewarder",
    "bad_signature": "let agents pass the gateway's records on unchanged",
}
"""Reason for an exclusion → its remedy."""


@dataclass(frozen=True)
class Dataset:
    """A written dataset. ``path`` is its file, ``sha256`` its digest; ``excluded`` counts by reason."""

    path: Path
    sha256: str
    samples: int
    excluded: Mapping[str, int]
    calls: int = 0
    """Sampled answers that were examined; ``masked_calls`` of them have no token that can be trained on."""
    masked_calls: int = 0
    members: Sequence[Mapping[str, Any]] = ()
    """Provenance of each line, in their order: ids and hashes."""
    strata: Mapping[str, Stratum] | None = None
    """The task domains of a stratified sample."""
    notes: Sequence[str] = ()
    """Differences from the requested sample, as sentences."""


@dataclass
class Shares:
    """Shares of unusable input, so that a job never trains silently on a small remainder."""

    seen: int = 0
    unscored: int = 0
    calls: int = 0
    masked_calls: int = 0

    def count_line(self, item: ScoredTrajectory, line: Line | str) -> None:
        """Counts a trajectory together with the result of ``admission.line``."""
        if not isinstance(line, str):
            self.count_read_line(line)
            return
        self.seen += 1
        self.unscored += line == "unscored"
        if line in _MASKED:
            answers = sum(bool(turn["action"].get("sampling")) for turn in item.trajectory["turns"])
            self.calls += answers
            self.masked_calls += answers

    def count_read_line(self, line: Line, *, unscored: bool = False) -> None:
        """Counts a line of a dataset."""
        calls = line.get("calls", ())
        self.seen += 1
        self.unscored += unscored
        self.calls += len(calls)
        self.masked_calls += len(admission.masked(calls))

    def refuse(self, max_unscored: float, max_masked: float, cause: str = "") -> None:
        """Raises TrainingError("DATA") when a share is above its limit. ``cause``: a sentence about tokens
        that cannot be trained on."""
        if self.seen and self.unscored / self.seen > max_unscored:
            raise TrainingError(
                "DATA",
                f"{self.unscored} of {self.seen} trajectories are unscored, more than the "
                f"{max_unscored:.0%} that training.max_unscored_share allows: check the rewarder, or "
                f"in files give each a reward.",
            )
        if self.calls and self.masked_calls / self.calls > max_masked:
            raise TrainingError(
                "DATA",
                f"{self.masked_calls} of {self.calls} sampled answers have no tokens to train on, more than "
                f"the {max_masked:.0%} that training.max_masked_share allows: look at what redaction takes "
                f"away, at answers of a forced form, and whether agents pass every record on, or train with "
                f"dpo or sft.{f' {cause}' if cause else ''}",
            )


def write(lines: list[Line], folder: Path, excluded: Counter[str]) -> Dataset:
    """Writes the lines of a dataset."""
    path, digest = folder / FILE, hashlib.sha256()
    members: list[dict[str, str]] = []
    with open(path, "wb") as file:
        for line in lines:
            body = line_bytes(line)
            file.write(body)
            digest.update(body)
            members.append(
                {"trajectory_id": line["trajectory_id"], "sha256": hashlib.sha256(body).hexdigest()}
            )
    return Dataset(path, digest.hexdigest(), len(lines), dict(excluded), members=tuple(members))


def line_bytes(line: Line) -> bytes:
    """Returns the one form in which a line is stored, so that equal data has equal hashes."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def select_lines(
    lines: list[Line], algorithm: str, excluded: Counter[str], *, min_reward: float | None = None
) -> list[Line]:
    """Returns whole groups if ``algorithm`` compares attempts, else all lines. Raises TrainingError("DATA")
    for fewer than two lines; one is enough for sft or with a correction.

    A group whose best raw total is below ``min_reward`` is dropped whole: applied to members, the limit would
    remove every failure, and with it the gradient. Groups of one are dropped, since they have no comparison.
    """
    kept = _grouped(lines, min_reward, excluded) if ALGORITHMS[algorithm].grouped else lines
    least = 1 if algorithm == "sft" or any("correction" in line for line in kept) else 2
    if len(kept) < least:
        raise TrainingError("DATA", _too_little(len(kept), least, algorithm, excluded))
    return kept


def read(path: Path) -> list[Line]:
    """Reads the lines of a frozen dataset. Equal grammars of several lines are one object."""
    lines: list[Line] = []
    with open(path, "rb") as file:
        for text in file:
            line = json.loads(text)
            if "grammars" in line:
                line["grammars"] = grammars.shared(line["grammars"])
            lines.append(line)
    return lines


def leave_out(excluded: Counter[str], reason: str, line: Line) -> None:
    """Counts a line that is left out; a report also keeps its place in the files, if it is from files."""
    if isinstance(excluded, DataReport) and "place" in line:
        excluded.leave_out(reason, line["place"])
    else:
        excluded[reason] += 1


def _grouped(lines: list[Line], min_reward: float | None, excluded: Counter[str]) -> list[Line]:
    """Groups the lines; attempts of different policies are never one group, even under the same key."""
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if line["group_key"] is None:
            leave_out(excluded, "no_group", line)
        else:
            groups.setdefault((line["group_key"], line.get("staleness", 0)), []).append(line)
    kept = []
    for members in groups.values():
        if len(members) < 2:
            leave_out(excluded, "group_of_one", members[0])
        elif min_reward is not None and max(line["raw_total"] for line in members) < min_reward:
            excluded["below_min_reward"] += len(members)
        else:
            kept.extend(members)
    return kept


def _too_little(found: int, least: int, algorithm: str, excluded: Mapping[str, int]) -> str:
    ordered = sorted(excluded.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{count} {reason}" for reason, count in ordered) or "none were found"
    remedy = next((REMEDIES[reason] for reason, _ in ordered if reason in REMEDIES), "collect more")
    return (
        f"{found} trajectories can be trained on by {algorithm} and at least {least} "
        f"{'is' if least == 1 else 'are'} needed ({shown}): {remedy}."
    )
