"""Components of the user's own: found, tried, fenced in."""

import importlib
import math
import sys
from pathlib import Path

import pytest
from reward_documents import trajectory

from onward.clock import ManualClock
from onward.config import RewardSettings, load
from onward.contracts import Reward
from onward.errors import ConfigError
from onward.reward import ScoringContext, State, Unscored, components_of, score
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge

MODULE = """
from onward.reward import NotApplicable, Scored

class Politeness:
    name = "anything"
    def score(self, trajectory, context):
        return Scored(0.25, "automated", "Polite by a quarter.")

def brevity(trajectory, context):
    return Scored(1.0 / len(trajectory.turns), "automated", "Short.")

def made():
    return Politeness()

instance = Politeness()

def absent(trajectory, context):
    return NotApplicable("not this kind of work")

def breaks(trajectory, context):
    raise KeyError("a secret detail")

def number(trajectory, context):
    return 0.5

def too_much(trajectory, context):
    return Scored(1.5, "automated", "")

def nan(trajectory, context):
    return Scored(float("nan"), "automated", "")

def odd(trajectory, context):
    facts = {"unwritable": {1, 2}, "infinite": float("inf"), "half": "\\ud800", "huge": "x" * 70_000}
    if trajectory.trajectory_id in facts:
        return Scored(1.0, "automated", "", {"fact": facts[trajectory.trajectory_id]})
    if trajectory.trajectory_id == "reason":
        return Scored(1.0, "automated", "\\ud800")
    return Scored(1.0, "automated", "", evidence="much" if trajectory.trajectory_id == "evidence" else 1.0)

def late(trajectory, context):
    return 7 if trajectory.trajectory_id == "odd" else Scored(1.0, "automated", "")

def one(trajectory): ...

class Needs:
    def __init__(self, what): ...

word = "no component"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_rewards.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("own_rewards", None)


def settings(source: str, weight: float = 0.2, name: str = "polite") -> RewardSettings:
    shares = {"task_completion": 0.4, "efficiency": 0.2, "code_quality": 0.0, "user_feedback": 0.4 - weight}
    return RewardSettings.model_validate({**shares, "custom": {name: {"source": source, "weight": weight}}})


def rated(source: str, item=None, weight: float = 0.2):
    chosen = settings(source, weight)
    return score(item or trajectory(), State(100), settings=chosen, timestamp=ManualClock().now())


@pytest.mark.parametrize(
    "source, value",
    [("Politeness", 0.25), ("instance", 0.25), ("made", 0.25), ("brevity", 1.0), ("Politeness.score", None)],
)
def test_a_class_an_object_a_maker_or_a_function(module, source, value):
    if value is None:
        with pytest.raises(ConfigError, match="cannot score"):
            rated(f"own_rewards:{source}")
        return
    reward = rated(f"own_rewards:{source}")
    assert isinstance(reward, Reward)
    part = reward.reward_components["polite"]
    assert part.score == value and part.weight == pytest.approx(0.2 / 0.8)
    assert reward.metadata.raw_total == pytest.approx((0.4 + 0.2 * 0.5 + 0.2 * value) / 0.8)


@pytest.mark.parametrize(
    "source, message",
    [
        ("own_rewards", "names no object: give module:name"),
        (":x", "names no object: give module:name"),
        ("own_rewards:nobody", r"'own_rewards' \(.*own_rewards.py\) has no 'nobody'"),
        (
            "no_such_module:x",
            "needs the module 'no_such_module', which is neither in .* nor installed.* PYTHONPATH",
        ),
        ("own_rewards:word", "cannot score: expected score"),
        ("own_rewards:one", "cannot score: expected score"),
        ("own_rewards:Needs", r"cannot be made \(TypeError\)"),
        ("own_rewards:number", "gave a float: it must return Scored"),
        ("own_rewards:too_much", "gave a score that is not a finite number from 0 to 1"),
        ("own_rewards:nan", "gave a score that is not a finite number from 0 to 1"),
        ("", "no installed distribution offers it as an entry point"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(module, source, message):
    with pytest.raises(ConfigError, match=message) as caught:
        components_of(settings(source))
    assert "'polite'" in str(caught.value) and "\n" not in str(caught.value)


def test_a_component_that_breaks_later_leaves_the_trajectory_unscored_and_tells_no_secret(module):
    assert rated("own_rewards:breaks") == Unscored("component_error", "polite: KeyError")
    assert isinstance(rated("own_rewards:late"), Reward)
    assert rated("own_rewards:late", trajectory("odd")) == Unscored("component_error", "polite: a int")


@pytest.mark.parametrize(
    "name, fault",
    [
        ("unwritable", "facts that JSON cannot hold"),
        ("infinite", "facts that JSON cannot hold"),
        ("half", "facts that JSON cannot hold"),
        ("huge", "more than 65536 bytes of facts"),
        ("reason", "facts that JSON cannot hold"),
        ("evidence", "an evidence that is not from 0 to 1"),
    ],
)
def test_facts_that_no_message_can_hold_leave_the_trajectory_unscored_and_stop_nothing(module, name, fault):
    """Else the reward could not be written, and the rewarder would fail at this message for ever."""
    assert isinstance(rated("own_rewards:odd"), Reward)
    assert rated("own_rewards:odd", trajectory(name)) == Unscored("component_error", f"polite: {fault}")


def test_without_a_weight_a_broken_component_is_only_noted(module):
    reward = rated("own_rewards:breaks", weight=0.0)
    assert reward.metadata.not_applicable["polite"] == "unscored: component_error"


def test_one_that_does_not_apply_leaves(module):
    assert rated("own_rewards:absent").metadata.not_applicable["polite"] == "not this kind of work"


def test_an_entry_point_of_an_installed_distribution(module):
    information = module / "own_rewards-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-rewards\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[onward.reward_components]\npolite = own_rewards:Politeness\n"
    )
    assert rated("").reward_components["polite"].score == 0.25
    with pytest.raises(ConfigError, match=r"\(offered: polite\)"):
        components_of(settings("", name="rude"))


@pytest.mark.parametrize("name", ["Polite", "a b", "safety", "raw_total", "9x", ""])
def test_names_that_cannot_be_used(name):
    with pytest.raises(ValueError, match=r"is not a name of a component|Onward uses itself"):
        settings("x:y", name=name)


def test_all_weights_together_sum_to_one():
    environ = {
        "REWARD_WEIGHT_TASK_COMPLETION": "0.3",
        "REWARD_WEIGHT_SAFETY": "0.05",
        "REWARD_WEIGHT_ACCURACY": "0.05",
    }
    weights = load(environ=environ).reward.weights()
    assert math.fsum(weights.values()) == pytest.approx(1.0) and weights["safety"] == 0.05
    with pytest.raises(ConfigError, match=r"sum to 1\.1"):
        load(environ={"REWARD_WEIGHT_RUBRIC": "0.1"})
    with pytest.raises(ConfigError, match=r"sum to 1\.2"):
        load(environ={}, overrides={"reward": {"custom": {"polite": {"weight": 0.2}}}})
    with pytest.raises(ConfigError, match=r"Unknown setting 'reward.custom.polite.wieght'.*source, weight"):
        load(environ={}, overrides={"reward": {"custom": {"polite": {"weight": 0, "wieght": 0.2}}}})


def test_a_fault_is_logged_once_and_without_the_text_of_the_error(module, caplog):
    (component,) = [one for one in components_of(settings("own_rewards:breaks")) if one.name == "polite"]
    context = ScoringContext(judge(trajectory()), Baselines())
    with caplog.at_level("ERROR"):
        for _ in range(5):
            component.score(trajectory(), context)
    lines = [record.getMessage() for record in caplog.records if "stay unscored" in record.getMessage()]
    assert len(lines) == 1
    assert "KeyError (own_rewards.py, line " in lines[0] and "a secret detail" not in lines[0]


def test_an_unknown_source_is_named_with_those_that_are_known(module):
    (module / "own_rewards.py").write_text(
        "from onward.reward import Scored\ndef f(t, c): return Scored(1.0, 1.0, 'x')\n"
    )
    sys.modules.pop("own_rewards", None)
    with pytest.raises(
        ConfigError, match=r"gave the source '1\.0', which is none of automated, human, linter"
    ):
        components_of(settings("own_rewards:f"))


def test_weights_that_do_not_sum_to_one_are_all_named():
    with pytest.raises(ConfigError) as caught:
        load(overrides={"reward": {"custom": {"short": {"source": "x:y", "weight": 0.2}}}})
    assert (
        "the weights sum to 1.2 (task_completion 0.4, efficiency 0.2, code_quality 0.15, user_feedback 0.25, "
        "short 0.2): they must sum to 1, so change others too" in str(caught.value)
    )
