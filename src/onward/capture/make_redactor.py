"""Builds the redactor of the services from the settings, the environment and the keys of this machine.

Invariants: every role builds the same redactor, so that the gateway and the collector agree on a trajectory's
content. No secret that is read here may appear in an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from onward.bus.logins import ROLES_FILE, Logins
from onward.capture.collecting.inspection import Inspector
from onward.capture.opt_out import OptOut
from onward.config import Settings
from onward.redaction import Known, Redactor, read_rules
from onward.redaction.known import read_secrets
from onward.redaction.own_rules import NO_RULES

LOCAL_KEYS = ("api.key", "nats.token", "gateway.key", "quarantine.key", "feedback.key", "models.key")
"""Files in ``run_dir`` with secrets that Onward generated, one a line."""


def redactor_of(settings: Settings, environ: Mapping[str, str] | None = None) -> Redactor:
    """Returns a redactor with all rules, ``capture.optional_kinds`` and the rules of
    ``capture.redaction_rules_file``. Known secrets: the content of
    ``capture.known_secrets_file``, the credentials of ``environ`` (None: of the process) and of the settings,
    the local keys.

    Raises ConfigError for an unknown kind, for a file that cannot be read and for a wrong rule.
    """
    file = settings.capture.known_secrets_file
    secrets = [] if file is None else read_secrets(file)
    environ = os.environ if environ is None else environ
    environ = {**environ, **_given(settings), **_provider_keys(settings, environ)}
    known = Known.from_environment(environ, [*secrets, *_local_keys(settings)])
    rules = settings.capture.redaction_rules_file
    own = NO_RULES if rules is None else read_rules(rules)
    return Redactor(known, tuple(settings.capture.optional_kinds), own=own)


def inspector_of(settings: Settings) -> Inspector:
    """Returns the judge for these settings. Raises ConfigError."""
    return Inspector(redactor_of(settings), OptOut.parse(settings.capture.opt_out))


def _given(settings: Settings) -> dict[str, str]:
    """Credentials in the settings, under secret names. Weak ones (``clickhouse``) are then left out, like
    those of the environment, since they would be replaced as words of every text."""
    external = settings.external
    secrets = {
        "ONWARD_NATS_TOKEN": settings.nats.token,
        "ONWARD_NATS_PASSWORD": settings.nats.password,
        "ONWARD_WAREHOUSE_PASSWORD": settings.warehouse.password,
        "ONWARD_QUARANTINE_SECRET": settings.capture.quarantine_key,
        "ONWARD_AGENTGYM_API_KEY": external.agentgym_rl_api_key,
        "ONWARD_TENSORZERO_TOKEN": external.tensorzero_admin_token,
        "ONWARD_VLLM_API_KEY": settings.vllm.key,
        "ONWARD_SGLANG_API_KEY": settings.sglang.key,
        "ONWARD_OPENAI_API_KEY": settings.openai.key,
    }
    addresses = {
        "NATS_URL": settings.nats.url,
        "WAREHOUSE_URL": settings.warehouse.url,
        "MODELS_URL": settings.objects.models_url,
    }
    given = {name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None}
    return given | {name: address for name, address in addresses.items() if address}


def _provider_keys(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys of the providers, under secret names."""
    found: dict[str, str] = {}
    for name, provider in settings.providers.items():
        key = provider.key.get_secret_value() or environ.get(provider.key_env, "")
        if provider.key_file is not None and provider.key_file.is_file():
            key = provider.key_file.read_text(encoding="utf-8", errors="replace").strip()
        found[f"ONWARD_PROVIDER_{name.upper()}_API_KEY"] = key
    return {name: key for name, key in found.items() if key}


def _local_keys(settings: Settings) -> Iterator[str]:
    if (settings.run_dir / ROLES_FILE).is_file():
        yield from Logins.of_folder(settings.run_dir).passwords.values()
    for name in LOCAL_KEYS:
        path = settings.run_dir / name
        if path.is_file():
            yield from filter(None, path.read_text(encoding="utf-8", errors="replace").splitlines())
