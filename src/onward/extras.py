"""Optional parts of an installation: the extra of the package that installs each third-party module.

The base holds what agents embed (contracts, recorder, redaction, clients) and the commands that work on
files. If a module of Onward imports a module of an extra that is not installed, ``Hint`` replaces Python's
ModuleNotFoundError with a MissingExtraError, a subclass that names the extra. Imports of other programs are
not touched.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

from onward.errors import MissingExtraError

MODULES: dict[str, tuple[str, ...]] = {
    "chdb": ("server",),
    "croniter": ("server",),
    "fastapi": ("server",),
    "httptools": ("server",),
    "obstore": ("server",),
    "prometheus_client": ("server",),
    "starlette": ("server",),
    "structlog": ("server",),
    "uvicorn": ("server",),
    "numpy": ("server", "lm", "control", "rubrics"),
    "torch": ("lm", "control"),
    "safetensors": ("lm", "control"),
    "jinja2": ("lm",),
    "tokenizers": ("lm",),
    "transformers": ("lm",),
    "llguidance": ("lm",),
    "peft": ("lm",),
    "gymnasium": ("control",),
    "onnx": ("control",),
    "threadpoolctl": ("control",),
    "openpyxl": ("rubrics",),
    "yaml": ("rubrics",),
    "matplotlib": ("demo", "control"),
    "tensorboard": ("demo", "control"),
    "langchain_core": ("langchain",),
    "mcp": ("mcp",),
    "mcp_types": ("mcp",),
    "pyarrow": ("export",),
    "datasets": ("export",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "inspect_ai": ("eval",),
    "stable_baselines3": ("bench",),
    "tensorzero": ("tensorzero",),
    "xgrammar": ("xgrammar",),
}
"""Top-level module → the extras that install it. An error names the extra of the importing package if listed
here, else the first."""
_EXTRA_OF_PACKAGE = {"training": "lm"}
"""Packages of Onward whose extra has a different name."""


def require(extra: str, module: str, needed_for: str) -> None:
    """Raises MissingExtraError if ``module`` cannot be imported; does not import it."""
    from importlib.util import find_spec

    try:
        missing = find_spec(module) is None
    except MissingExtraError:  # raised by the hint below, the last finder
        missing = True
    if missing:
        raise MissingExtraError(extra, needed_for)


class Hint:
    """Last finder of ``sys.meta_path``: called only for modules that no other finder has found."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns None (the import fails as usual), or raises MissingExtraError for a module of an extra."""
        extras = MODULES.get(name)
        asking = _importing_module()
        if extras is None or not asking.startswith("onward.") or asking == __name__:
            return None
        package = asking.split(".")[1]
        own = _EXTRA_OF_PACKAGE.get(package, package)
        error = MissingExtraError(own if own in extras else extras[0], asking)
        error.name = name
        raise error


def _importing_module() -> str:
    """Returns the module whose import statement is running: the first frame below Python's import system."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.split(".")[0] not in ("importlib", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""


def install_hint() -> None:
    """Appends ``Hint`` to the finders of this process, once."""
    if Hint not in sys.meta_path:
        sys.meta_path.append(Hint)
