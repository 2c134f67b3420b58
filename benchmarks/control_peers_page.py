"""The page of ``control_vs_peers``: its tables, and the cases where ours is behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from machine import machine_in_words

OURS = "onward"
HEADINGS = {
    "equal": "Equal settings",
    "cleanrl": "CleanRL's settings",
    "best": "Settings that each side chose, the same number of trials",
}


def page(result: dict[str, Any]) -> str:
    """Formats the result as a page, with the cases where we are behind."""
    lines = [
        "# Control policies beside stable-baselines3 and SBX",
        "",
        f"Made by `{result['command']}` on {machine_in_words(result['machine'])}, one thread each. What is",
        "measured: the program's first lines. Medians over seeds; × is our steps per processor second over",
        "theirs, or their processor seconds to the threshold over ours: above 1 is in our favour.",
    ]
    for name, found in result["rows"].items():
        lines += ["", f"## {HEADINGS[name]}", "", *_table(found)]
        lines += [line for one in found if one["note"] for line in ("", f"{one['task']}: {one['note']}.")]
    lines += [line for why in result["missing"] for line in ("", f"Not measured: {why}")]
    behind = [
        f"- {HEADINGS[name].lower()}: {words}"
        for name, found in result["rows"].items()
        for one in found
        for words in lost(one)
    ]
    return "\n".join([*lines, "", "## Where ours is behind", "", *(behind or ["Nowhere here."]), ""])


def _table(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "| task | side | steps per processor s | × | processor s to threshold | × | reached | success |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in found:
        for side, values in one["sides"].items():
            cells = (
                one["task"], side, _figure(values["steps_per_cpu_second"]), _figure(one["ratios"].get(side)),
                _figure(values["cpu_seconds_to_threshold"]), _figure(one["ratios_to_threshold"].get(side)),
                f"{values['reached']} of {values['seeds'].split()[0]}", _figure(values["final_success"]),
            )  # fmt: skip
            yield "| " + " | ".join(cells) + " |"


def lost(found: dict[str, Any]) -> list[str]:
    """Returns the losses of a task: speed, time to the threshold, seeds that reach it, success at the end."""
    mine = found["sides"].get(OURS)
    words: list[str] = []
    for side, theirs in found["sides"].items() if mine else ():
        if side == OURS:
            continue
        task = f"{found['task']} beside {side}"
        speed, time = found["ratios"][side], found["ratios_to_threshold"][side]
        if speed < 1:
            words.append(f"{task} is slower ({speed} × its steps per processor second)")
        if mine["seeds"] == theirs["seeds"] and mine["reached"] < theirs["reached"]:
            words.append(f"{task} reaches the threshold less often ({mine['reached']} / {theirs['reached']})")
        if time is not None and time < 1:
            words.append(f"{task} comes to the threshold later ({time})")
        success, their_success = mine["final_success"], theirs["final_success"]
        if None not in (success, their_success) and success < their_success:
            words.append(f"{task} succeeds less often ({success} / {their_success})")
    return words


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
