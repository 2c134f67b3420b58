"""How the services redact: one redactor made of the settings, the environment and the keys of this machine.

Know before changing: every role builds the same one, so that what the gateway records and what the collector
makes of it agree; and no secret that is read here may ever stand in an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from onward.capture.collecting.verdict import Judge
from onward.capture.opt_out import OptOut
from onward.config import Settings
from onward.redaction import Known, Redactor
from onward.redaction.known import read_secrets

LOCAL_KEYS = ("api.key", "nats.token", "gateway.key", "quarantine.key", "feedback.key")
"""Files in ``run_dir`` with secrets that Onward made, one a line."""


def redactor_of(settings: Settings, environ: Mapping[str, str] | None = None) -> Redactor:
    """All rules, ``capture.optional_kinds``, and as known: what ``capture.known_secrets_file`` holds, the
    credentials of ``environ`` (None: of the process) and of the settings, the local keys.

    Raises ConfigError for a kind that there is not and for a file that cannot be read.
    """
    file = settings.capture.known_secrets_file
    secrets = [] if file is None else read_secrets(file)
    environ = {**(os.environ if environ is None else environ), **_given(settings)}
    known = Known.from_environment(environ, [*secrets, *_local_keys(settings)])
    return Redactor(known, tuple(settings.capture.optional_kinds))


def judge_of(settings: Settings) -> Judge:
    """Raises ConfigError."""
    return Judge(redactor_of(settings), OptOut.parse(settings.capture.opt_out))


def _given(settings: Settings) -> dict[str, str]:
    """Credentials in the settings, under names that say so: weak ones (``clickhouse``) are then left out, as
    those of the environment are, since they would vanish as words of every text."""
    external = settings.external
    secrets = {
        "ONWARD_NATS_TOKEN": settings.nats.token,
        "ONWARD_WAREHOUSE_PASSWORD": settings.warehouse.password,
        "ONWARD_QUARANTINE_KEY": settings.capture.quarantine_key,
        "ONWARD_AGENTGYM_API_KEY": external.agentgym_rl_api_key,
        "ONWARD_TENSORZERO_TOKEN": external.tensorzero_admin_token,
    }
    return {name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None}


def _local_keys(settings: Settings) -> Iterator[str]:
    for name in LOCAL_KEYS:
        path = settings.run_dir / name
        if path.is_file():
            yield from filter(None, path.read_text(encoding="utf-8", errors="replace").splitlines())
