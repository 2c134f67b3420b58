"""Progress display for control training: one live line per seed, then the results.

Without a terminal the same facts are printed as plain lines, at most one per seed every ten seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from onward.cli.output import plain_lines, say
from onward.control.running.trainer import Event
from onward.errors import runnable
from onward.progress import PART, Bar, Bars

_SHARES = {"share_env": "env", "share_act": "act", "share_update": "update", "share_evaluate": "evaluate"}


class Display:
    """Displays the events of one or several runs."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.console = Console(stderr=as_json)
        self._seeds: dict[int, Bar] = {}
        self._evaluations: dict[int, float] = {}
        self._bars = Bars(self.console, quiet=as_json)

    def __enter__(self) -> Display:
        self._bars.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.__exit__(*exc)

    def show_event(self, event: Event) -> None:
        """Displays one event of a trainer."""
        if self._as_json:
            say(json.dumps(event))
            return
        seed = event.get("seed", 0)
        kind = event["event"]
        if kind == "started":
            self._seeds[seed] = self._bars.add_bar(f"seed {seed}", event["total"], event["step"])
            if event["resumed"]:
                self.print_text(f"seed {seed}: going on after step {event['step']:,}.")
            for why in event["differences"]:
                self.print_text(f"seed {seed}: not bit for bit the same as without the stop: {why}.")
        elif kind == "evaluated":
            self._evaluations[seed] = event["eval_return"]
        elif kind == "row":
            self._row(seed, event)
        elif kind == "solved":
            self.print_text(f"seed {seed}: solved at episode {event['episode']:,}, {event['seconds']:.1f} s.")
        elif kind == "failed":
            self.print_text(f"seed {seed}: {event['message']}")
        if kind in ("done", "failed") and seed in self._seeds:
            self._seeds[seed].finish(full=False)

    def print_text(self, text: str) -> None:
        """Prints a line for the user; prints nothing with ``--json``."""
        if not self._as_json:
            self.console.print(Text(plain_lines(runnable(text))), soft_wrap=True)

    def _row(self, seed: int, event: Event) -> None:
        bar = self._seeds[seed]
        done = f"{event['step'] / bar.total:.0%}" if bar.total else ""
        bar.update(event["step"], note=PART.join([done, told(event["row"], self._evaluations.get(seed))]))


def told(row: dict[str, float], evaluated: float | None) -> str:
    """Formats a row of metrics as one line: return, episodes, speed, time shares (unknown for workers)."""
    parts = []
    if "return_mean" in row:
        parts.append(f"return {row['return_mean']:.1f}")
    if evaluated is not None:
        parts.append(f"greedy {evaluated:.1f}")
    parts.append(f"{row.get('episodes', 0):,.0f} episodes")
    parts.append(f"{row['steps_per_second']:,.0f} steps/s")
    parts.append(" ".join(f"{name} {row[share]:.0%}" for share, name in _SHARES.items() if row[share] > 0))
    return PART.join(part for part in parts if part)


def outcome(summary: dict[str, Any], folder: Path) -> list[str]:
    """Describes the result of a run in sentences."""
    seed = f"seed {summary['seed']}"
    seconds, per_second = summary["seconds"], summary["steps_per_second"]
    speed = f"{summary['steps']:,} steps in {seconds:.1f} s, {per_second:,.0f} a second"
    if summary["end"] == "interrupted":
        return [f"{seed}: stopped and saved ({speed}). Go on with 'onward control resume {folder}'."]
    if not summary["updates"]:
        return [
            f"{seed}: nothing was learned: {summary['algorithm']} came to no update within "
            f"{summary['steps']:,} steps. Give more --timesteps, or collect less before an update "
            "(--set n_steps=…, episodes=… or learning_starts=…)."
        ]
    final, solved = summary["final"], summary["solved"]
    success = "" if final["success"] is None else f", success {final['success']:.0%}"
    if solved:
        how = f"solved at episode {solved['episode']:,} (step {solved['step']:,}, {solved['seconds']:.1f} s)"
    elif summary["threshold"] is None:
        how = "done"
    else:
        how = f"not solved (threshold {summary['threshold']:g})"
    lines = [
        f"{seed}: {how}; {speed}.",
        f"  best policy over {final['episodes']} greedy episodes on unseen seeds: "
        f"return {final['return']:.1f} ± {final['std']:.1f}{success}: {folder / 'policy'}",
    ]
    lines += [f"  {name} per episode: {mean:.4g} at the end" for name, mean in summary["streams"].items()]
    evaluation = summary["evaluation"]
    if evaluation["left_out"] or evaluation["shortened"]:
        lines.append(
            f"  evaluations took {evaluation['share']:.0%} of the time; for a limit of "
            f"{evaluation['limit']:.0%} (--eval-share) {evaluation['left_out']} were left out and "
            f"{evaluation['shortened']} shortened."
        )
    return lines
