"""Sealing: encryption of bodies that may be stored only encrypted, and the key file that opens them.

The form is a line of readable facts, then AES-256-GCM (NIST SP 800-38D) with the facts as associated data.
Agents load this module, so it imports no part of a server.

Invariants: earlier sealed bodies, the only copies, have this form. A change of it would lose them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from onward.errors import ConfigError, ObjectError, TamperedError
from onward.files import write_secret_once

KEY_BYTES = 32
_NONCE_BYTES = 12


def seal(facts: bytes, plain: bytes, key: bytes) -> bytes:
    """Encrypts ``plain``. ``facts`` is one line, which stays readable."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return facts + b"\n" + nonce + AESGCM(key).encrypt(nonce, plain, facts)


def split_sealed(data: bytes) -> tuple[bytes, bytes]:
    """Returns the line of facts and the rest."""
    facts, _, sealed = data.partition(b"\n")
    return facts, sealed


def unseal(facts: bytes, sealed: bytes, key: bytes, name: str) -> bytes:
    """Decrypts a body. Raises TamperedError, which names it ``name``, if it was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], facts)
    except (InvalidTag, ValueError):
        raise TamperedError(
            f"Held body {name} was changed after it was sealed: it cannot be used, only dropped."
        ) from None


def key_id_of(key: bytes) -> str:
    return hashlib.sha256(b"onward quarantine key id\x00" + key).hexdigest()[:8]


def read_or_create_key(file: Path) -> bytes:
    """Reads the key; creates the file (mode 0600) at first use. Raises ObjectError if it cannot be written or
    read, ConfigError if it contains no key."""
    try:
        if not file.exists():
            write_secret_once(file, base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode())
        return parse_key(file.read_text(encoding="ascii", errors="replace"), str(file))
    except OSError as error:
        raise ObjectError(f"{file} cannot be made or read: {error.strerror}.") from None


def parse_key(text: str, where: str) -> bytes:
    """Decodes a key from base64. Raises ConfigError, which names ``where``, for anything else."""
    try:
        key = base64.b64decode(
            text.strip(), altchars=b"-_" if {"-", "_"} & set(text) else None, validate=True
        )
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{where} is not {KEY_BYTES} bytes in base64: make one with 'openssl rand -base64 32'."
        )
    return key
