"""Tables for the terminal and ``curves.png``, both made from a Result alone."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from onward.demo.result import Cycle, Result


def show(result: Result, console: Console) -> None:
    """Print the four tables: time by stage, cycle by cycle, success per kind, the evidence."""
    console.print(_stages(result))
    kinds = ", ".join(
        f"{name.removeprefix('kind/')} {rate:.2f}"
        for name, rate in result.warm_up.items()
        if name.startswith("kind/")
    )
    console.print(
        f"v0 on training templates at temperature 1: success {result.warm_up['sampled_success']:.2f} "
        f"({kinds}); "
        f"{result.warm_up['mixed_groups']:.0%} of groups of 8 have a mixed outcome."
    )
    console.print(_cycles(result))
    console.print(_kinds(result))
    console.print(_evidence(result))
    gain = result.final_success - result.base_success
    console.print(
        f"Test success ({result.decoding}): raw {result.raw_success:.2f}, after the warm start "
        f"{result.base_success:.2f}, now [bold]{result.final_success:.2f}[/bold] "
        f"({gain:+.2f} by reinforcement learning alone; best constant policy "
        f"{result.best_constant_success:.2f})."
    )
    console.print(
        f"{result.current_model} serves. {result.accepted} trajectories accepted, "
        f"{result.lost} lost, {result.duplicates} stored twice."
    )


def _stages(result: Result) -> Table:
    table = Table(title="Time by stage", title_justify="left")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for stage, seconds in result.stages.items():
        table.add_row(stage, f"{seconds:.1f}", f"{seconds / max(result.wall_seconds, 1e-9):.0%}")
    table.add_row("all", f"{result.wall_seconds:.1f}", "", style="bold")
    return table


def _cycles(result: Result) -> Table:
    table = Table(title="Cycle by cycle", title_justify="left")
    for name in ("cycle", "learned\nfrom", "mean\noutcome", "mean\nraw\ntotal", "validation"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("candidate and decision", overflow="fold")  # the one that gives way on a narrow terminal
    for cycle in result.cycles:
        table.add_row(
            str(cycle.number) + ("\n(sabotage)" if cycle.sabotaged else ""),
            str(cycle.trajectories or "-"),
            _rate(cycle.mean_outcome),
            _rate(cycle.mean_raw_total),
            _validation(cycle),
            f"{cycle.candidate}\n{cycle.decision}: {cycle.reason}",
            style="red" if cycle.decision == "rolled_back" else None,
        )
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _validation(cycle: Cycle) -> str:
    if cycle.validation_success is None:
        return "skipped"
    before = "?" if cycle.validation_current is None else f"{cycle.validation_current:.2f}"
    return f"{before} → {cycle.validation_success:.2f}"


def _kinds(result: Result) -> Table:
    table = Table(title="Test success per kind of task", title_justify="left")
    for name in ("kind", "warm start", "now", "change", "tries"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind, found in sorted(result.by_kind.items()):
        change = found.final - found.base
        table.add_row(kind, f"{found.base:.2f}", f"{found.final:.2f}", f"{change:+.2f}", str(found.tries))
    return table


def _evidence(result: Result) -> Table:
    table = Table(
        title="Evidence per release (roll back when E all reaches 1/0.045 = 22.2)", title_justify="left"
    )
    table.add_column("candidate", no_wrap=True, overflow="fold")
    for name in ("sessions", "E error", "E outcome", "E all", "crossed → verified zero"):
        table.add_column(name, justify="right", overflow="fold")
    for cycle in result.cycles:
        table.add_row(
            cycle.candidate,
            " / ".join(f"{count} {arm}" for arm, count in sorted(cycle.sessions.items())) or "-",
            *(
                f"{cycle.e_values[name]:.3g}" if name in cycle.e_values else "-"
                for name in ("error", "reward", "all")
            ),
            _latency(cycle),
        )
    return table


def _latency(cycle: Cycle) -> str:
    if not (cycle.crossed_at and cycle.verified_zero_at):
        return "-"
    start, end = (
        datetime.fromisoformat(text.replace("Z", "+00:00"))
        for text in (cycle.crossed_at, cycle.verified_zero_at)
    )
    return f"{(end - start).total_seconds():.1f} s"


def draw(result: Result, path: Path) -> None:
    """Write the picture: outcome per cycle, validation per candidate, success per kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    numbers = [cycle.number for cycle in result.cycles]
    learned = [cycle for cycle in result.cycles if cycle.mean_outcome is not None]
    places = [cycle.number for cycle in learned]
    left.plot(places, [cycle.mean_outcome for cycle in learned], "o-", label="mean outcome in traffic")
    left.plot(places, [cycle.mean_raw_total for cycle in learned], "s--", label="mean raw total")
    tested = [cycle for cycle in result.cycles if cycle.validation_success is not None]
    if tested:
        left.plot(
            [0, *(cycle.number for cycle in tested)],
            [tested[0].validation_current, *(cycle.validation_success for cycle in tested)],
            "^:",
            label="validation success (v0, then each candidate)",
        )
    for cycle in result.cycles:
        if cycle.decision == "rolled_back":
            left.axvline(cycle.number, color="tab:red", alpha=0.35)
            left.annotate(
                "rolled back", (cycle.number, 0.97), rotation=90, color="tab:red", ha="right", va="top"
            )
    left.set_xlabel("cycle")
    left.set_ylabel("rate, 0 to 1")
    left.set_xticks([0, *numbers])
    left.set_ylim(0, 1)
    left.grid(alpha=0.3)
    left.legend(loc="lower right", fontsize=8)
    left.set_title(f"The loop turning ({result.model}, seed {result.seed})")
    kinds = sorted(result.by_kind)
    places = range(len(kinds))
    right.bar(
        [x - 0.2 for x in places], [result.by_kind[kind].base for kind in kinds], 0.4, label="warm start"
    )
    right.bar([x + 0.2 for x in places], [result.by_kind[kind].final for kind in kinds], 0.4, label="now")
    right.set_xticks(list(places), kinds, rotation=20, ha="right")
    right.set_ylim(0, 1)
    right.grid(alpha=0.3, axis="y")
    right.legend(fontsize=8)
    right.set_title("Test success per kind of task")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
