"""The state of scoring: windows, baselines, recent unscored causes and the position in the stream.

The record stores float64 values in their shortest exact form. So a rewarder that starts from it gives the
same bytes for the same messages as one that never stopped.
"""

from __future__ import annotations

from onward.contracts.buckets import RewarderState
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.normalise import Window

TOTAL = "raw_total"
"""Name of the window over raw totals, beside those of the components."""
TRAILING = 200
"""Number of trajectories whose causes are stored, the newest ones."""


class State:
    def __init__(self, window: int, stream_seq: int = 0) -> None:
        """``window``: trailing samples per component; ``stream_seq``: the last message that counted."""
        self.window = window
        self.windows: dict[str, Window] = {}
        self.baselines = Baselines()
        self.stream_seq = stream_seq
        self._stored: RewarderState | None = None
        """Record that this state was loaded from."""
        self.recent: list[str] = []
        """Causes of the newest trajectories: why each is unscored, empty for a scored one."""

    def record_cause(self, cause: str) -> None:
        """Records why one trajectory is unscored; empty when it was scored."""
        self.recent = [*self.recent[1 - TRAILING :], cause]

    def window_of(self, name: str) -> Window:
        """Returns the window of a component; made empty at first use."""
        if name not in self.windows:
            self.windows[name] = Window(self.window)
        return self.windows[name]

    def fork(self) -> State:
        """Returns a copy to work on: a batch whose publishing fails leaves the original unchanged."""
        copy = State(self.window, self.stream_seq)
        copy.windows = {name: window.fork() for name, window in self.windows.items()}
        copy.baselines = self.baselines.fork()
        copy.recent = self.recent
        copy._stored = self._stored
        return copy

    def dump(self) -> bytes:
        record = RewarderState(
            version=RewarderState.VERSION,
            stream_seq=self.stream_seq,
            windows={name: window.values() for name, window in self.windows.items()},
            baselines=self.baselines.dump(),
            recent=self.recent,
        )
        return (record if self._stored is None else record.with_unknown_fields(self._stored)).dump()

    @classmethod
    def load(cls, stored: RewarderState, window: int) -> State:
        """Loads a record. ``window`` may have changed since: the newest values are retained."""
        state = cls(window, stored.stream_seq)
        state.windows = {name: Window(window, values) for name, values in stored.windows.items()}
        state.baselines = Baselines.load(stored.baselines)
        state.recent = list(stored.recent)
        state._stored = stored
        return state
