"""The logins of NATS: one for the service, one for each role in a process of its own, one for agents.

Rights are allow-lists. A role may publish its own messages, write its own buckets, read its own consumers
and every bucket. An agent may publish trajectories and feedback, receive the acknowledgements, and see which
model is deployed. Each login has an inbox prefix of its own, so no login can read another's answers. The
service may do everything.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypedDict

from onward.bus.buckets import BUCKETS, stream_of
from onward.bus.streams import STREAMS
from onward.contracts import subjects
from onward.errors import BusError
from onward.files import read_secret, write_secret_once, write_whole

SERVICE = "service"
AGENT = "agent"
TOKEN_FILE = "nats.token"
"""The service's own login. It may do everything: it is for this machine's operator, never for an agent."""
ROLES_FILE = "nats.logins.json"
"""Passwords of the roles and of agents."""
AGENT_FILE = "agent.url"
"""Address with the agents' login: all that an agent needs."""
_LEAST = 16


class Login(TypedDict, total=False):
    """Login as ``Bus.connect`` takes it: a token, or a user with a password."""

    token: str
    user: str
    password: str


@dataclass(frozen=True)
class Rights:
    """Subjects that a login may use. Its inbox is added by ``_permissions``."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    answers: bool = False
    """True for a login that may send one answer to each request that it receives."""


def inbox_prefix(user: str) -> str:
    return f"_INBOX_{user}"


def _durable(stream: str, *consumers: str) -> tuple[str, ...]:
    """Subjects for durable consumers: also those that record how far each has come."""
    return (
        *_reader(stream, *consumers),
        _get(stream),
        *(f"$KV.rl_readers.{stream}.{name}" for name in consumers),
    )


def _reader(stream: str, *consumers: str) -> tuple[str, ...]:
    """Subjects that a reader of ``stream`` publishes on: to make, read and acknowledge these consumers."""
    api = "$JS.API.CONSUMER"
    return tuple(
        subject
        for name in consumers
        for subject in (
            f"{api}.CREATE.{stream}.{name}",
            f"{api}.CREATE.{stream}.{name}.>",
            f"{api}.DURABLE.CREATE.{stream}.{name}",
            f"{api}.INFO.{stream}.{name}",
            f"{api}.DELETE.{stream}.{name}",
            f"{api}.MSG.NEXT.{stream}.{name}",
            f"$JS.ACK.{stream}.{name}.>",
        )
    )


def _erase(stream: str) -> str:
    return f"$JS.API.STREAM.MSG.DELETE.{stream}"


def _get(stream: str) -> str:
    return f"$JS.API.STREAM.MSG.GET.{stream}"


_EVERY_STREAM = (*STREAMS, *map(stream_of, BUCKETS))
_DLQ = f"{subjects.DLQ}.>"
_EVERY_ROLE = (
    subjects.ALERT,
    subjects.AUDIT,
    "$JS.API.STREAM.INFO.*",
    "$KV.rl_set_aside.>",
    *(subject for name in BUCKETS for subject in (_get(stream_of(name)), *_reader(stream_of(name), "*"))),
)
"""Every role may raise alerts, ask how the streams are, read the buckets, and copy what it could not read."""
_READS: dict[str, dict[str, tuple[str, ...]]] = {
    "collector": {"RL_TRAJECTORIES": ("collector",)},
    "archiver": {
        "RL_TRAINING": ("archiver-status",),
        "RL_DEPLOY": ("archiver-deployments",),
        "RL_OUTCOMES": ("archiver-outcomes",),
    },
    "rewarder": {"RL_TRAJECTORIES": ("rewarder",), "RL_FEEDBACK": ("rewarder-feedback",)},
    "coordinator": {"RL_TRAINING": ("coordinator",)},
    "trainer": {"RL_TRAINING": ("trainer", "trainer-control", "trainer-rubrics")},
    "gateway": {"RL_REWARDS": ("gateway-outcomes",), "RL_FEEDBACK": ("gateway-votes",)},
}
"""Role → stream → its durable consumers."""
_STORED = (
    "RL_TRAJECTORIES",
    "RL_REWARDS",
    "RL_FEEDBACK",
    "RL_TRAINING",
    "RL_DEPLOY",
    "RL_OUTCOMES",
    "RL_DLQ",
)
"""Streams that the collector's check of the warehouse compares with its rows."""
_OWN: dict[str, Rights] = {
    "collector": Rights(
        (
            subjects.TRAJECTORY,  # the redacted form of a message that held a secret
            _DLQ,
            _erase("RL_TRAJECTORIES"),
            "$KV.rl_capture.>",
            # The check of the warehouse, which runs beside it; it also makes streams that were deleted, and
            # cleans a vote in which it finds a secret.
            subjects.FEEDBACK,
            _erase("RL_FEEDBACK"),
            "$JS.API.STREAM.LIST",
            *(f"$JS.API.STREAM.CREATE.{name}" for name in _EVERY_STREAM),
            *map(_get, _STORED),
            *(
                f"$JS.API.CONSUMER.INFO.{stream}.{name}"
                for reads in _READS.values()
                for stream, names in reads.items()
                for name in names
            ),
            *_reader("RL_REWARDS", "*"),
            "$KV.rl_leases.recovery",
        )
    ),
    "archiver": Rights((_DLQ,)),
    "rewarder": Rights(
        (
            subjects.REWARD,
            subjects.FEEDBACK,  # the redacted form
            _DLQ,
            _erase("RL_FEEDBACK"),
            _get("RL_REWARDS"),
            "$JS.API.CONSUMER.INFO.RL_TRAJECTORIES.collector",
        ),
        ("$JS.ACK.RL_TRAJECTORIES.collector.>",),
    ),
    "coordinator": Rights(
        (subjects.TRAINING_REQUEST, subjects.REPORT, _DLQ), (subjects.TRAINER_MESSAGE,), answers=True
    ),
    "trainer": Rights(
        (subjects.TRAINING_STATUS, _DLQ, _get("RL_TRAJECTORIES")),
        (subjects.TRAINING_STATUS_REQUEST,),
        answers=True,
    ),
    "releaser": Rights((subjects.MODEL_DEPLOYED, subjects.REPORT, *_reader("RL_OUTCOMES", "*"))),
    "gateway": Rights(
        (
            subjects.TRAJECTORY,
            subjects.FEEDBACK,
            subjects.OUTCOME,
            _DLQ,
            *_reader("RL_OUTCOMES", "*"),
            "$KV.rl_capture.>",
        )
    ),
    "api": Rights(
        (
            subjects.FEEDBACK,
            subjects.TRAINING_REQUEST,
            subjects.TRAINING_CONTROL,
            subjects.TRAINING_RUBRICS,
            "$KV.rl_jobs.>",  # to cancel a job
            "$JS.API.CONSUMER.LIST.*",
        )
    ),
}


