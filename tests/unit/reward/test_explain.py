"""What ``onward rewards explain`` says is enough: the totals come out again from its numbers alone."""

import io
import json
import random
from typing import Any

import pytest
from reward_documents import START, feedback, trajectory, turn
from rich.console import Console

from onward.cli import reward_tables
from onward.config import load
from onward.contracts import Reward, encode
from onward.reward import State, score
from onward.reward.code.report import CodeReport
from onward.reward.scoring.explain import explain, number

CONFIGURED = {"task_completion": 0.40, "efficiency": 0.20, "code_quality": 0.15, "user_feedback": 0.25}


def rewards(count: int, method: str = "z-score", seed: int = 7) -> list[Reward]:
    """Of trajectories that differ in every signal, in the order in which they were scored."""
    settings = load(environ={}, overrides={"reward": {"normalization": method, "window": 50}}).reward
    state, draw, made = State(50), random.Random(seed), []
    for i in range(count):
        item = trajectory(
            f"t{i}",
            status=draw.choice(["completed_successfully", "partial_completion", "failed"]),
            completion=draw.choice([0.2, 0.6, 0.9]),
            turns=draw.randint(1, 6),
            seconds=draw.uniform(1, 60),
            tokens=draw.randint(50, 500),
        )
        said = [feedback(draw.choice(["thumbs_up", "thumbs_down"]))] if draw.random() < 0.5 else []
        answer = score(item, state, settings=settings, timestamp=START, feedback=said)
        assert isinstance(answer, Reward)
        made.append(answer)
    return made


def row(reward: Reward, revision: int = 0) -> dict[str, Any]:
    return {"payload": encode(reward).decode(), "revision": revision, "stream_seq": 1}


