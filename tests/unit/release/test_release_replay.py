"""Replay and explanation of releases that a releaser ran in a world of fakes."""

import copy
import json
import xml.etree.ElementTree as ElementTree

import pytest
from commands import run_text
from release_world import Policy, World

from onward.errors import BusError
from onward.release.evidence.evidence import GateRules
from onward.release.evidence.outcome_source import Stored
from onward.release.explaining import delays, picture, story
from onward.release.explaining.logged_work import estimate_of
from onward.release.explaining.replay import first_difference, replay
from onward.release.explaining.trace import POINTS
from onward.release.plan import State
from onward.release.record import ReleaseRecord

FAST = {"time_scale": 0.02, "min_sessions": [20, 20, 20, 0]}


async def finished(candidate: Policy, seed: int = 3) -> World:
    world = World(seed, **FAST)
    await world.install()
    world.policies["candidate"] = candidate
    await world.job("j1", "d1")
    await world.run(2)
    await world.until(lambda: world.record.settled)
    return world


@pytest.mark.parametrize(
    ("policy", "end"), [(Policy(), State.PROMOTED), (Policy(error=0.6), State.ROLLED_BACK)]
)
async def test_each_decision_is_recomputed_to_the_same_bytes(policy: Policy, end: State):
    world = await finished(policy)
    record = world.record
    assert record.state is end
    found = await replay(record, world.stream)
    assert found.difference is None
    assert found.outcomes > 20
    traffic = [one for one in found.decisions if one.state not in ("proposed", "validating")]
    assert traffic and all(one.same for one in traffic)
    assert traffic[-1].e_values["all"] == pytest.approx(record.e_values["all"])
    assert traffic[0].e_values["all"] == pytest.approx(1.0)  # before the first outcome


async def test_a_crossing_of_the_threshold_rule_is_recomputed_and_a_changed_outcome_is_named():
    world = World(3, **FAST, gates="threshold", threshold_minutes=1, consecutive=2, threshold_sessions=5)
    await world.install()
    world.policies["candidate"] = Policy(error=0.6, success=1.0, raw=(0.1, 0.9))
    world.policies["current"] = Policy(success=1.0, raw=(0.1, 0.9))
    await world.job("j1", "d1")
    await world.run(2)
    await world.until(lambda: world.record.settled)
    record = world.record
    assert record.state is State.ROLLED_BACK and "in 2 checks in a row, 1 minutes apart" in record.reason
    assert record.evidence["threshold"]["strikes"]["error"] == 2
    found = await replay(record, world.stream)
    assert found.difference is None and found.decisions[-1].same
    for number, message in enumerate(world.stream.messages):
        told = json.loads(message.data)
        if told["arm"] == "candidate" and told["kind"] == "error":
            data = json.dumps(told | {"value": 0.0}).encode()
            world.stream.messages[number] = Stored(message.sequence, data, message.stored_at)
    assert ((await replay(record, world.stream)).difference or "").startswith("decision ")


async def test_an_outcome_that_was_changed_afterwards_is_found_and_named():
    world = await finished(Policy(error=0.6))
    for number, message in enumerate(world.stream.messages):
        told = json.loads(message.data)
        if told["arm"] == "candidate" and told["kind"] == "error":
            told["value"] = 0.0
            world.stream.messages[number] = Stored(
                message.sequence, json.dumps(told).encode(), message.stored_at
            )
            break
    found = await replay(world.record, world.stream)
    assert found.difference is not None and found.difference.startswith("decision ")
    assert any(one.same is False for one in found.decisions)


async def test_a_changed_number_of_the_record_is_named_with_both_values():
    world = await finished(Policy())
    record = world.record
    evidence = copy.deepcopy(record.evidence)
    assert evidence is not None
    was = evidence["arms"]["candidate"]["judged"]
    evidence["arms"]["candidate"]["judged"] = was + 1
    changed = record.model_copy(update={"evidence": evidence})
    found = await replay(changed, world.stream)
    assert found.difference == (f"evidence.arms.candidate.judged: the record has {was + 1}, the replay {was}")


async def test_outcomes_that_the_stream_no_longer_holds_are_said_and_not_guessed():
    world = await finished(Policy())

    class Shortened:
        async def read(self, after: int, limit: int) -> list[Stored]:
            return [one for one in world.stream.messages if one.sequence > max(after, 40)][:limit]

        async def last_sequence(self) -> int:
            return len(world.stream.messages)

        async def assigned(self) -> int:
            return 0

    world.stream.messages.insert(0, world.stream.messages[0])
    record = world.record
    evidence = {**(record.evidence or {}), "start": 5}
    with pytest.raises(BusError, match="its first outcomes are gone"):
        await replay(record.model_copy(update={"evidence": evidence}), Shortened())
    world.stream.messages.clear()
    with pytest.raises(BusError, match="its outcomes are gone"):
        await replay(record, world.stream)


