"""The alert about silence, on a clock that the test moves."""

from onward.clock import ManualClock
from onward.contracts.buckets import RewarderState
from onward.reward.role.monitoring import LEAST, REMIND_SECONDS, UnscoredAlert
from onward.reward.scoring.state import TRAILING, State
from onward.telemetry import Metrics


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []

    async def raise_(self, kind, message, severity="warning", **facts):
        self.said.append((f"{kind} {severity}", facts["share"]))

    async def resolve(self, kind, message, **facts):
        self.said.append((f"{kind} resolved", facts["share"]))


def recent(unscored: int, of: int) -> list[str]:
    return ["no_outcome"] * unscored + [""] * (of - unscored)


async def test_it_speaks_above_ten_percent_reminds_each_hour_and_resolves_below():
    alerts, clock, metrics = Heard(), ManualClock(), Metrics()
    alert = UnscoredAlert(alerts, metrics, clock)
    await alert.check(recent(20, 200))  # exactly 10 %: not above
    assert alerts.said == []
    await alert.check(recent(21, 200))
    await alert.check(recent(22, 200))
    assert alerts.said == [("unscored warning", 0.105)]
    await clock.advance(REMIND_SECONDS - 1)
    await alert.check(recent(22, 200))
    assert len(alerts.said) == 1
    await clock.advance(1)
    await alert.check(recent(22, 200))
    assert alerts.said[1:] == [("unscored warning", 0.11)]
    await alert.check(recent(20, 200))
    await alert.check(recent(0, 200))
    assert alerts.said[2:] == [("unscored resolved", 0.1)]
    assert metrics.registry.get_sample_value("onward_unscored_share") == 0.0
    await alert.check(recent(21, 200))
    assert alerts.said[3:] == [("unscored warning", 0.105)]


async def test_few_trajectories_say_nothing():
    alerts = Heard()
    alert = UnscoredAlert(alerts, Metrics(), ManualClock())
    await alert.check([])
    await alert.check(recent(LEAST - 1, LEAST - 1))
    assert alerts.said == []


def test_the_state_keeps_the_newest_two_hundred_over_a_restart():
    state = State(40)
    for i in range(TRAILING + 50):
        state.record_cause("contract" if i < 60 else "")
    assert len(state.recent) == TRAILING and state.recent.count("contract") == 10
    assert State.load(RewarderState.load(state.dump()), 40).recent == state.recent
    fork = state.fork()
    fork.record_cause("contract")
    assert state.recent.count("contract") == 10


def test_a_record_from_before_the_share_was_kept_is_read():
    import json

    document = json.loads(State(40).dump())
    del document["recent"]
    assert State.load(RewarderState.load(json.dumps(document).encode()), 40).recent == []
