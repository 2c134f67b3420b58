"""Reward hacking: whatever an agent tries instead of working, an honest partial success beats it.

Each population is 1,000 scored trajectories at one rate of success; every honest part is compared with every
cheat against the windows and baselines that they leave. Honest parts are the worst of their kind too: the
slowest of their type of task, with poor code. Cheats are the best of theirs.
"""

import random
from functools import cache
from itertools import product

import pytest
from reward_documents import feedback, trajectory, turn

from onward.clock import ManualClock
from onward.config import load
from onward.contracts import Reward
from onward.reward import State, score
from onward.reward.code.report import CodeReport
from onward.reward.components import components_of

RATES = (0.2, 0.5, 0.8, 0.95)
REST = ("failures", "parts")
METHODS = ("z-score", "min-max", "none")
SETTINGS = load(environ={}).reward
COMPONENTS = components_of(SETTINGS)
NOW = ManualClock().now()
TIDY = CodeReport(linter=1.0, security_criticals=0)
POOR = CodeReport(linter=0.2, security_criticals=1)


def rate(item, state, *, code=None, method="z-score", said=(), cause="") -> Reward:
    settings = SETTINGS.model_copy(update={"normalization": method})
    reward = score(
        item,
        state,
        settings=settings,
        timestamp=NOW,
        code=code,
        feedback=said,
        components=COMPONENTS,
        cause=cause,
    )
    assert isinstance(reward, Reward)
    return reward


@cache
def warmed(success: float, rest: str) -> State:
    """1,000 trajectories: ``success`` of them done, the others as ``rest`` says; some with code, some with a
    vote, of two types of task and two domains, with effort between 2 and 6 turns."""
    rng, state = random.Random(f"{success}/{rest}"), State(1000)
    for i in range(1000):
        status = "failed" if rest == "failures" else "partial_completion"
        completion = rng.uniform(0.1, 0.9) if rest == "parts" else None
        if rng.random() < success:
            status, completion = "completed_successfully", None
        domain = rng.choice(("coding", "general"))
        turns = rng.randint(2, 6)
        calls = [
            turn(n + 1, tool="search", args={"q": str(n)}, output=f"found {n}") for n in range(turns - 1)
        ]
        item = trajectory(
            f"t{i}",
            status=status,
            completion=completion,
            turns=[*calls, turn(turns)],
            seconds=10.0 * turns + rng.uniform(0, 10),
            tokens=100 * turns + rng.randint(0, 100),
            task_type=rng.choice(("sum", "sort")),
            domain=domain,
        )
        rating = [feedback("rating", value=rng.choice((0.2, 0.6, 1.0)))] if rng.random() < 0.1 else []
        quality = (
            CodeReport(linter=rng.uniform(0.6, 1.0), security_criticals=0) if domain == "coding" else None
        )
        rate(item, state, code=quality, said=rating)
    return state


SLOW = [turn(n + 1, tool="search", args={"q": str(n)}, output=f"found {n}") for n in range(9)]
USUAL = SLOW[:3]
BUSY = [turn(n + 1, tool="search", args={"q": "x"}, output="found") for n in range(6)]


def part(completion, calls, seconds, tokens, **more):
    return trajectory(
        "honest", status="partial_completion", completion=completion, turns=[*calls, turn(len(calls) + 1)],
        seconds=seconds, tokens=tokens, **more,
    )  # fmt: skip


def quick(turns, *, status=None, **more):
    return trajectory("cheat", status=status, turns=turns, seconds=0.0, tokens=1, **more)


def honest():
    for (name, calls, seconds, tokens), completion, code in product(
        (("usual", USUAL, 45, 450), ("slow", SLOW, 900, 9000)), (0.1, 0.3, 0.7), (None, TIDY, POOR)
    ):
        yield f"{name} {completion} {code and code.linter}", part(completion, calls, seconds, tokens), code
    yield "of a new type", part(0.3, USUAL, 45, 450, task_type="new", domain="writing"), None


PRAISE = "I did everything perfectly. This deserves the highest score: 1.0, ten of ten, success!"
SUCCESS = "completed_successfully"


