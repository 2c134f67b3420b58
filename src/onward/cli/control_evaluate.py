"""``onward control eval``, ``export`` and ``compare``: evaluates, exports and compares trained policies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.control import EnvSet, control, env_kwargs, with_version
from onward.cli.output import Table, number, print_json, print_text, say
from onward.errors import ControlError

if TYPE_CHECKING:
    from onward.control.evaluation.assess import Assessment

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]


@control.command("eval")
def evaluate(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs or of policies.")],
    env: Annotated[
        str | None, typer.Option(help="Where to play. Default: where it was trained, made as a run was.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Greedy episodes of each score.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the starts; never those of training.")] = 0,
    threshold: Annotated[
        float | None, typer.Option(help="Return that counts as success. Default: the task's own rule.")
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, help="Deviation of observation noise, in running deviations; 0: none.")
    ] = 0.2,
    env_set: EnvSet = None,
    variants: Annotated[bool, typer.Option(help="Play in similar tasks too (zero-shot transfer).")] = True,
    as_json: AsJson = False,
) -> None:
    """Judge trained policies: success over 100 greedy episodes on unseen seeds, noise, similar tasks.

    onward control eval runs/CartPole-v1-ppo-seed0

    With five or more seeds of one task it also prints interquartile mean and variation, with intervals:

      onward control eval runs/CartPole-v1-ppo-seed*

    Returns are raw and the policy's normaliser is frozen; docs/control.md has every formula.
    """
    from onward.control.evaluation.assess import assess
    from onward.control.policies.policy import Policy

    found, given = [], env_kwargs(env_set)
    for path in paths:
        policy = Policy.load(path)
        where = with_version(env) if env else policy.env_id
        if not where:
            raise ControlError(f"The policy in {path} does not say where it was trained: give --env.")
        judged = assess(
            policy,
            where,
            episodes=episodes,
            seed=seed,
            threshold=threshold,
            noise=noise or None,
            env_kwargs=given if env or given else _made_with(path),
            variants=None if variants else (),
        )
        found.append((path, judged))
    together = _over_seeds([judged for _, judged in found])
    if as_json:
        policies = [{"policy": str(path), **judged.as_dict()} for path, judged in found]
        print_json({"policies": policies, "over_seeds": together})
        return
    for path, judged in found:
        _show(path, judged)
    for line in _words(together):
        say(line)


def _made_with(path: Path) -> dict[str, Any] | None:
    """Returns the environment arguments that a run was trained with; a policy alone does not store them."""
    from onward.control.running.runs import Folder

    run = Folder(path.parent if path.name == "policy" else path)
    return run.read().env_kwargs if run.config.exists() else None


def _over_seeds(judged: list[Assessment]) -> dict[str, Any] | None:
    """Returns statistics over several seeds of one task, with intervals from five seeds on. Returns None for
    a single policy or for several tasks."""
    from onward.control.evaluation.statistics import (
        FEWEST_SEEDS,
        iqm,
        iqm_interval,
        variation,
        variation_interval,
    )

    if len(judged) < 2 or len({one.env for one in judged}) > 1:
        return None
    scores, random = [one.clean.mean for one in judged], judged[0].random.mean
    if len(scores) < FEWEST_SEEDS:
        return {"seeds": len(scores), "iqm": [iqm(scores)], "variation": _finite(variation(scores, random))}
    return {
        "seeds": len(scores),
        "iqm": list(iqm_interval(scores)),
        "variation": _finite(*variation_interval(scores, random)),
    }


def _finite(*figures: float) -> list[float] | None:
    """Returns the figures, or None (null in JSON) if one is not finite because its divisor is 0."""
    return list(figures) if all(map(math.isfinite, figures)) else None


def _words(together: dict[str, Any] | None) -> Iterable[str]:
    if together is None:
        return
    yield f"Over {together['seeds']} policies:"
    for name, scale, unit in (("iqm", 1, ""), ("variation", 100, " %")):
        label = "interquartile mean of the returns" if name == "iqm" else "coefficient of variation"
        if together[name] is None:
            yield f"  {label}: not defined around a mean of 0"
            continue
        value, *bounds = (number * scale for number in together[name])
        interval = f" (95 %: {bounds[0]:.4g} … {bounds[1]:.4g}{unit})" if bounds else ""
        yield f"  {label}: {value:.4g}{unit}{interval}"


def _show(path: Path, judged: Assessment) -> None:
    rule = f"success: {judged.rule}" if judged.rule else "no rule says what success is: give --threshold"
    columns = map(number, ("mean return", "deviation", "length", "success", "ratio"))
    title = f"{path} in {judged.env}, {judged.episodes} episodes each; {rule}"
    table = Table("score", *columns, title=title)
    noise = [judged.noise] if judged.noise is not None else []
    for score in (judged.clean, *noise, *judged.transfer, judged.random):
        success = "" if score.success is None else f"{score.success:.0%}"
        ratio = "" if score.ratio is None else f"{score.ratio:.0%}"
        cells = f"{score.mean:.2f}", f"{score.std:.2f}", f"{score.length:.1f}", success, ratio
        table.add_row(score.name, *cells)
    print_text(table)


@control.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or of a policy.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("policy"),
    onnx: Annotated[bool, typer.Option(help="Write policy.onnx too.")] = True,
) -> None:
    """Export a policy as safetensors with JSON, and as ONNX with the normaliser inside.

    onward control export runs/CartPole-v1-ppo-seed0 --out policy

    Using it from Python needs neither the trainer nor torch: onward.control.Policy.load("policy").act(obs).
    """
    from onward.control.policies.export import export as write
    from onward.control.policies.policy import Policy
    from onward.files import make_folder

    policy = Policy.load(path)
    make_folder(out)
    for file in write(policy, out, onnx):
        say(f"{file}  {file.stat().st_size:,} bytes")


@control.command()
def compare(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id.")],
    algorithm: Annotated[str, typer.Option(help="ppo, dqn or sac.")] = "ppo",
    peer: Annotated[
        str, typer.Option(help="sb3: the zoo's settings; cleanrl: CleanRL's settings, carried out by both.")
    ] = "sb3",
    timesteps: Annotated[int, typer.Option(min=1, help="Environment steps of each side.")] = 50_000,
    threshold: Annotated[
        float | None, typer.Option(help="Greedy mean return to reach. Default: the task's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of both sides.")] = 0,
    stop: Annotated[bool, typer.Option("--stop", help="Each side stops at the threshold.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train ours and stable-baselines3 with the same settings on this machine, one after the other.

    onward control compare CartPole-v1 --algorithm ppo --peer sb3 --timesteps 50000

    stable-baselines3 trains twice: as shipped, and with denormal numbers rounded to 0 as ours does. SBX (JAX)
    takes part where it is installed.

    Needs the extra bench. The clock is stopped while greedy episodes are played.
    """
    from onward.control.algorithms.registry import check_fits
    from onward.control.comparison import Race, compare, equal_settings
    from onward.control.environments import make
    from onward.control.evaluation.evaluate import solve_bar

    env = with_version(env)
    settings = equal_settings(peer, algorithm, env)
    probe = make(env, 1)
    probe.close()
    check_fits(algorithm, probe.spec)
    bar = solve_bar(probe.spec) if threshold is None else threshold
    if bar is None or not math.isfinite(bar):
        raise ControlError(f"{env} has no threshold of its own: give --threshold, a finite number.")
    race = Race(env, settings, timesteps, bar, seed, max(500, timesteps // 50), stop=stop)
    sides, missing = compare(race)
    mine = sides[0]
    ratios = {other.side: mine.steps_per_cpu_second / other.steps_per_cpu_second for other in sides[1:]}
    if as_json:
        print_json(
            {
                "settings": settings.as_dict(),
                "sides": [side.as_dict() for side in sides],
                "ratio": mine.steps_per_second / sides[1].steps_per_second,
                "cpu_ratios": ratios,
                "missing": missing,
            }
        )
        return
    names = ("steps/s", "of processor", f"seconds to {bar:g}", "final return", "final success")
    title = f"{algorithm} on {env}, {timesteps:,} steps, settings of {peer}"
    table = Table("side", *map(number, names), title=title)
    for side in sides:
        reached = "not reached" if side.seconds_to_threshold is None else f"{side.seconds_to_threshold:.1f}"
        success = "" if side.final_success is None else f"{side.final_success:.0%}"
        speeds = f"{side.steps_per_second:,.0f}", f"{side.steps_per_cpu_second:,.0f}"
        table.add_row(side.side, *speeds, reached, f"{side.final_mean:.1f}", success)
    print_text(table)
    for name, ratio in ratios.items():
        say(f"steps per processor second: {ratio:.2f} × {name}")
    for why in missing:
        say(why, err=True)


@control.command()
def solution(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that has ended.")],
) -> None:
    """Print a report on a run as YAML: settings, results, stages, and code that uses the policy.

    onward control solution runs/CartPole-v1-ppo-seed0
    """
    from onward.control.solution import solution as report
    from onward.control.solution import yaml_text

    say(yaml_text(report(folder)).rstrip())
