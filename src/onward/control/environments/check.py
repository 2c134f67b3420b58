"""Checks of an environment before anything is trained in it, by ``onward control check`` and ``train``.

The actions are random. Everything that would stop a run or make it learn nothing is a finding with a remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import LONGEST_EPISODE
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import part_of, to_env
from onward.control.environments import slips
from onward.control.environments.checked_env import CheckedEnv
from onward.control.environments.gym_slots import GymSlots
from onward.control.environments.making import make
from onward.errors import ControlError, EnvironmentFault

STEPS = 20
"""Steps of the check before a run."""
PATIENCE = 10.0
"""Seconds for the search of an episode's end: of an environment slower than that, too little is known."""
SLOW = 2.0
"""Milliseconds of a step from which processes pay: sending a step to one costs about 0.1 ms."""
_SLOW = "a step takes"
PICTURE = 16
"""Smallest height and width of a Box of floats that is taken for a picture."""
Severity = Literal["error", "warning", "note"]
_LIMIT = "give a limit with --env-set max_episode_steps=1000 or gymnasium.wrappers.TimeLimit(env, 1000)"


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    severity: Severity
    """``error``: no run starts. ``warning``: a run starts, and may learn less. ``note``: for information."""
    what: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The finding and its remedy as one sentence."""
        return f"{self.what}; {self.remedy}." if self.remedy else self.what

    def as_dict(self) -> dict[str, str]:
        """Returns plain JSON values."""
        return asdict(self)


def check(
    source: Any, *, steps: int = STEPS, env_kwargs: dict[str, Any] | None = None, seed: int = 0
) -> list[Finding]:
    """Returns the findings about an environment, the worst first. ``source``: as for ``make``."""
    try:
        envs = make(source, env_kwargs=env_kwargs)
    except ControlError as error:
        return [Finding("error", str(error), "")]
    try:
        if isinstance(envs, GymSlots):
            found = _Check(envs.slots[0], seed).findings(steps)
        else:
            found = []
            envs.reset(seed)
    except ControlError as error:
        found = [Finding("error", str(error), "")]
    finally:
        if isinstance(source, str) or callable(source):
            envs.close()  # a given environment belongs to the caller
    order = ("error", "warning", "note")
    return sorted(found, key=lambda one: order.index(one.severity))


def require(source: Any, env_kwargs: dict[str, Any] | None = None) -> tuple[list[str], bool]:
    """Checks an environment before a run. Returns (warnings, True where its steps are slow). Raises
    ControlError for the first error."""
    found = check(source, env_kwargs=env_kwargs)
    for one in found:
        if one.severity == "error":
            raise ControlError(one.sentence)
    return [one.sentence for one in found if one.severity == "warning"], any(
        one.what.startswith(_SLOW) for one in found
    )


class _Check:
    """Steps one environment by random actions and collects what is found."""

    def __init__(self, env: CheckedEnv, seed: int) -> None:
        self.env, self.spec = env, env.spec
        self.seed = Seeds(seed).child("check").integer("env")
        self._draws = Seeds(seed).child("check").generator("actions")
        self._seen: dict[str, Finding] = {}
        self._taken: list[NDArray[Any]] = []
        self._observed: list[Any] = []
        self._seconds: list[float] = []
        self._ended = self._reports_success = False
        self._legal: NDArray[np.bool_] | None = None
        """(sum of sizes,) legal actions of the present state; None without a mask."""

    def findings(self, steps: int) -> list[Finding]:
        try:
            if self._play(steps):
                self._note_generators()
                if not self._errors():
                    self._repeat()
                    self._search_end()
        except EnvironmentFault as error:
            self._add("fault", "error", str(error), "")
        self._note_shape()
        self._note_speed()
        return list(self._seen.values())

    def _errors(self) -> bool:
        return any(one.severity == "error" for one in self._seen.values())

    def _add(self, kind: str, severity: Severity, what: str, remedy: str) -> None:
        self._seen.setdefault(kind, Finding(severity, what, remedy))

    def _take(self, found: Iterator[slips.Slip]) -> bool:
        """Adds slips as errors; True where there was none."""
        good = True
        for slip in found:
            when = f"at step {self.env.at} of an episode" if self.env.at else "at the start of an episode"
            self._add(slip.kind, "error", f"{self.spec.id}, {when}: {slip.what}", slip.remedy)
            good = False
        return good

    # Steps.

    def _play(self, steps: int) -> bool:
        """Plays random steps; False where a result made it impossible to go on."""
        if not self._reset(self.seed):
            return False
        for _ in range(steps):
            action = self._action()
            began = perf_counter()
            result = self.env.call_step(action)
            self._seconds.append(perf_counter() - began)
            self._taken.append(action)
            self._take(slips.of_step(result, self.spec.layout))
            if not isinstance(result, tuple) or len(result) != 5:
                return False
            raw, _, terminated, truncated, info = result
            self._look(raw)
            over = _true(terminated) or _true(truncated)
            if isinstance(info, dict) and not over:
                self._take_mask(info)
            if over:
                self._ended = True
                self._reports_success = isinstance(info, dict) and ("success" in info or "is_success" in info)
                if not self._reset():
                    return False
        return True

    def _reset(self, seed: int | None = None) -> bool:
        self.env.at = 0
        if seed is not None:
            self.env.generators.seed(seed)
        result = self.env.call_reset(seed)
        if not self._take(slips.of_reset(result, self.spec.layout)):
            return False
        self._look(result[0])
        return self._take_mask(result[1])

    def _take_mask(self, info: dict[str, Any]) -> bool:
        """Checks and remembers the legal actions; False where the mask is none."""
        mask = info.get("action_mask")
        good = mask is None or self._take(slips.of_mask(mask, self.spec.actions))
        self._legal = np.asarray(mask, np.bool_).ravel() if good and mask is not None else None
        return good

    def _action(self) -> Any:
        """Draws an action, a legal one where the environment says which are."""
        spec = self.spec.actions
        if spec.kind == "box":
            drawn: NDArray[Any] = self._draws.uniform(-1, 1, (1, spec.dim)).astype(np.float32)
        elif self._legal is not None:
            parts = np.split(self._legal, np.cumsum(spec.sizes)[:-1])
            drawn = np.array([[self._draws.choice(np.flatnonzero(part)) for part in parts]])
            drawn = drawn[0] if spec.kind == "discrete" else drawn
        elif spec.kind == "discrete":
            drawn = self._draws.integers(0, spec.sizes[0], 1)
        else:
            drawn = self._draws.integers(0, np.array(spec.sizes), (1, spec.dim))
        return to_env(spec, drawn).astype(self.env.env.action_space.dtype)[0]

    def _look(self, raw: Any) -> None:
        """Compares an observation with the bounds and types of its space, which no run depends on."""
        self._observed.append([_copied(part) for part in _parts(raw, self.spec.layout)])
        for leaf in self.spec.layout.leaves:
            try:
                space: Any = _space_at(self.env.env.observation_space, leaf.path)
                value = np.asarray(part_of(raw, leaf.path))
            except (KeyError, IndexError, TypeError, ValueError):
                continue
            if leaf.kind != "numbers" or not hasattr(space, "low") or value.shape != leaf.shape:
                continue
            where = f"observation part {'/'.join(map(str, leaf.path))!r}" if leaf.path else "observation"
            if value.dtype != space.dtype:
                what = f"the {where} is {value.dtype}, where observation_space declares {space.dtype}"
                self._add(f"type {where}", "note", what, "it is cast to float32")
            outside = (value < space.low) | (value > space.high)
            if outside.any():
                at = tuple(np.argwhere(outside)[0].tolist())
                low, high = space.low[at], space.high[at]
                what = (
                    f"the {where} is {value[at]:g}{slips.placed(at)}, outside its bounds {low:g} … {high:g}"
                )
                self._add(f"bounds {where}", "warning", what, "correct observation_space, or the observation")

    # Conclusions.

    def _repeat(self) -> None:
        """Plays the same actions from the same seed again."""
        first, self._observed = self._observed, []
        if not self._reset(self.seed):
            return
        if not _equal(first[0], self._observed[0]):
            self._add(
                "seed",
                "warning",
                "reset with the same seed gave another observation: runs of one seed differ",
                "call super().reset(seed=seed) and draw from self.np_random only",
            )
            return
        for action in self._taken:
            raw, _, terminated, truncated, _ = self.env.step(action)
            self._look(raw)
            if terminated or truncated:
                self._reset()
        at = next(
            (at for at, pair in enumerate(zip(first, self._observed, strict=False)) if not _equal(*pair)), 0
        )
        if at or len(first) != len(self._observed):
            self._add(
                "repeat",
                "warning",
                f"the same seed and actions led to another observation (number {at}): seeds do not repeat",
                "draw from self.np_random only, and keep nothing from before a reset",
            )

    def _search_end(self) -> None:
        """Looks for the end of an episode where no time limit is declared."""
        if self.spec.max_steps is not None:
            return
        self._reset(self.seed)
        until = perf_counter() + PATIENCE
        ended = False
        while not ended and self.env.at < LONGEST_EPISODE and perf_counter() < until:
            _, _, terminated, truncated, info = self.env.step(self._action())
            over = terminated or truncated
            if not over:
                self._take_mask(info)
            ended = over and self.env.at < LONGEST_EPISODE
        if ended:
            what = f"no max_episode_steps is declared: an episode is cut after {LONGEST_EPISODE:,} steps"
            self._add("end", "note", what, "set another limit with --env-set max_episode_steps=…")
        elif self.env.at >= LONGEST_EPISODE:
            what = f"no episode ended within {self.env.at:,} steps of random actions"
            self._add("end", "error", f"{self.spec.id} declares no max_episode_steps, and {what}", _LIMIT)
        else:
            what = f"no max_episode_steps is declared, and no episode ended within {self.env.at:,} steps"
            remedy = f"an episode is cut after {LONGEST_EPISODE:,} steps, which takes long here: {_LIMIT}"
            self._add("end", "warning", what, remedy)

    def _note_generators(self) -> None:
        used = [
            name
            for name, found in (
                ("numpy.random", self.env.generators.used_numpy),
                ("random", self.env.generators.used_python),
            )
            if found
        ]
        if used:
            what = f"it draws from the global generators of {' and '.join(used)}"
            remedy = "each slot gets seeded ones of its own; self.np_random is faster"
            self._add("global", "note", what, remedy)
        if self._reports_success:
            self._add("success", "note", "info reports success at the end of an episode", "it is counted")

    def _note_shape(self) -> None:
        for leaf in self.spec.layout.leaves:
            if leaf.kind == "numbers" and len(leaf.shape) >= 3 and min(sorted(leaf.shape)[-2:]) >= PICTURE:
                what = f"the observation of shape {leaf.shape} is read as {leaf.width:,} separate numbers"
                remedy = "if it is a picture, declare a Box of uint8 (0 … 255): an image encoder reads that"
                self._add(f"picture {leaf.path}", "warning", what, remedy)

    def _note_speed(self) -> None:
        if self._seconds and (milliseconds := 1000 * float(np.median(self._seconds))) >= SLOW:
            what = f"{_SLOW} {milliseconds:.1f} ms"
            remedy = "with several slots (--set num_envs=…), --env-processes steps them in parallel"
            self._add("speed", "note", what, remedy)


def _true(value: Any) -> bool:
    return (
        bool(np.all(value)) if isinstance(value, bool | int | np.bool_ | np.integer | np.ndarray) else False
    )


def _parts(raw: Any, layout: Any) -> list[Any]:
    try:
        return [part_of(raw, leaf.path) for leaf in layout.leaves]
    except (KeyError, IndexError, TypeError):
        return []


def _copied(part: Any) -> Any:
    return part.copy() if isinstance(part, np.ndarray) else part


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _space_at(space: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        space = space[key]
    return space