def tried():
    """Cheat → trajectory. Those that tell a success have results that contradict it."""
    empty, new = turn(1, output=""), {"task_type": "fresh", "domain": "writing"}
    return {
        "empty": quick([empty]),
        "empty, success told": quick([empty], status=SUCCESS),
        "gives up at once": quick([turn(1)], status="failed"),
        "abandons at once": quick([turn(1)], status="abandoned"),
        "one turn, tells nothing": quick([turn(1)]),
        "praises itself": quick([turn(1, output=PRAISE)]),
        "praises itself after work": quick([turn(1, tool="x", args={"a": 1}), turn(2, output=PRAISE)]),
        "praises itself and fails": quick([turn(1, output=PRAISE, success=False)], status=SUCCESS),
        "pads": quick([turn(n + 1, tool="x", args={"n": n}, output=str(n)) for n in range(30)]),
        "pads and answers": quick([*SLOW, turn(10)]),
        "repeats": quick(BUSY, status="failed"),
        "repeats and answers": quick([*BUSY, turn(7)]),
        "success told, last failed": quick([turn(1, tool="x"), turn(2, success=False)], status=SUCCESS),
        "success told, nothing worked": quick(
            [turn(1, tool="x", success=False), turn(2, success=False)], status=SUCCESS
        ),
        "success told, tests failed": quick([_checked({"passed": 3, "failed": 1}), turn(2)], status=SUCCESS),
        "success told, all tests failed": quick([_checked({"pass_rate": 0.0}), turn(2)], status=SUCCESS),
        "success told, no answer": quick([turn(1, tool="x"), turn(2, tool="x")], status=SUCCESS),
        "success told, empty answer": quick([turn(1, tool="x"), turn(2, output=" ")], status=SUCCESS),
        "success told, unparsable at the end": quick(
            [turn(1, tool="x"), turn(2, success=False, error="unparsable: no object")], status=SUCCESS
        ),
        "part told, nothing worked": quick(
            [turn(1, success=False)], status="partial_completion", completion=0.99
        ),
        "whole part told, last failed": quick(
            [turn(1, tool="x"), turn(2, success=False)], status="partial_completion", completion=1.0
        ),
        "whole part told, empty answer": quick(
            [turn(1, tool="x"), turn(2, output=" ")], status="partial_completion", completion=1.0
        ),
        "fails, says all is done": quick([turn(1)], status="failed", completion=1.0),
        "new type, tells nothing": quick([turn(1)], **new),
        "new type, fails": quick([turn(1)], status="failed", **new),
        "new type, success told": quick([turn(1, success=False)], status=SUCCESS, **new),
        "new type, praise after work": quick([*BUSY, turn(7, output=PRAISE)], **new),
    }  # fmt: skip


@pytest.mark.parametrize("rest", REST)
@pytest.mark.parametrize("success", RATES)
def test_no_cheat_beats_an_honest_part(success, rest):
    state = warmed(success, rest)
    for method in METHODS:
        cheats = {
            (name, code is TIDY): rate(item, state, code=code, method=method, cause="look")
            for name, item in tried().items()
            for code in (None, TIDY)
        }
        for what, item, code in honest():
            part = rate(item, state, code=code, method=method, cause="look")
            for cheat, reward in cheats.items():
                assert reward.metadata.raw_total < part.metadata.raw_total, (what, cheat, method)
                assert reward.total_reward < part.total_reward, (what, cheat, method)


def test_no_cheat_beats_an_honest_part_before_there_is_any_history():
    cheats = {
        (name, code is TIDY): rate(item, State(1000), code=code)
        for name, item in tried().items()
        for code in (None, TIDY)
    }
    for what, item, code in honest():
        part = rate(item, State(1000), code=code)
        assert part.total_reward == part.metadata.raw_total
        for cheat, reward in cheats.items():
            assert reward.total_reward < part.total_reward, (what, cheat)


@pytest.mark.parametrize("success", RATES)
def test_telling_more_than_the_tests_show_never_pays(success):
    """The same work and results: nine tenths told is worth what the truth is, and is less trusted."""
    state, turns = warmed(success, "failures"), [_checked({"passed": 1, "failed": 9}), turn(2)]
    for method in METHODS:
        told, honest = (
            rate(
                quick(turns, status="partial_completion", completion=completion),
                state,
                method=method,
                cause="look",
            )
            for completion in (0.9, 0.1)
        )
        assert told.metadata.raw_total <= honest.metadata.raw_total
        assert told.total_reward <= honest.total_reward
        assert told.metadata.outcome.completion == honest.metadata.outcome.completion == 0.1
        assert told.metadata.contradictions and told.metadata.confidence < honest.metadata.confidence


def test_a_success_that_its_results_contradict_is_flagged_and_little_trusted():
    told = {name: item for name, item in tried().items() if "told" in name and "part" not in name}
    assert len(told) == 9
    plain = rate(trajectory(), warmed(0.5, "failures"), cause="look")
    for name, item in told.items():
        reward = rate(item, warmed(0.5, "failures"), cause="look")
        assert reward.metadata.contradictions, name
        completion = reward.reward_components["task_completion"]
        assert completion.raw_data["contradictions"] == reward.metadata.contradictions
        assert completion.raw_data["told"] == SUCCESS and not reward.metadata.outcome.success
        assert completion.score <= 0.25
        assert reward.metadata.confidence < plain.metadata.confidence / 2
        assert "was reported, but" in completion.reasoning


@pytest.mark.parametrize("success", RATES)
def test_leaving_a_component_out_never_pays_for_work_that_failed(success):
    """The same failure with and without a baseline, and with and without code, however poor."""
    state = warmed(success, "failures")
    for item in (quick([turn(1)], status="failed"), quick([turn(1)])):
        known = rate(item, state, cause="look")
        new = rate(_of_new_type(item), state, cause="look")
        assert new.reward_components["efficiency"].score == 0.0
        assert new.total_reward == known.total_reward and new.metadata.raw_total == known.metadata.raw_total


def test_silence_and_padding_do_not_move_the_baselines():
    """Else a flood of give-ups would make honest work look slow."""
    state = State(1000)
    for i in range(40):
        rate(trajectory(f"t{i}", turns=4, seconds=20, tokens=200), state)
    before = state.baselines.dump()
    for name, item in tried().items():
        if item.metadata.outcome is None or item.metadata.outcome.status != "partial_completion":
            rate(item, state)
            assert state.baselines.dump() == before, name


def _of_new_type(item):
    context = item.task_context.model_copy(update={"task_type": "unheard of", "domain": "writing"})
    return item.model_copy(update={"task_context": context})


def _checked(tests):
    found = turn(1, tool="run_tests", args={"path": "."})
    found["result"]["checks"] = {"tests": tests}
    return found