def printed(document: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    reward_tables.show_explanation(document, console)
    return console.export_text()


def test_printed_facts_are_words_and_not_the_names_of_fields():
    judged = trajectory("t1", turns=[turn(1, success=False, error="unparsable: two objects"), turn(2)])
    reward = score(judged, State(50), settings=load(environ={}).reward, timestamp=START)
    assert isinstance(reward, Reward)
    document = explain([row(reward)], CONFIGURED)
    facts = document["components"]["task_completion"]["facts"]
    assert (facts["told_by"], facts["unparsable"]) == ("agent", True)  # the fields stay
    text = " ".join(printed(document).split())
    assert "reported by agent, answer unreadable yes." in text
    assert "told_by" not in text and "unparsable" not in text


def by_calculator(document: dict[str, Any]) -> tuple[float, float, float]:
    """raw_total, total_reward and confidence from the explained numbers, by the documented formulas."""
    parts = document["components"]
    whole = sum(part["configured_weight"] for part in parts.values())
    raw = total = confidence = 0.0
    for part in parts.values():
        weight, value, window = part["configured_weight"] / whole, part["score"], part["window"]
        assert weight == pytest.approx(part["weight"], abs=1e-12)
        if window["method"] == "z-score":
            value = ((part["score"] - window["mean"]) / window.get("least_std", window["std"]) + 2) / 4
        elif window["method"] == "min-max":
            spread = max(window["max"] - window["min"], 2 * window.get("least_std", 0.0))
            value = 1 - (window["max"] - part["score"]) / spread
        raw += weight * part["score"]
        total += weight * max(0.0, min(1.0, value)) * window.get("gate", 1.0)
        confidence += weight * part["evidence"]
    return raw, total, confidence


@pytest.mark.parametrize("method", ["z-score", "min-max", "none"])
def test_a_person_can_redo_the_totals_from_the_json_alone(method):
    applied = set()
    for reward in rewards(120, method):
        document = json.loads(json.dumps(explain([row(reward)], CONFIGURED)))
        raw, total, confidence = by_calculator(document)
        assert raw == pytest.approx(reward.metadata.raw_total, abs=1e-12)
        assert total == pytest.approx(reward.total_reward, abs=1e-12)
        assert confidence == pytest.approx(reward.metadata.confidence, abs=1e-12)
        assert document["raw_total"] == reward.metadata.raw_total
        applied |= {part["window"]["method"] for part in document["components"].values()}
    assert applied == {method, "none"}, "the first rewards have small windows"


def test_efficiency_can_be_redone_from_its_signals():
    for reward in rewards(120)[60:]:
        part = explain([row(reward)], CONFIGURED)["components"]["efficiency"]
        signals = part["signals"].values()
        for signal in signals:
            z = (signal["mean"] - signal["value"]) / signal["std"] if signal["std"] else 0.0
            assert max(-2.0, min(2.0, z)) == pytest.approx(signal["z"], abs=1e-9)
        z = sum(s["weight"] * s["z"] for s in signals) / sum(s["weight"] for s in signals)
        assert (z + 2) / 4 * part["facts"]["completion"] == pytest.approx(part["score"], abs=1e-12)


def test_the_printed_formulas_say_the_same_and_fit_into_80_columns():
    reward = rewards(80)[-1]
    document = explain([row(reward)], CONFIGURED)
    text = printed(document)
    assert max(len(line) for line in text.splitlines()) <= 80
    joined = " ".join(text.split())
    for name in ("raw_total", "total_reward", "confidence"):
        formula = document["formulas"][name]
        assert f"{formula}" in joined
        terms, _, value = formula.replace("−", "-").rpartition(" = ")
        redone = sum(float(w) * float(s) for w, s in (term.split("·") for term in terms.split(" + ")))
        assert redone == pytest.approx(float(value), abs=1e-5)
    for component in document["components"].values():
        assert " ".join(component["formula"].split()) in joined


def test_why_the_raw_score_stands_is_said():
    made = rewards(40)
    first = explain([row(made[0])], CONFIGURED)["components"]["task_completion"]
    assert first["formula"] == "the raw score stands: the window holds 0 of the 30 scores that are needed"
    off = explain([row(rewards(40, "none")[-1])], CONFIGURED)["components"]["task_completion"]
    assert off["formula"] == "the raw score stands: no normalisation is set"
    flat = made[-1].model_copy(deep=True)
    flat.reward_components["task_completion"].raw_data["window"] = {
        "n": 40, "mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0, "method": "none",
    }  # fmt: skip
    said = explain([row(flat)], CONFIGURED)["components"]["task_completion"]["formula"]
    assert said == "the raw score stands: all 40 scores of the window are equal"


def test_a_clipped_score_says_what_it_was_before():
    reward = rewards(80)[-1].model_copy(deep=True)
    part = reward.reward_components["task_completion"]
    part.raw_data["window"] = {"n": 50, "mean": 0.1, "std": 0.2, "method": "z-score"}
    part.raw_data["normalized"], part.score = 1.0, 1.0
    said = explain([row(reward)], CONFIGURED)["components"]["task_completion"]
    assert said["z"] == pytest.approx(4.5)
    assert said["formula"] == "z = (1 − 0.1) / 0.2 = 4.5; (z + 2)/4 = 1.625, clipped to 1"


def test_a_least_deviation_and_a_gate_are_in_the_formula():
    reward = rewards(80)[-1].model_copy(deep=True)
    part = reward.reward_components["task_completion"]
    part.raw_data["window"] = {
        "n": 50, "mean": 1.0, "std": 0.1, "least_std": 0.25, "gate": 0.5, "method": "z-score",
    }  # fmt: skip
    part.raw_data["normalized"], part.score = 0.125, 0.75
    said = explain([row(reward)], CONFIGURED)["components"]["task_completion"]
    assert said["z"] == -1.0
    assert said["formula"] == (
        "z = (0.75 − 1) / 0.25 (the least deviation) = −1; (z + 2)/4 = 0.25, times completion 0.5 = 0.125"
    )


def test_the_range_of_min_max_is_in_the_formula():
    reward = rewards(80)[-1].model_copy(deep=True)
    part = reward.reward_components["task_completion"]
    part.score = 0.75
    part.raw_data |= {
        "window": {"n": 50, "min": 0.5, "max": 1.0, "method": "min-max"}, "normalized": 0.5,
    }  # fmt: skip
    said = explain([row(reward)], CONFIGURED)["components"]["task_completion"]["formula"]
    assert said == "1 − (1 − 0.75) / (1 − 0.5) = 0.5"
    part.raw_data |= {
        "window": {"n": 50, "min": 0.9, "max": 1.0, "least_std": 0.25, "method": "min-max"},
    }  # fmt: skip
    said = explain([row(reward)], CONFIGURED)["components"]["task_completion"]["formula"]
    assert said == "1 − (1 − 0.75) / 0.5 (the least range) = 0.5"


def narrow(method: str) -> Reward:
    """The last of many successes and one honest part, which has code: both special rules apply."""
    settings = load(environ={}, overrides={"reward": {"normalization": method, "window": 50}}).reward
    state = State(50)
    for i in range(60):
        status = "partial_completion" if i in (45, 59) else "completed_successfully"
        report = CodeReport(linter=0.8 + 0.2 * (i % 2), tools=("pylint",), snippets=1)
        answer = score(
            trajectory(f"t{i}", status=status, completion=0.6, turns=1 + i % 3),
            state, settings=settings, timestamp=START, code=report,
        )  # fmt: skip
    assert isinstance(answer, Reward)
    return answer


@pytest.mark.parametrize("method", ["z-score", "min-max"])
def test_the_totals_come_out_where_least_deviation_and_gate_apply(method):
    reward = narrow(method)
    document = explain([row(reward)], CONFIGURED)
    parts = document["components"]
    assert parts["task_completion"]["window"]["least_std"] > 0.0
    assert parts["code_quality"]["window"]["gate"] == pytest.approx(0.8)
    raw, total, confidence = by_calculator(document)
    assert raw == pytest.approx(reward.metadata.raw_total, abs=1e-12)
    assert total == pytest.approx(reward.total_reward, abs=1e-12)
    assert confidence == pytest.approx(reward.metadata.confidence, abs=1e-12)
    assert "times completion 0.8 = " in parts["code_quality"]["formula"]


def test_components_that_do_not_apply_and_their_weights_are_told():
    document = explain([row(rewards(1)[0])], CONFIGURED)
    assert document["not_applicable"]["efficiency"]["configured_weight"] == 0.2
    text = " ".join(printed(document).split())
    assert "efficiency (weight 0.2, shared out among the others) does not apply: fewer than 30" in text


def test_weights_of_the_present_settings_stand_in_where_a_reward_has_none():
    reward = rewards(1)[0]
    document = json.loads(encode(reward))
    del document["metadata"]["weights"]
    old = {"payload": json.dumps(document), "revision": 0}
    found = explain([old], {"task_completion": 0.7, "user_feedback": 0.3})
    assert found["weights_from"] == "settings"
    assert found["components"]["task_completion"]["configured_weight"] == 0.7
    assert "the present settings" in " ".join(printed(found).split())
    assert explain([row(reward)], {})["weights_from"] == "reward"


def test_the_chain_of_superseded_rewards_is_newest_first():
    settings, item, state = load(environ={}).reward, trajectory("t1"), State(1000)
    first = score(item, state, settings=settings, timestamp=START)
    votes = [feedback("thumbs_down", at=1), feedback("thumbs_up", at=2)]
    chain = [first]
    for n in (1, 2):
        chain.append(
            score(
                item, state, settings=settings, timestamp=START, feedback=votes[:n],
                cause=votes[n - 1].feedback_id, supersedes=chain[-1].reward_id,
            )
        )  # fmt: skip
    history = [row(reward, revision) for revision, reward in enumerate(chain)]
    document = explain(history, CONFIGURED)
    assert (document["reward_id"], document["supersedes"]) == (chain[2].reward_id, chain[1].reward_id)
    assert [old["reward_id"] for old in document["superseded"]] == [chain[1].reward_id, first.reward_id]
    assert [old["scores"]["user_feedback"] for old in document["superseded"]] == [0.0, 0.5]
    facts = document["components"]["user_feedback"]["facts"]
    assert facts["feedback_id"] == votes[1].feedback_id, "the feedback that counted"
    assert "It supersedes, newest first:" in printed(document)


def test_feedback_that_was_taken_into_account_and_which_of_it_counts():
    settings, votes = load(environ={}).reward, [feedback("thumbs_down", at=1), feedback("thumbs_up", at=2)]
    answer = score(trajectory("t1"), State(1000), settings=settings, timestamp=START, feedback=votes)
    rows = [
        {
            "feedback_id": vote.feedback_id, "kind": vote.kind, "signal": vote.signal, "value": None,
            "source": "webui", "ts": f"2026-01-01T00:0{n}:00.000Z", "comment": "what somebody wrote",
        }
        for n, vote in enumerate(votes, start=1)
    ]  # fmt: skip
    found = explain([row(answer)], CONFIGURED, rows)
    assert [item["counted"] for item in found["feedback"]] == [False, True]
    assert "wrote" not in json.dumps(found)
    text = " ".join(printed(found).split())
    assert f"explicit thumbs_up ({votes[1].feedback_id}): this one counts" in text
    assert f"explicit thumbs_down ({votes[0].feedback_id}) " in text


def test_why_a_trajectory_was_scored_again_is_said():
    made = rewards(1)[0]
    again = json.loads(encode(made))
    again["metadata"] |= {"cause": {"kind": "rescore", "id": "run-1"}, "supersedes": made.reward_id}
    again["reward_id"] = "other"
    history = [row(made), {"payload": json.dumps(again), "revision": 1}]
    assert "Scored again because of rescore run-1." in printed(explain(history, CONFIGURED))
    assert explain(history[:1], CONFIGURED)["cause"] is None


def test_contradictions_are_shown_before_the_numbers():
    document = explain([row(rewards(1)[0])], CONFIGURED)
    document["contradictions"] = ["its tests failed"]
    text = printed(document)
    assert text.index("Contradiction: its tests failed") < text.index("component")


def test_unscored_is_no_zero_and_waiting_is_not_unscored():
    unscored = {
        "trajectory_id": "t1",
        "status": "unscored",
        "unscored": {"reason": "no_outcome", "detail": "nobody said how it ended"},
    }
    assert " ".join(printed(unscored).split()) == (
        "Trajectory t1 is unscored, which is not a zero: no_outcome (nobody said how it ended)."
    )
    assert "waits for its reward" in printed({"trajectory_id": "t1", "status": "waiting"})


def test_rewards_of_turns_are_listed():
    settings = load(environ={}, overrides={"reward": {"dense": True}}).reward
    answer = score(trajectory(turns=3), State(1000), settings=settings, timestamp=START)
    document = explain([row(answer)], CONFIGURED)
    assert sum(one["reward"] for one in document["dense"]) == pytest.approx(document["raw_total"], abs=1e-12)
    assert "By turn: turn 1 " in printed(document)


def test_nested_facts_are_readable():
    document = explain([row(rewards(1)[0])], CONFIGURED)
    document["components"]["task_completion"]["facts"] = {"tools": ["a", "b"], "counts": {"error": 1 / 3}}
    assert "tools a, b, counts (error 0.333333)." in printed(document)


def test_what_agents_named_is_no_markup():
    reward = rewards(1)[0].model_copy(deep=True)
    reward.metadata.task_type = "[red]sum[/red] [/]"
    reward.reward_components["task_completion"].reasoning = "[bold]fine[/]"
    text = printed(explain([row(reward)], CONFIGURED))
    assert "[red]sum[/red] [/]" in text and "[bold]fine[/]" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (1 / 3, "0.333333"), (-0.25, "−0.25"), (0, "0"), (None, "-")]
)
def test_numbers_are_short_and_have_a_real_minus(value, text):
    assert number(value) == text
