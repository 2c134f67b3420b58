"""Versions and processor that a saved state was made with: another one may round otherwise.

Invariants: nothing here stops a run. Where something differs, a resumed run goes on, and says that it is not
bit for bit the run without the stop.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("onward", "numpy", "torch", "gymnasium")
"""Packages whose version may change a number."""
Origin = dict[str, str]


def of_this_process(threads: int) -> Origin:
    """Returns name → version of what this process computes with."""
    torch = sys.modules.get("torch")
    features = "" if torch is None else f", {torch.backends.cpu.get_cpu_capability()}"
    found = {"Python": platform.python_version()}
    found |= {name: installed for name in PACKAGES if (installed := _version(name)) is not None}
    return found | {"processor": f"{platform.machine()}{features}", "threads": str(threads)}


def differences(saved: Origin | None, threads: int) -> list[str]:
    """Returns one phrase per entry that differs; one about all of them where the state has none."""
    if saved is None:
        return ["an earlier version of Onward saved it, which did not store the versions of its libraries"]
    now = of_this_process(threads)
    return [
        f"{name} was {saved.get(name, 'not there')} and is {now.get(name, 'not there')}"
        for name in {**saved, **now}
        if saved.get(name) != now.get(name)
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
