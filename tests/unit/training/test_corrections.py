"""Corrections become pairs of what a person wrote and the answer that it replaces, and nothing else."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob, write_lines
from scored_trajectories import freeze, sampling

from onward.contracts import Feedback
from onward.errors import ConfigError, TrainingError
from onward.training.data import conversations, corrections, dataset, files
from onward.training.job import methods, rows, worker
from onward.training.spec.request import JobSpec

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _said(name: str, minutes: float = 0, **fields: Any) -> Feedback:
    document = {"feedback_id": name, "session_id": "s", "kind": "explicit", "signal": "correction",
                "comment": "Paris", "timestamp": NOON + timedelta(minutes=minutes), **fields}  # fmt: skip
    return Feedback.model_validate(document)


def _turn(number: int, raw: str, sampling: Any = None, kind: str = "response") -> dict[str, Any]:
    action = {"type": kind, "raw_response": raw} | ({"sampling": sampling} if sampling else {})
    seen = {"type": "user_message", "content": f"question {number}"}
    return {"turn_id": number, "observation": seen, "action": action, "result": {"success": True}}


def _item(
    name: str, *turns: dict[str, Any], said: Feedback | None = None, completion: float | None = None
) -> dataset.ScoredTrajectory:
    trajectory = {
        "trajectory_id": name, "session_id": "s", "turns": list(turns),
        "start_timestamp": "2026-03-01T12:00:00Z",
        "task_context": {"task_type": "lookup", "domain": "general"},
    }  # fmt: skip
    outcome = {"success": completion == 1.0, "completion": completion}
    reward = None if completion is None else {"metadata": {"raw_total": completion, "outcome": outcome}}
    return dataset.ScoredTrajectory(trajectory, reward, said)


# --- which correction, of what ----------------------------------------------------------------------


def test_the_last_explicit_correction_of_a_trajectory_counts_in_whatever_order_they_came() -> None:
    said = [
        (_said("f2", 2, trajectory_id="t", comment="second"), NOON),
        (_said("f1", 1, trajectory_id="t", comment="first"), NOON),
        (_said("f3", 3, trajectory_id="t", kind="implicit", comment="a guess"), NOON),
        (_said("f4", 4, trajectory_id="t", signal="thumbs_down", comment="bad"), NOON),
        (_said("f5", 1, trajectory_id="u"), NOON),
    ]
    found = corrections.match_to_trajectories(said, [])
    assert {name: one.feedback_id for name, one in found.items()} == {"t": "f2", "u": "f5"}


def test_a_correction_of_a_session_is_of_the_work_that_began_last_before_it() -> None:
    work = [
        {"trajectory_id": "a", "session_id": "s", "start_ts": NOON},
        {"trajectory_id": "b", "session_id": "s", "start_ts": NOON + timedelta(minutes=10)},
        {"trajectory_id": "c", "session_id": "s", "start_ts": NOON + timedelta(minutes=30)},
        {"trajectory_id": "z", "session_id": "other", "start_ts": NOON},
    ]

    def matched(minutes: float, session: str = "s") -> list[str]:
        arrived = NOON + timedelta(minutes=minutes)
        return list(corrections.match_to_trajectories([(_said("f", session_id=session), arrived)], work))

    assert (matched(12), matched(9), matched(60)) == (["b"], ["a"], ["c"])
    assert matched(-2) == ["a"], "an agent's clock is ahead by two minutes"
    assert matched(-20) == [] and matched(5, "unknown") == []


def test_empty_and_redacted_corrections_are_no_answers() -> None:
    assert corrections.unusable_reason(None) == corrections.unusable_reason(" \n") == "correction_empty"
    assert corrections.unusable_reason("ask <EMAIL:1>") == "correction_redacted"
    assert corrections.unusable_reason("a < b: yes") is None
    rows = [
        {"trajectory_id": "t", "session_id": "s", "comment": "yes"},
        {"trajectory_id": "t", "session_id": "s", "comment": ""},  # the last one of t says nothing
        {"trajectory_id": "u", "session_id": "s", "comment": "yes"},
        {"trajectory_id": "", "session_id": "s", "comment": "yes"},
        {"trajectory_id": "v", "session_id": "s", "comment": "<EMAIL:1>"},
    ]
    assert corrections.usable_count(rows) == 2


@pytest.mark.parametrize(
    ("said", "written", "expected"),
    [
        ("Rome", "Paris", "Paris"),
        ('{"capital": "Rome"}', "Paris", "Paris"),
        ('{"tool_name": "response",  "tool_args": {"text": "Rome"}}', "Pâ\nris",
         '{"tool_name": "response",  "tool_args": {"text": "Pâ\\nris"}}'),
        ('{"thoughts": ["Rome"], "tool_name": "response", "tool_args": {"text": "Rome"}}', "Paris",
         '{"thoughts": ["Rome"], "tool_name": "response", "tool_args": {"text": "Paris"}}'),
        ('{"tool_name": "response", "tool_args": {"text": "a", "tone": "b"}}', "c",
         '{"tool_name": "response", "tool_args": {"text": "c", "tone": "b"}}'),
        ('{"tool_name": "response", "tool_args": {"a": "a", "b": "b"}}', "c", None),
        ('{"tool_name": "search", "tool_args": {"q": "Rome"}}', "Paris", None),
        ('[{"function": {"name": "search"}}]', "Paris", None),
        ('{"tool_name": "search", "tool_args": {}}', '{"tool_name": "find"}', '{"tool_name": "find"}'),
    ],
)  # fmt: skip
def test_what_a_person_wrote_takes_the_form_of_the_answer_that_it_replaces(
    said: str, written: str, expected: str | None
) -> None:
    """A policy that answers in JSON would learn prose, which its agent counts as an error."""
    assert corrections.in_form(said, written) == expected


# --- in the frozen dataset ---------------------------------------------------------------------------


def _frozen(tmp_path: Path, *items: dataset.ScoredTrajectory) -> tuple[list[dict[str, Any]], dict[str, int]]:
    made = freeze(tmp_path, list(items), algorithm="dpo")
    return dataset.read(made.path), dict(made.excluded)


def test_the_dataset_of_dpo_carries_the_correction_of_the_turn_that_was_named_or_of_the_last_answer(
    tmp_path: Path,
) -> None:
    first, second, tool = sampling(), sampling(), sampling()
    turns = [
        _turn(1, "Rome", first),
        _turn(2, "Madrid", second),
        _turn(3, '{"tool_name": "save"}', tool, "tool_call"),
    ]
    lines, excluded = _frozen(
        tmp_path,
        _item("last", *turns, said=_said("f1"), completion=0.0),
        _item("named", _turn(1, "Rome", named := sampling()), _turn(2, "x", sampling()),
              said=_said("f2", turn_id=1, comment=" Paris ")),
    )  # fmt: skip
    assert [line["correction"] for line in lines] == [
        {"answer": "Paris", "generation_id": second["generation_id"]},
        {"answer": "Paris", "generation_id": named["generation_id"]},
    ]
    assert [line["outcome"] for line in lines] == [0.0, None], "a correction needs no reward"
    assert excluded == {}


def test_corrections_that_make_no_pair_are_left_out_and_counted(tmp_path: Path) -> None:
    void = {"tokens_void": True, "token_ids": [], "logprobs": [], "prompt_ids": []}
    call = '{"tool_name": "search", "tool_args": {}}'
    lines, excluded = _frozen(
        tmp_path,
        _item("good", _turn(1, "Rome", sampling()), said=_said("f"), completion=0.0),
        _item("empty", _turn(1, "Rome", sampling()), said=_said("f", comment=" "), completion=1.0),
        _item("redacted", _turn(1, "Rome", sampling()), said=_said("f", comment="<EMAIL:1>"), completion=0),
        _item("no turn", _turn(1, "Rome", sampling()), said=_said("f", turn_id=7), completion=0.0),
        _item("void", _turn(1, "Rome", sampling()), _turn(2, "x", sampling(**void)), said=_said("f"),
              completion=0.0),
        _item("form", _turn(1, call, sampling(), "tool_call"), said=_said("f"), completion=0.0),
        _item("alone", _turn(1, "Rome", sampling()), said=_said("f", comment=None)),
    )  # fmt: skip
    assert [line["trajectory_id"] for line in lines if "correction" in line] == ["good"]
    assert len(lines) == 6, "the others keep what their reward says"
    assert excluded == {
        "correction_empty": 2, "correction_redacted": 1, "correction_no_turn": 1, "correction_no_tokens": 1,
        "correction_other_form": 1, "unscored": 1,
    }  # fmt: skip


def test_one_correction_is_enough_for_dpo_and_nothing_for_reinforce(tmp_path: Path) -> None:
    lines, _ = _frozen(tmp_path, _item("t", _turn(1, "Rome", sampling()), said=_said("f")))
    assert len(lines) == 1
    with pytest.raises(TrainingError, match="at least 2 are needed"):
        freeze(tmp_path, [_item("t", _turn(1, "Rome", sampling()), completion=0.0)])


# --- as tokens ---------------------------------------------------------------------------------------


class Letters:
    """A chat template in which each character is a token; 1 ends a turn."""

    end_of_turn = 1

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def answer(self, messages: list[Any], tools: Any) -> list[int]:
        return [*self.encode(messages[-1]["content"]), self.end_of_turn]

    def render(self, messages: list[Any], tools: Any = ()) -> list[int]:
        return [ord(c) for message in messages for c in message["content"]] + [2]

    def extend(
        self, ids: list[int], before: list[Any], talk: list[Any], finished: bool, tools: Any
    ) -> list[int]:
        return self.render(talk[len(before) + 1 :])


def test_both_sides_stand_behind_the_tokens_that_the_engine_saw() -> None:
    """Two calls, the second of which goes on from the first: what was said before is context, not trained."""
    calls = [
        {"generation_id": "a", "continues": None, "prompt_ids": [5, 6], "token_ids": [7, 1],
         "logprobs": [-1.0, -1.0], "temperature": 1.0, "top_p": 1.0, "top_k": None},
        {"generation_id": "b", "continues": "a", "prompt_ids": [8], "token_ids": [9, 9, 1],
         "logprobs": [-1.0] * 3, "temperature": 1.0, "top_p": None, "top_k": None},
    ]  # fmt: skip
    line = {"calls": calls, "correction": {"answer": "AB", "generation_id": "b"}}
    chosen, rejected = conversations.corrected(Letters(), line) or ()  # type: ignore[arg-type]
    assert chosen.ids == [5, 6, 7, 1, 8, 65, 66, 1] and chosen.trained == [5, 6, 7]
    assert rejected.ids == [5, 6, 7, 1, 8, 9, 9, 1] and rejected.trained == [5, 6, 7]
    assert not chosen.behaviour_known and not rejected.behaviour_known
    line["correction"] = {"answer": "A", "generation_id": "a"}
    chosen, rejected = conversations.corrected(Letters(), line) or ()  # type: ignore[arg-type]
    assert (chosen.ids, rejected.ids) == ([5, 6, 65, 1], [5, 6, 7, 1])


def test_of_a_conversation_only_the_corrected_answer_is_compared() -> None:
    talk = [{"role": r, "content": c} for r, c in (("user", "u"), ("assistant", "x"), ("user", "v"),
                                                   ("assistant", "yz"), ("user", "later"))]  # fmt: skip
    line = {"messages": talk, "correction": {"answer": "q", "message": 3}}
    chosen, rejected = conversations.corrected(Letters(), line) or ()  # type: ignore[arg-type]
    prompt = [117, 2, 120, 1, 118, 2]
    assert (chosen.ids, rejected.ids) == ([*prompt, 113, 1], [*prompt, 121, 122, 1])
    assert (chosen.trained, rejected.trained) == ([6, 7], [6, 7, 8])


# --- as a job ----------------------------------------------------------------------------------------


def _corrected_lines(folder: Path, outcomes: list[float], answer: str = "left") -> None:
    write_lines(folder, outcomes)
    lines = dataset.read(folder / dataset.FILE)
    for line in lines:
        line["correction"] = {"answer": answer, "generation_id": line["calls"][1]["generation_id"]}
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_dpo_learns_from_corrections_beside_pairs_of_the_same_task(make_job: MakeJob, events: Events) -> None:
    """Groups g0 (1, 0) and g1 (0, 0) make one pair; each of the four attempts was corrected."""
    folder = make_job(algorithm="dpo", epochs=2)
    _corrected_lines(folder, [1.0, 0.0, 0.0, 0.0])
    assert worker.main(folder) == 0, events[-1]
    (train,) = [e for e in events if e["event"] == "stage" and e["name"] == "train"]
    assert train["rows"] == 5 and train["excluded"] == {}
    assert events[-1]["metrics"]["correction_pairs"] == 4


def test_lines_that_have_nothing_but_a_correction_train_dpo(make_job: MakeJob, events: Events) -> None:
    folder = make_job(algorithm="dpo")
    _corrected_lines(folder, [1.0, 1.0])
    lines = [{**line, "outcome": None, "raw_total": None, "success": None, "group_key": None}
             for line in dataset.read(folder / dataset.FILE)]  # fmt: skip
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.main(folder) == 0, events[-1]
    told = events[-1]["metrics"]
    assert (told["trajectories"], told["correction_pairs"], told["reward_mean"]) == (2, 2, 0.0)


def test_a_policy_gradient_never_trains_on_what_a_person_wrote(make_job: MakeJob) -> None:
    folder = make_job()
    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    _corrected_lines(folder, [1.0, 0.0])
    policy = worker._load(folder, spec)[0]
    chat = rows.chat_of(policy)
    method = methods.make(policy, spec)
    assert isinstance(method, methods.PolicyGradientMethod)
    trajectories = [rows.trajectory_of(line, spec, chat) for line in dataset.read(folder / dataset.FILE)]
    assert all(one.correction is not None for one in trajectories)
    method.prepare(trajectories)
    assert method._selection is not None
    assert [row.ids for row in method._selection.rows] == [
        [5, 6, 7, 8 + n, 9, 4, 4, 20 + n, 2] for n in range(2)
    ]
    written = trajectories[0].correction
    assert written is not None
    with pytest.raises(TrainingError, match="recompute"):
        next(method.learner.update([written[0]], [1.0]))


# --- in files ----------------------------------------------------------------------------------------


def _file(folder: Path, *records: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record, default=str) + "\n" for record in records))
    return path


def _talk(**changes: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Rome"}]
    return {"messages": said, **changes}


def test_a_conversation_in_a_file_may_carry_its_correction(tmp_path: Path) -> None:
    path = _file(tmp_path, _talk(correction="Paris"), _talk(correction=""), _talk(reward=0.5, correction="P"))
    lines, excluded = files.read([path], "dpo", max_unscored_share=0.5)
    assert [line["correction"] for line in lines] == [
        {"answer": "Paris", "message": 1}, {"answer": "P", "message": 1},
    ]  # fmt: skip
    assert [line["outcome"] for line in lines] == [None, 0.5]
    assert excluded == {"correction_empty": 1, "unscored": 1}
    lines, excluded = files.read([path], "sft")
    assert excluded == {"correction_unused": 3} and not any("correction" in line for line in lines)
    with pytest.raises(ConfigError, match="a correction that is no text"):
        files.read([_file(tmp_path, _talk(correction=["Paris"]))], "dpo")


def test_feedback_in_a_file_corrects_the_trajectory_that_it_names(tmp_path: Path) -> None:
    def told(name: str, **changes: Any) -> dict[str, Any]:
        return {**dict(_item(name, _turn(1, "Rome")).trajectory), **changes}

    def feedback(name: str, **changes: Any) -> dict[str, Any]:
        return _said(name, **changes).model_dump(mode="json", exclude_none=True)

    path = _file(
        tmp_path,
        feedback("f1", trajectory_id="a"),
        told("a"),
        {"trajectory": told("b"), "feedback": [feedback("f2", trajectory_id="b", comment="Lyon")]},
        told("c", session_id="elsewhere"),
        feedback("f3", session_id="elsewhere", minutes=1, comment="Nice"),
        feedback("f4", trajectory_id="nowhere"),
        feedback("f5", trajectory_id="a", signal="thumbs_up", comment="not an answer"),
    )
    lines, excluded = files.read([path], "dpo")
    assert {line["trajectory_id"]: line["correction"]["answer"] for line in lines} == {
        "a": "Paris", "b": "Lyon", "c": "Nice",
    }  # fmt: skip
    assert excluded == {"correction_of_nothing": 1}
    with pytest.raises(ConfigError, match=r"is no feedback\.v1"):
        files.read([_file(tmp_path, {"signal": "correction"})], "dpo")
