"""Progress display of ``onward train``: one live line with the main figures and the time left.

Without a terminal the same facts are printed as plain lines, at most one every ten seconds.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onward import plotting
from onward.cli.output import plain_lines, say
from onward.errors import runnable
from onward.progress import PART, Bar, Bars
from onward.training.data.report import told
from onward.training.job import curves
from onward.training.spec.request import JobSpec

SHOWN: dict[str, str] = {
    "reward_mean": "reward {:.2f}",
    "success_rate": "success {:.2f}",
    "loss": "loss {:.3f}",
    "accuracy": "right way round {:.2f}",
    "kl_divergence": "KL {:.4f}",
    "clip_fraction": "clipped {:.1%}",
    "ess": "ESS {:.2f}",
    "policy_entropy": "entropy {:.2f}",
    "tokens_per_second": "{:.0f} tokens/s",
}
"""Metric → its format. Metrics that a step does not have are left out."""
EVALUATED = ("eval_loss", "eval_accuracy")
PICTURE_SECONDS = 20.0


class Display:
    """Displays the events of a run and draws its curves while it runs, beside the child that records them."""

    def __init__(self, out: Path, spec: JobSpec, as_json: bool) -> None:
        self.out, self.spec, self._as_json = out, spec, as_json
        self.console = Console(stderr=as_json)
        self._is_new = not curves.read_rows(out)
        self._resumed_at = 0
        self._drawn = 0.0
        self._bar: Bar | None = None
        self._bars = Bars(self.console, quiet=as_json)

    def __enter__(self) -> Display:
        self._bars.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.__exit__(*exc)
        curves.write(self.out, curves.read_rows(self.out))

    def show_event(self, event: dict[str, Any]) -> None:
        """Displays one event of the child process."""
        if self._as_json:
            say(json.dumps(event))
        kind = event["event"]
        if kind == "stage":
            self._stage(event)
        elif kind == "progress":
            self._step(event)
        elif kind == "held_out":
            self._say(f"Held-out tasks {event['when']}: {judged(event)}.")
        elif kind == "eval":
            named = ", ".join(
                f"{name.removeprefix('eval_')} {_number(event[name], 4)}"
                for name in EVALUATED
                if name in event
            )
            self._say(f"On --eval after step {event['step']}: {named}.")
        elif kind == "warning":
            self._say(event["message"])
        elif kind == "stopping" and event["times"] == 1:
            self._say("Stopping after this step; Ctrl-C again stops at once, back to the last saved state.")

    def show_end(self, last: dict[str, Any]) -> None:
        """Prints the result and its location."""
        if self._as_json:
            return
        if last["event"] == "stopped":
            self._say(f"Stopped and saved. Go on with 'onward train --resume --out {self.out}'.")
            return
        metrics = last["metrics"]
        held_out = metrics.get("held_out")
        if held_out and "panel_hash" in metrics:
            before, after = (held_out[when]["success"] for when in ("before", "after"))
            self._say(
                f"Held-out success {_number(before)} → {_number(after)} "
                f"(panel {str(metrics['panel_hash'])[:12] or 'unknown'}).{verdict(before, after)}"
            )
        where = "model" if self.spec.full else "checkpoint"
        if "handed_out" in metrics:
            self._say(handed_out(metrics["handed_out"], self.out, where))
        expected = last["expected_memory_gb"]  # 0: no formula knows this network
        expectation = f" ({expected:.2f} were expected)" if expected else ""
        self._say(
            f"Done in {last['seconds']:.0f} s with at most {last['peak_memory_gb']:.2f} GB{expectation}: "
            f"{self.out / where}. "
            f"Curves: {', '.join(path.name for path in self._files())}."
        )

    def _stage(self, event: dict[str, Any]) -> None:
        if event["name"] == "resumed":
            self._resumed_at = event["step"]
            self._say(f"Going on after step {event['step']}.")
        elif event["name"].startswith("state not readable"):
            self._say("The saved state cannot be read: starting over.")
        elif event["name"] == "train" and (left_out := told(event["excluded"], event.get("places"))):
            self._say(f"Left out: {left_out}.")
        elif event["name"] == "loaded" and event["path"] != "fast":
            self._say(
                f"The model runs by the modules of {event['path']}, the slower path: {event['reason']}."
            )
            for note in event["notes"]:
                self._say(note)
        elif event["name"] == "load" and self._is_new:
            self._say(
                f"Training {self.spec.base_model} with {self.spec.algorithm} in {self.out}, on "
                f"{event['device']} in {event['dtype']} ({event['why']})."
            )

    def _step(self, event: dict[str, Any]) -> None:
        step, total, metrics = event["step"], event["total_steps"], event["metrics"]
        if self._bar is None:
            self._bar = self._bars.add_bar(self.spec.algorithm, total, self._resumed_at, counted=True)
        shown = [form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics]
        self._bar.update(step, total=total, note=PART.join(shown))
        if step == total:
            self._bar.finish()
        now = time.monotonic()
        if now - self._drawn > PICTURE_SECONDS:
            self._drawn = now
            curves.write(self.out, curves.read_rows(self.out))

    def _files(self) -> list[Path]:
        """Returns the files with the curves, which the child has written."""
        made = [
            self.out / curves.TABLE,
            self.out / curves.PICTURE,
            plotting.dark_version(self.out / curves.PICTURE),
        ]
        return [path for path in made if path.is_file()]

    def _say(self, text: str) -> None:
        if not self._as_json:
            self.console.print(Text(plain_lines(runnable(text))), soft_wrap=True)


def print_plan(console: Console, told: dict[str, Any]) -> None:
    """Prints a dry run as text."""
    spec, memory = told["spec"], told["memory_bytes"]
    intention = (
        f"Would train {spec['base_model']} ({told['parameters'] / 1e6:.1f} M parameters, "
        f"{told['trained'] / 1e6:.2f} M of them trained) with {spec['algorithm']}."
    )
    console.print(Text(plain_lines(intention)), soft_wrap=True)
    table = Table("setting", "value")
    environment = spec.pop("environment") or {}
    for name, value in {**spec, **{f"environment.{k}": v for k, v in environment.items()}}.items():
        if value is not None and name not in ("job_id", "epoch"):
            table.add_row(name, Text(plain_lines(str(value))))
    console.print(table)
    data, lines = told["data"], []
    if data["file"]:
        lines.append(f"Data: {data['rows']} rows of about {data['tokens_per_row']:.0f} tokens.")
    parts = ", ".join(f"{name} {value / 1e6:.0f} MB" for name, value in memory.items() if name != "total")
    lines.append(f"Memory: about {memory['total'] / 1e9:.2f} GB ({parts}).")
    lines.append(f"Time: about {_duration(told['seconds'])} on this machine.")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def handed_out(told: dict[str, Any], out: Path, where: str) -> str:
    """Returns a sentence on which policy of a run is its result, and why."""
    step, last = told["step"], told["of"]
    which = "lowest" if "loss" in told["by"] else "highest"
    count = told["evaluations"]
    among = f", the {which} of {count} evaluations" if count > 1 else ""
    why = f"the best {told['by']} ({told['figure']:.3f}{among})"
    if step == last:
        return f"Handed out: the policy after the last step, {step}, which has {why}."
    which = "the start, since no later policy was better," if step == 0 else f"the policy after step {step},"
    return (
        f"Handed out in {out / where}: {which} which has {why}. The one after the last step, {last}, is in "
        f"{out / 'last'}."
    )


def judged(event: dict[str, Any]) -> str:
    """Returns what a judge found: success of episodes, or an estimated return with its interval, or why there
    is none."""
    if "episodes" in event:
        played = f"{event['episodes']} episodes, {event['unscored']} unscored"
        return f"success {_number(event['success'])} ({played})"
    if "reward" not in event:
        return f"no estimate, {event['reason']}"
    spread = f"{event['low']:.3f} to {event['high']:.3f}"
    count = f"{event['effective']:.0f} effective of {event['tasks']}"
    return f"return {event['reward']:.3f}, 95 % {spread} ({count})"


def verdict(before: float | None, after: float | None) -> str:
    """Returns a sentence if held-out success did not rise; empty if it rose or is unknown."""
    if before is None or after is None or after > before:
        return ""
    return " That is not better than before: keep the old policy, or train longer (--steps, --lr)."


def _number(value: float | None, digits: int = 3) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
