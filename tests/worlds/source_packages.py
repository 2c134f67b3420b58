"""Source files by package, for tests that read every file: one case a package, not one a file.

A case costs each process of a test run milliseconds to collect and to report, and there are a thousand files.
"""

from __future__ import annotations

from pathlib import Path

import onward

NAMES = sorted(
    path.name for path in Path(onward.__file__).parent.iterdir() if path.is_dir() and any(path.rglob("*.py"))
)
"""Packages directly below ``onward``, and ``.`` for the files beside them."""
NAMES.insert(0, ".")


def files(root: Path, package: str) -> list[Path]:
    """Returns the source files of ``package`` below ``root``; for ``.`` those in ``root`` itself."""
    return sorted(root.glob("*.py") if package == "." else (root / package).rglob("*.py"))