def _rights(role: str) -> Rights:
    """The rights of a role: its own, those of every role, its consumers, its buckets and its lease."""
    own = _OWN[role]
    reads = (_durable(stream, *names) for stream, names in _READS.get(role, {}).items())
    buckets = tuple(f"$KV.{name}.>" for name, bucket in BUCKETS.items() if bucket.writer == role)
    kept = (f"$KV.rl_leases.{role}", f"$KV.rl_roles.{role}")
    return Rights((*own.publish, *_EVERY_ROLE, *chain(*reads), *buckets, *kept), own.subscribe, own.answers)


RIGHTS: dict[str, Rights] = {
    **{role: _rights(role) for role in _OWN},
    AGENT: Rights((subjects.TRAJECTORY, subjects.FEEDBACK), (subjects.MODEL_DEPLOYED, subjects.REPORT)),
}
"""User → rights. The service's login is not limited."""


@dataclass(frozen=True)
class Logins:
    """The logins of one server."""

    token: str
    """Login of the service, which uses it as a token (embedded server) or as the password of ``service``."""
    passwords: Mapping[str, str]

    @classmethod
    def new(cls) -> Logins:
        return cls(secrets.token_urlsafe(32), {user: secrets.token_urlsafe(32) for user in RIGHTS})

    @classmethod
    def of_folder(cls, run_dir: Path) -> Logins:
        """Reads the logins of a data folder; what is missing is made. Raises BusError or ConfigError for a
        damaged file."""
        made = cls.new()
        token = run_dir / TOKEN_FILE
        if not token.exists():
            write_secret_once(token, made.token)
        token.chmod(0o600)
        text = read_secret(token, "delete it and start again")
        return cls(text, _passwords(run_dir / ROLES_FILE, made.passwords))

    def url(self, user: str, address: str) -> str:
        """Returns ``address`` (nats://HOST:PORT) with the login of ``user``."""
        return f"nats://{user}:{self.passwords[user]}@{address.removeprefix('nats://')}"

    def write_agent_file(self, run_dir: Path, address: str) -> None:
        """Writes the agents' file for a server at ``address``."""
        write_whole(run_dir / AGENT_FILE, self.url(AGENT, address).encode(), 0o600)


def _passwords(path: Path, made: Mapping[str, str]) -> dict[str, str]:
    """Reads the passwords; adds those of users that the file does not have yet. Raises BusError."""
    damaged = BusError(
        f"{path} holds no usable logins: delete it and start again; agents need new ones then."
    )
    if not path.exists():
        write_secret_once(path, json.dumps(dict(made), indent=1))
    path.chmod(0o600)
    try:
        found = json.loads(path.read_text())
    except ValueError:
        raise damaged from None
    if not isinstance(found, dict) or not all(
        isinstance(v, str) and len(v) >= _LEAST for v in found.values()
    ):
        raise damaged
    missing = {user: password for user, password in made.items() if user not in found}
    if missing:
        found |= missing
        write_whole(path, json.dumps(found, indent=1).encode(), 0o600)
    return found


def user_lines(logins: Logins, *, service: bool) -> list[str]:
    """Returns the lines of a server's configuration that define the users. ``service``: also that user, for a
    server on which the service does not log in with its token."""
    lines = ["authorization {", "  users: ["]
    if service:
        lines.append(f'    {{ user: {SERVICE}, password: "{logins.token}" }}')
    for user, rights in RIGHTS.items():
        lines += _permissions(user, logins.passwords[user], rights)
    return [*lines, "  ]", "}"]


def _permissions(user: str, password: str, rights: Rights) -> Iterable[str]:
    publish = ", ".join(f'"{subject}"' for subject in rights.publish)
    subscribe = ", ".join(f'"{subject}"' for subject in (f"{inbox_prefix(user)}.>", *rights.subscribe))
    yield f'    {{ user: {user}, password: "{password}", permissions: {{'
    yield f"      publish: {{ allow: [{publish}] }}"
    yield f"      subscribe: {{ allow: [{subscribe}] }}"
    if rights.answers:
        yield '      allow_responses: { max: 1, expires: "1m" }'
    yield "    } }"
