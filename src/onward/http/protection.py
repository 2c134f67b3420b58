"""The protections of a service as its settings ask for them: keys, host names, calls without a key."""

from __future__ import annotations

from typing import Any

from onward.config import Settings
from onward.http.app import load_keys
from onward.http.open_calls import SERVICE_NAMES, OpenCalls


def protection(settings: Settings) -> dict[str, Any]:
    """Returns the arguments of ``make_app`` that follow from the settings. Raises ConfigError for a wrong
    key."""
    http, keys = settings.http, settings.api_keys()
    return {
        "keys": load_keys(keys, settings.run_dir, settings.key_names()),
        "hosts": [http.host, *http.names, *SERVICE_NAMES, *settings.external.names()],
        "wrong_keys_per_minute": http.wrong_keys_per_minute,
        "open_calls": OpenCalls(http.auth == "none", None if keys else http.host, tuple(http.names)),
    }
