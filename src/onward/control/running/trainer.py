"""The training loop, the same for every algorithm: collect, update, evaluate, save.

Invariants: everything periodic is scheduled by environment steps alone (``_crossed``). So the number of slots
does not matter, and a resumed run does at every step the same as the uninterrupted one. Evaluations change
nothing in training. Only which of them are left out, to save time, depends on the clock (``budget``). One
that may end the run, the confirmation of a solution, never does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from onward.control.algorithms.base import AsynchronousAlgorithm, AsyncProgress
from onward.control.algorithms.registry import algorithm_class, check_fits
from onward.control.core.contract import EnvSpec, Flags, put_back, saved_state
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs
from onward.control.core.threads import denormals_flushed, use_threads
from onward.control.evaluation.evaluate import Episodes, EvaluationStopped, solve_bar
from onward.control.policies.policy import Policy
from onward.control.running import checkpoint, origin
from onward.control.running.budget import EvaluationBudget
from onward.control.running.log import Log, Means, Row, Times
from onward.control.running.runs import Folder, RunConfig, write_json
from onward.control.running.training_episodes import TrainingEpisodes
from onward.control.running.world import World, world
from onward.errors import ControlError, EnvironmentFault, OnwardError
from onward.files import write_whole

CONFIRM_EPISODES = 100
"""Greedy episodes on unseen seeds that confirm a solution; the final report uses as many."""
EPISODES_BETWEEN_TRIES = 25
"""Training episodes between a solution that was not confirmed and the next try."""
ROWS = 200
"""Rows of metrics per run, evenly spaced in steps."""
Event = dict[str, Any]
"""Dict with ``event`` (started, row, evaluated, solved, saved or done) and always ``step``."""
Watch = Callable[[Event], Any]
"""Receives every event; False ends the run after the current step."""
End = Literal["finished", "solved", "interrupted"]


class Trainer:
    """One run in one folder. ``watch`` receives every event; ``stop()`` ends after the current step."""

    def __init__(
        self,
        run: RunConfig,
        folder: Folder,
        watch: Watch = lambda _: None,
        of: World | None = None,
    ) -> None:
        """Creates environments and algorithm. Raises ControlError where they do not fit each other."""
        self.run, self.folder, self._watch = run, folder, watch
        self._world = of or world(run)
        self._seeds = Seeds(run.seed)
        self.envs = self._world.envs(0)
        if self._world.algorithm is algorithm_class(run.algorithm):
            check_fits(run.algorithm, self.envs.spec)
        with denormals_flushed():  # restores: only ``train`` rounds them
            use_threads(run.threads)
        self.algorithm = self._world.algorithm(
            self.envs.spec, self.envs.num, run.settings, self._seeds.child("algorithm")
        )
        self.algorithm.total_steps = run.timesteps
        self.threshold = solve_bar(self.envs.spec) if run.threshold is None else run.threshold
        self.episodes, self._means, self._times = TrainingEpisodes(self.envs.num), Means(), Times()
        self.solved: dict[str, Any] | None = None
        self.best: dict[str, float] | None = None
        self._next_try = 0
        self._saved_at: int | None = None
        self._told = self._updates = 0
        self.budget = EvaluationBudget(run.eval_share, self._times)
        self._stop = self._resumed = False
        self.differences: list[str] = []
        """Reasons why a resumed run is not bit for bit the same as the uninterrupted one; empty: it is."""
        self._unfinished: int | None = None

    def stop(self) -> None:
        """Ends the run after the current step and saves its state. Safe to call from a signal handler."""
        self._stop = True

    def start(self) -> None:
        """Starts a new run in the folder. Raises ControlError where the weights that it starts from do not
        fit it."""
        self.folder.check_free()
        if self.run.start is not None:
            self._start_from(Folder(Path(self.run.start)))
        self._obs, self._mask = self.envs.reset(self._seeds.integer("train"))
        self.folder.begin(self.run)

    def _start_from(self, source: Folder) -> None:
        run = source.read()
        if run.algorithm != self.run.algorithm:
            raise ControlError(
                f"The run in {source.path} is one of {run.algorithm}, and its weights do not fit "
                f"{self.run.algorithm}: start from a run of the same algorithm."
            )
        if not source.state.exists():
            raise ControlError(f"The run in {source.path} has no saved state to start from: train it first.")
        state = checkpoint.load(source.state)
        spaces = _spaces(self.envs.spec)
        if (before := state.get("spaces", spaces)) != spaces:
            named = ", ".join(
                f"{name} {before[name]}, not {now}" for name, now in spaces.items() if before[name] != now
            )
            raise ControlError(
                f"The run in {source.path} was trained on other spaces ({named}): start from a run in an "
                f"environment with the same observations and actions."
            )
        try:
            self.algorithm.start_from(state["algorithm"])
        except (ControlError, KeyError, RuntimeError, ValueError) as error:
            raise ControlError(
                f"The weights of {source.path} do not fit this run's networks ({error}): keep that run's "
                f"settings of the networks."
            ) from error

    def resume(self) -> None:
        """Continues from the folder's saved state. Raises ControlError or TamperedError where it cannot.

        Where this run's configuration differs from the folder's (a later end), the folder's is replaced.
        Where the result cannot be bit for bit that of the uninterrupted run, ``differences`` says why.
        """
        state = checkpoint.load(self.folder.state)
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise ControlError(
                f"The saved state in {self.folder.path} does not fit the run's settings ({error}): "
                f"leave config.json as it was written, or train again."
            ) from error
        self.algorithm.total_steps = self.run.timesteps
        self._tell_folder()
        self.episodes.load_state_dict(state["episodes"])
        self._means, self._times = Means(state["means"]), Times(state["times"])
        self.budget = EvaluationBudget(self.run.eval_share, self._times, state.get("budget"))
        self.solved, self.best, self._next_try = state["solved"], state["best"], state["next_try"]
        self._saved_at = self._told = self.algorithm.steps
        self._unfinished = state.get("unfinished")
        self._updates = state.get("updates", 1)  # states without the count were saved after some updates
        self.differences = origin.differences(state.get("origin"), self.run.threads)
        if self.algorithm.asynchronous:
            self.differences.append(f"the workers of {self.run.algorithm} never repeat exactly")
            self._obs, self._mask = self._new_episodes()
        else:
            self._obs, self._mask = self._same_episodes(state["envs"])
        self._resumed = True

    def _same_episodes(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Puts the environments back into their saved episodes. Begins new episodes where they do not go."""
        try:
            return put_back(self.envs, state)
        except Exception as error:  # an environment of the user's own may raise anything
            why = str(error) or type(error).__name__
            self.differences.append(f"new episodes begin, since the saved ones cannot go on: {why}")
        self.algorithm.environments_reset()
        self.episodes.drop_running()
        return self._new_episodes()

    def _new_episodes(self) -> tuple[Obs, Flags | None]:
        return self.envs.reset(self._seeds.integer("train", self.algorithm.steps))

    def _tell_folder(self) -> None:
        another_end = self.folder.read().timesteps != self.run.timesteps
        if another_end and self.algorithm.steps >= self.run.timesteps:
            raise ControlError(
                f"The run in {self.folder.path} is at step {self.algorithm.steps:,} already: "
                f"give it a later end than {self.run.timesteps:,}."
            )
        write_json(self.folder.config, self.run.as_dict())

    def train(self) -> dict[str, Any]:
        """Runs to the end and returns the summary (also in ``summary.json``).

        Raises ControlError where a loss, a parameter or a reward is not finite: the last good state stays.
        Raises EnvironmentFault for a fault of the environment: the state before that step is saved.
        """
        self._log = Log(self.folder.path, self.algorithm.steps)
        self._tell(
            "started",
            threshold=self.threshold,
            total=self.run.timesteps,
            resumed=self._resumed,
            differences=self.differences,
        )
        try:
            if isinstance(self.algorithm, AsynchronousAlgorithm):
                self.algorithm.run(self._world.envs, self.run.timesteps, self._progressed)
            else:
                with denormals_flushed():
                    if self._unfinished is not None:
                        self._conclude_step(self._unfinished, ended=True)
                    while self.algorithm.steps < self.run.timesteps and not self._over():
                        self._iterate()
            return self._finish()
        except EvaluationStopped:
            return self._end("interrupted", None)
        except EnvironmentFault as error:
            raise self._kept(error) from error
        finally:
            self._log.close()
            self.algorithm.close()
            self.envs.close()
            self._world.close()

    def _over(self) -> bool:
        return self._stop or (self.solved is not None and self.run.stop_when_solved)

    def _iterate(self) -> None:
        """Makes one step of all slots and the updates that are due after it."""
        algorithm, before, spent = self.algorithm, self.algorithm.steps, self._times.spent
        began = perf_counter()
        actions = algorithm.act(self._obs, self._mask)
        acted = perf_counter()
        step = self.envs.step(actions)
        stepped = perf_counter()
        algorithm.observe(self._obs, actions, step)
        self._obs, self._mask = step.obs, step.action_mask
        observed = perf_counter()
        while algorithm.due():
            self._take(algorithm.update())
        spent["env"] += stepped - acted
        spent["act"] += acted - began + observed - stepped
        spent["update"] += perf_counter() - observed
        self._conclude_step(before, self.episodes.add(step))

    def _conclude_step(self, before: int, ended: bool) -> None:
        """Handles what is due after a step. Where an evaluation is stopped, a resumed run does it again."""
        self._unfinished = before
        if ended:
            self._try_to_solve()
        self._after(before, self.algorithm.steps)
        self._unfinished = None

    def _progressed(self, progress: AsyncProgress) -> bool:
        """Handles a report of an asynchronous algorithm; False stops it."""
        before, self._told = self._told, progress.steps
        for episode_return, length in progress.episodes:
            self.episodes.end(episode_return, length)
        self._take(progress.metrics)
        try:
            if progress.episodes:
                self._try_to_solve()
            self._after(before, progress.steps)
        except EvaluationStopped:
            return False
        return not self._over()

    def _after(self, before: int, now: int) -> None:
        """Evaluates, logs and saves as due between two counts of steps."""
        total = self.run.timesteps
        if _crossed(before, now, self.run.steps_between_evaluations) and now < total:
            episodes = self.budget.episodes(self.run.eval_episodes, needed=self.best is None)
            row = self._evaluate(now, episodes, "evaluate") if episodes else {}
            self._log_row(now, row)
            self._try_success(row)
        elif _crossed(before, now, max(1, total // ROWS)):
            self._log_row(now, {})
        if _crossed(before, now, self.run.steps_between_checkpoints) and now < total:
            self._save(now)

    def _take(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise self._not_finite(f"{name} became {value}")
        self._means.add(metrics)
        self._updates += bool(metrics)

    def _try_to_solve(self) -> None:
        """Compares the last hundred episodes with the threshold and confirms a solution by greedy ones."""
        if not self.episodes.count:  # a run that was stopped before its first episode ended is resumed
            return
        mean = self.episodes.mean_return()
        if not math.isfinite(mean):
            raise self._not_finite("a return of the environment became " + str(mean))
        if self.run.until_success:
            return
        if self.solved or self.threshold is None or not self.episodes.reach(self.threshold):
            return
        if self.episodes.count < self._next_try:
            return
        self._confirm()  # whatever time is left: it may end the run
        self._next_try = self.episodes.count + EPISODES_BETWEEN_TRIES

    def _try_success(self, row: Row) -> None:
        """Compares an evaluation with ``until_success``, and confirms it by a hundred further episodes."""
        target = self.run.until_success
        enough = self.episodes.count >= self.run.solve_episodes
        if self.solved or not target or not enough or row.get("eval_success", 0.0) < target:
            return
        step = self.algorithm.steps
        found = self._evaluate(step, CONFIRM_EPISODES, "confirm", self.episodes.count)
        self._log_row(step, found)
        if found.get("eval_success", 0.0) >= target:
            self._solve(step)

    def _solve(self, step: int) -> None:
        self.solved = {"episode": self.episodes.count, "step": step, "seconds": self._times.total()}
        self._tell("solved", **self.solved)

    def _confirm(self) -> None:
        assert self.threshold is not None
        step = self.algorithm.steps
        row = self._evaluate(step, CONFIRM_EPISODES, "confirm", self.episodes.count)
        self._log_row(step, row)
        if row["eval_return"] >= self.threshold and row.get("eval_success", 1.0) >= self.run.solve_success:
            self._solve(step)

    def _evaluate(self, step: int, episodes: int, *seed: str | int) -> Row:
        """Plays greedy episodes on separate seeds. The best policy so far, by success and then by mean
        return, is saved in ``policy/``.

        A shortened evaluation that looks like the best is played in full first: a few episodes may be lucky.
        """
        self._check_parameters()
        policy = Policy(self.algorithm.networks(), env_id=self.run.env)
        played = self._play(policy, episodes, *seed)
        if episodes < self.run.eval_episodes and self._beats_best(played):
            episodes = self.run.eval_episodes
            played = self._play(policy, episodes, *seed)
            self.budget.complete()
        row = {"eval_return": played.mean, "eval_std": float(played.returns.std())}
        if played.success is not None:
            row["eval_success"] = played.success
        if self._beats_best(played):
            success = played.success or 0.0
            self.best = {"return": played.mean, "success": success, "step": step, "episodes": episodes}
            policy.save(self.folder.policy)
        self._tell("evaluated", step=step, episodes=episodes, **row)
        return row

    def _beats_best(self, played: Episodes) -> bool:
        best = self.best
        score = played.success or 0.0, played.mean
        return best is None or score >= (best["success"], best["return"])

    def _play(self, policy: Policy, episodes: int, *seed: str | int) -> Episodes:
        began = perf_counter()
        played = self._world.evaluate(policy, episodes, self._seeds.integer(*seed), lambda: self._stop)
        self.budget.spend(perf_counter() - began, episodes)
        return played

    def _log_row(self, step: int, extra: Row) -> None:
        seconds = self._times.total()
        row: Row = {
            "step": float(step),
            "seconds": seconds,
            "steps_per_second": step / max(seconds, 1e-9),
            **self.episodes.row(),
            **extra,
            **self._means.take(),
            **self._times.shares(),
        }
        self._log.write(row)
        self._tell("row", step=step, row=row)

    def _save(self, step: int, unfinished: int | None = None) -> None:
        self._check_parameters()
        asynchronous = self.algorithm.asynchronous
        self._times.total()
        self._times.processor()
        checkpoint.save(
            self.folder.state,
            {
                "algorithm": self.algorithm.state_dict(),
                "envs": {} if asynchronous else saved_state(self.envs),
                "origin": origin.of_this_process(self.run.threads),
                "episodes": self.episodes.state_dict(),
                "means": self._means.state_dict(),
                "times": self._times.spent,
                "solved": self.solved,
                "best": self.best,
                "next_try": self._next_try,
                "updates": self._updates,
                "budget": self.budget.state_dict(),
                "spaces": _spaces(self.envs.spec),
                "unfinished": unfinished,
            },
        )
        self._saved_at = step
        self._tell("saved", step=step)

    def _check_parameters(self) -> None:
        if not self.algorithm.parameters_finite():
            raise self._not_finite("a parameter is not finite any more")

    def _not_finite(self, what: str) -> ControlError:
        good = (
            f"the last good state (step {self._saved_at}) is in {self.folder.state.parent}"
            if self._saved_at is not None
            else "no state was saved yet"
        )
        return ControlError(
            f"Training stopped at step {self.algorithm.steps} because {what}: {good}; "
            f"train again with a smaller learning_rate (--set learning_rate=…) or normalise_obs=true."
        )

    def _kept(self, error: EnvironmentFault) -> EnvironmentFault:
        """Saves the state before the fault, and its traceback. Returns the error to raise."""
        step, kept = self.algorithm.steps, ""
        with contextlib.suppress(OnwardError, OSError):
            self._save(step, self._unfinished)
            kept = f" Step {step:,} is saved: go on with 'onward control resume {self.folder.path}'."
        if error.trace:
            with contextlib.suppress(OnwardError, OSError):
                write_whole(self.folder.fault, error.trace.encode())
                kept += f" The traceback is in {self.folder.fault}."
        return EnvironmentFault(f"{error}{kept}", error.trace)

    def _finish(self) -> dict[str, Any]:
        step = self.algorithm.steps
        end: End = "finished" if step >= self.run.timesteps else "interrupted"
        if self.solved is not None and self.run.stop_when_solved:
            end = "solved"
        if end == "finished":
            episodes = self.budget.episodes(self.run.eval_episodes, needed=True)
            row = self._evaluate(step, episodes, "evaluate")
            self._log_row(step, row)
            self._try_success(row)
            if self.solved is not None and self.run.stop_when_solved:
                end = "solved"
        return self._end(end, None if end == "interrupted" else self._final())

    def _end(self, end: End, final: dict[str, float | None] | None) -> dict[str, Any]:
        step = self.algorithm.steps
        self._save(step, self._unfinished)
        summary = self._summary(end, final)
        write_json(self.folder.summary, summary)
        self._tell("done", step=step, summary=summary)
        return summary

    def _final(self) -> dict[str, float | None]:
        """Evaluates the exported policy once more, on seeds that influenced no choice."""
        policy = Policy.load(self.folder.policy)
        episodes = self.budget.episodes(CONFIRM_EPISODES, needed=True)
        played = self._play(policy, episodes, "final")
        return {
            "episodes": episodes,
            "return": played.mean,
            "std": float(played.returns.std()),
            "success": played.success,
        }

    def _summary(self, end: End, final: dict[str, float | None] | None) -> dict[str, Any]:
        seconds, step = self._times.total(), self.algorithm.steps
        return {
            "env": self.run.env,
            "algorithm": self.run.algorithm,
            "preset": self.run.preset,
            "seed": self.run.seed,
            "end": end,
            "steps": step,
            "updates": self._updates,
            "episodes": self.episodes.count,
            "streams": self.episodes.stream_means(),
            "seconds": seconds,
            "processor_seconds": self._times.processor(),
            "steps_per_second": step / max(seconds, 1e-9),
            "shares": self._times.shares(),
            "evaluation": self.budget.report(),
            "threshold": self.threshold,
            "solved": self.solved,
            "best": self.best,
            "final": final,
        }

    def _tell(self, event: str, **facts: Any) -> None:
        told = {"event": event, "seed": self.run.seed, "step": self.algorithm.steps, **facts}
        if self._watch(told) is False:
            self.stop()


def _crossed(before: int, now: int, every: int) -> bool:
    """True where a multiple of ``every`` lies in (before, now]."""
    return now // every > before // every


def _spaces(spec: EnvSpec) -> dict[str, Any]:
    """Returns what the networks' first and last layers depend on, as plain JSON values."""
    actions = spec.actions
    return {
        "numbers": spec.layout.width,
        "images": [[key, list(shape)] for key, shape in spec.layout.images],
        "actions": actions.kind,
        "choices": list(actions.sizes) or actions.dim,
    }
