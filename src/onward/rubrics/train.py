"""Training of a rubric manager from the command line: ``python -m onward.rubrics.train --episodes 100``.

Prints the line of each episode, and at the end the reward of the first and of the last visit to the same
workflows. Without a model a small policy is trained; ``--model-path`` plays the episodes with a local model,
which this loop does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from pathlib import Path

from rich.console import Console

from onward.errors import OnwardError
from onward.files import check_file
from onward.progress import Bars
from onward.rubrics.backends.local import VLLMInterface
from onward.rubrics.decomposition import RubricDecompositionManagerAgent
from onward.rubrics.gym.softmax_policy import SoftmaxPolicy
from onward.rubrics.gym.workers import Worker
from onward.rubrics.seed_training import (
    EpisodeSummary,
    LoopSettings,
    RubricRewardFunction,
    load_ground_truth_rubrics,
    load_training_workflows,
    print_line,
    train_one_episode,
    train_rubric_manager,
)

VISITS = 5
"""Visits to each workflow that an automatic choice of their number aims at: fewer show no progress."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    made = argparse.ArgumentParser(prog="python -m onward.rubrics.train", description=__doc__)
    made.add_argument("--episodes", type=int, default=100, help="episodes to run (default: 100)")
    made.add_argument("--workflows", type=int, help="workflows to take, the simple ones first "
                      f"(default: as many as are visited {VISITS} times each)")  # fmt: skip
    made.add_argument("--seed", type=int, default=42)
    made.add_argument("--distance", choices=("absolute", "squared"), default="absolute")
    made.add_argument("--out", type=Path, help="file for the trained policy")
    made.add_argument("--resume", type=Path, help="policy to go on with")
    made.add_argument("--model-path", help="folder of a local model that writes the rubrics")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def chosen_workflows(episodes: int, wanted: int | None, known: int) -> int:
    """Returns the number of workflows to train on."""
    return wanted if wanted is not None else min(known, max(1, episodes // VISITS))


def progress_line(summaries: list[EpisodeSummary], workflows: int) -> str:
    """Returns the reward of the first and of the last visit to each workflow that was visited twice."""
    by_name: dict[str, list[float]] = {}
    for one in summaries:
        by_name.setdefault(one.workflow, []).append(one.reward)
    seen = [rewards for rewards in by_name.values() if len(rewards) > 1]
    if not seen:
        return f"No workflow was visited twice: give more --episodes than --workflows ({workflows})."
    first, last = (sum(rewards[place] for rewards in seen) / len(seen) for place in (0, -1))
    return f"Reward: {first:.3f} at the first visit, {last:.3f} at the last ({len(seen)} workflows)."


async def run(options: argparse.Namespace) -> None:
    """Runs the episodes. Raises OnwardError for options that cannot be used."""
    for name in ("episodes", "workflows"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OnwardError(f"--{name} is {value}: give 1 or more.")
    if options.model_path and (options.out or options.resume):
        raise OnwardError("--out and --resume are for the small policy: leave them out, or --model-path.")
    if options.out is not None:
        check_file(options.out)
    everything = load_training_workflows(seed=options.seed)
    workflows = everything[: chosen_workflows(options.episodes, options.workflows, len(everything))]
    model = VLLMInterface(options.model_path) if options.model_path else None
    with Bars(Console(stderr=True), quiet=options.quiet) as bars:
        bar = bars.add_bar("Episodes", options.episodes)
        done: list[EpisodeSummary] = []

        def report(summary: EpisodeSummary) -> None:
            done.append(summary)
            print_line(summary.line)
            bar.update(len(done), note=summary.workflow)

        if model is None:
            settings = LoopSettings(seed=options.seed, reward=RubricRewardFunction(distance=options.distance))
            writer = SoftmaxPolicy.load(options.resume, options.seed) if options.resume else None
            writer, _ = await train_rubric_manager(
                workflows, episodes=options.episodes, settings=settings, writer=writer, report=report
            )
            if options.out is not None:
                writer.save(options.out)
        else:
            truths = load_ground_truth_rubrics()
            for episode in range(options.episodes):
                workflow = workflows[episode % len(workflows)]
                manager = RubricDecompositionManagerAgent(
                    use_local=True, local_llm=model, seed=options.seed + episode
                )
                worker = Worker(0.7, options.seed + episode)
                await train_one_episode(workflow, truths[workflow.name], manager, worker=worker)
                bar.update(episode + 1, note=workflow.name)
        bar.finish()
    if model is None:
        print_line(progress_line(done, len(workflows)))
    if options.out is not None:
        print_line(
            f"The trained policy is in {options.out}: go on with --resume {shlex.quote(str(options.out))}."
        )


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code: 2 for input that cannot be used."""
    options = parser().parse_args(arguments)
    try:
        asyncio.run(run(options))
    except OnwardError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
