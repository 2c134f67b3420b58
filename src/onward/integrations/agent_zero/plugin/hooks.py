"""Moments in the life of the plugin at which Agent Zero calls it. Settings never contain a password or
token."""

import logging

_SECRET = ("token", "password", "secret", "api_key", "apikey", "creds")


def install():
    """Nothing to install: the worker runs with Onward's own interpreter."""
    return 0


def pre_update():
    """Ends the worker, which delivers or stores what it has."""
    _close()


def uninstall():
    """Ends the worker. Work that waits for NATS stays in data/."""
    _close()


def save_plugin_config(settings=None, default=None, **_):
    """Drops passwords and tokens from settings before they are saved: an agent can read config.json."""
    if not isinstance(settings, dict):
        return settings
    return {
        name: value for name, value in settings.items() if not any(word in name.lower() for word in _SECRET)
    }


def _close():
    try:
        from usr.plugins.onward.helpers import onward_tools, runtime

        onward_tools.close()
        found = runtime.get()
        if found is not None:
            found.close(timeout=2.0)
    except Exception as error:  # an update or a removal goes on without the worker
        logging.getLogger("onward").warning("the worker was not ended: %s", type(error).__name__)