async def test_a_rejected_candidate_has_a_story_and_no_replay():
    world = World(0, **FAST)
    await world.install()
    world.suite.success = {"d0": 0.9, "d1": 0.2}
    await world.job("j1", "d1")
    await world.run(2)
    await world.until(lambda: world.record.settled)
    found = await replay(world.record, world.stream)
    assert found.difference is None and not found.trace.points
    words = list(story.paragraphs(world.record, found))
    assert words[0].startswith("agent-zero-rl-v1 was rejected: ")
    assert any("rejected" in line for line in words[1:])


async def test_the_story_names_the_gate_and_its_numbers(tmp_path):
    world = await finished(Policy(error=0.6))
    record: ReleaseRecord = world.record
    found = await replay(record, world.stream)
    words = "\n".join(story.paragraphs(record, found))
    assert "the error gate weighs most" in words and "of 22.2" in words
    assert record.reason is not None and record.reason in words
    rows = {name: (marks, told) for name, marks, told in picture.lines(found.trace.points, 1 / 0.045)}
    assert rows["E all"][0].endswith("█") and len(rows["E all"][0]) <= picture.WIDTH
    assert rows["share"][1] == "now 10%"
    light, dark = picture.draw(found.trace.points, 1 / 0.045, "taken back", tmp_path / "evidence.svg")
    assert dark.name == "evidence-dark.svg"
    assert ElementTree.parse(light).getroot().tag.endswith("svg")


async def test_a_long_trace_is_thinned_and_keeps_its_end():
    world = await finished(Policy())
    found = await replay(world.record, world.stream)
    assert len(found.trace.points) < 2 * POINTS
    assert found.trace.points[-1].at > found.trace.points[0].at


def test_first_difference_by_hand():
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, "x") is None
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "x") == (
        "x.a[1].b: the record has 2, the replay 3"
    )
    assert first_difference({"a": 1}, {}, "x") == "x.a: the record has 1, the replay null"


def test_detection_delays_are_kept_and_a_damaged_file_is_made_again(tmp_path, monkeypatch):
    rules = GateRules(0.045, 0.05, 0.05, {"error": 30_000, "reward": 120_000, "feedback": 900_000}, 10**7)
    monkeypatch.setattr(delays, "RUNS", 3)
    monkeypatch.setattr(delays, "CASES", delays.CASES[1:3])
    first = delays.cached([0.5], rules, tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(delays, "simulate", lambda *_: pytest.fail("simulated again"))
    assert delays.cached([0.5], rules, tmp_path) == first
    monkeypatch.setattr(delays, "simulate", lambda *_: first[0.5])
    path.write_text("{")
    assert delays.cached([0.5], rules, tmp_path) == first
    half, every = first[0.5]
    assert half.found == every.found == 1.0 and half.sessions is not None
    assert every.minutes(1440, rules) == pytest.approx((every.sessions or 0) + 0.5)  # one a minute, 30 s


def test_a_plan_where_no_data_folder_is_makes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(delays, "simulate", lambda *_: [])
    result = run_text(tmp_path, "releases", "plan", "--json")
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == []


async def test_the_jobs_estimate_from_logged_work_is_part_of_validation_and_story():
    world = World(0, **FAST)
    await world.install()
    metrics = {
        "holdout_effective_tasks": 31.2,
        "holdout_reward": 0.61,
        "holdout_low": 0.5,
        "holdout_high": 0.7,
        "holdout_doubly_robust": 0.59,
        "holdout_doubly_robust_low": 0.51,
        "holdout_doubly_robust_high": 0.67,
    }
    await world.job("j1", "d1", progress={"metrics": metrics})
    await world.run(6)
    assert (world.record.validation or {})["off_policy"] == {
        "value": 0.61, "low": 0.5, "high": 0.7, "effective": 31.2,
        "doubly_robust": {"value": 0.59, "low": 0.51, "high": 0.67},
    }  # fmt: skip
    words = "\n".join(story.paragraphs(world.record, None))
    assert "before any traffic: mean return 0.610 [0.500, 0.700]" in words
    assert "doubly robust 0.590 [0.510, 0.670]; the held-out tasks weigh as much as 31.2" in words


def test_without_an_estimate_the_reason_is_said():
    assert "held out no logged work" in story.off_policy_words(estimate_of({}))
    assert "weigh as much as 3.1" in story.off_policy_words(estimate_of({"holdout_effective_tasks": 3.1}))
