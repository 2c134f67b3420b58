"""Signatures of the gateway: on generation records, which the trainer checks, and on outcomes, which the
releaser checks.

Pure (no torch, no bus). A signature covers every field except itself, with numbers in one fixed type, so that
it still verifies after any JSON library. Anyone with the key file can sign. The file never leaves
``data_dir/run`` and is never on the bus, so a login of NATS is not enough to sign.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.contracts import SessionOutcome, canonical_json, decode, to_document
from onward.errors import ConfigError, ContractError, NotFoundError
from onward.files import write_secret_once

KEY_FILE = "gateway.key"
KEY_BYTES = 32
_FLOATS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k",)


def sign(record: Mapping[str, Any], key: bytes) -> str:
    """Returns HMAC-SHA256, in hex, over the canonical JSON of ``record`` without ``signature``."""
    return hmac.new(key, canonical_json(_signed_form(record)), hashlib.sha256).hexdigest()


def verify(record: Mapping[str, Any], key: bytes) -> bool:
    """Returns whether the signature of ``record`` is the one under ``key``; False without a valid one."""
    given = record.get("signature")
    if not isinstance(given, str) or record.get("tokens_void"):
        return False
    try:
        return hmac.compare_digest(sign(record, key).encode(), given.encode())
    except (TypeError, ValueError, OverflowError, ContractError):
        return False


def sign_outcome(outcome: SessionOutcome, key: bytes) -> SessionOutcome:
    """Returns a copy of the outcome with its signature."""
    return outcome.model_copy(update={"signature": _outcome_code(outcome, key)})


def is_signed(outcome: SessionOutcome, key: bytes) -> bool:
    """Returns whether the outcome has the signature under ``key``."""
    given = outcome.signature
    return given is not None and hmac.compare_digest(_outcome_code(outcome, key).encode(), given.encode())


def is_signed_message(data: bytes, key: bytes) -> bool:
    """Returns whether ``data`` is a readable outcome with the signature under ``key``."""
    try:
        return is_signed(decode(data, SessionOutcome), key)
    except ContractError:
        return False


def outcome_message_id(outcome_id: str, key: bytes) -> str:
    """Returns the message id of an outcome. Only a holder of the key can compute it: a message sent earlier
    under the same id would make the server drop the real outcome as its duplicate."""
    return hmac.new(key, b"outcome id\x00" + outcome_id.encode(), hashlib.sha256).hexdigest()


def _outcome_code(outcome: SessionOutcome, key: bytes) -> str:
    document = {name: value for name, value in to_document(outcome).items() if name != "signature"}
    return hmac.new(key, b"outcome\x00" + canonical_json(document), hashlib.sha256).hexdigest()


def load_key(run_dir: Path, *, create: bool = False) -> bytes:
    """Returns the signing key in ``run_dir`` (hex, mode 0600). With ``create`` a missing key is generated
    once. Raises NotFoundError if it is missing, ConfigError if it is not a key."""
    path = run_dir / KEY_FILE
    if create and not path.exists():
        write_secret_once(path, secrets.token_hex(KEY_BYTES))
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist: the gateway makes it at its first start.") from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is not a signing key: delete it and start the gateway to make a new one.")
    return key


def _signed_form(record: Mapping[str, Any]) -> dict[str, Any]:
    """Converts each number to one type (JSON writers turn 1.0 into 1) and leaves out null fields."""
    kept = {name: value for name, value in record.items() if name != "signature" and value is not None}
    for name in _FLOATS:
        if name in kept:
            kept[name] = float(kept[name])
    for name in _INTEGERS:
        if name in kept:
            kept[name] = int(kept[name])
    if isinstance(kept.get("logit_bias"), Mapping):
        kept["logit_bias"] = {token: float(value) for token, value in kept["logit_bias"].items()}
    for name in ("prompt_ids", "token_ids"):
        if name in kept:
            kept[name] = [int(token) for token in kept[name]]
    if "logprobs" in kept:
        kept["logprobs"] = [float(value) for value in kept["logprobs"]]
    if not kept.get("tokens_void"):
        kept.pop("tokens_void", None)
    return kept
