"""Signatures of manifests: Ed25519 over the bytes of ``manifest.json``, in ``manifest.sig`` beside it.

The trainer role signs with the private key in ``run/models.key``; what loads a checkpoint verifies with
public keys. The signature is a file of its own. So an older checkpoint can be signed without a change of its
manifest, whose hash is in the commit.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, ValidationError

from onward.config import Settings
from onward.errors import ConfigError, ConflictError, NotFoundError, TamperedError
from onward.files import read_secret, write_secret_once, write_whole

KEY_FILE, PUBLIC_FILE = "models.key", "models.pub"
KEY_BYTES = 32
ID_CHARACTERS = 16
_ADVICE = "put the file back from a backup, or delete it and run 'onward keys init' for a new key"


class Signature(BaseModel):
    """Content of ``manifest.sig``."""

    model_config = ConfigDict(extra="forbid")

    key: str
    """Id of the public key: the first characters of its SHA-256."""
    ed25519: str
    """The signature in base64."""


def public_text(key: Ed25519PublicKey) -> str:
    """Returns a public key as base64 of its 32 bytes, the form in settings and in ``run/models.pub``."""
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:ID_CHARACTERS]


def read_public(text: str) -> Ed25519PublicKey:
    """Reads a public key. Raises ConfigError for text that is none."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text.strip(), validate=True))
    except (ValueError, binascii.Error):
        raise ConfigError(
            f"{text[:60]!r} is not a public key: give the line that 'onward keys show' prints."
        ) from None


def make_key(run_dir: Path) -> Ed25519PublicKey:
    """Makes the key pair in ``run_dir`` and returns its public half. Raises ConflictError if there is one."""
    if (run_dir / KEY_FILE).exists():
        raise ConflictError(
            f"{run_dir / KEY_FILE} exists already: 'onward keys show' prints its public half. For a new key, "
            f"list the old public one in models.trusted_keys and move the file away first."
        )
    private = Ed25519PrivateKey.generate()
    write_secret_once(run_dir / KEY_FILE, base64.b64encode(private.private_bytes_raw()).decode() + "\n")
    made = load_key(run_dir)  # that of another process, if it was quicker
    assert made is not None
    write_whole(run_dir / PUBLIC_FILE, (public_text(made.public_key()) + "\n").encode(), 0o600)
    return made.public_key()


def load_key(run_dir: Path) -> Ed25519PrivateKey | None:
    """Returns the private key; None if there is none. Raises ConfigError for a damaged file."""
    path = run_dir / KEY_FILE
    try:
        text = read_secret(path, _ADVICE)
    except FileNotFoundError:
        return None
    try:
        return Ed25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        raise ConfigError(f"{path} is not a key of {KEY_BYTES} bytes in base64: {_ADVICE}.") from None


def load_public(run_dir: Path) -> Ed25519PublicKey | None:
    """Returns the public key of this data folder; None if it has none. Raises ConfigError."""
    try:
        return read_public((run_dir / PUBLIC_FILE).read_text(encoding="ascii"))
    except FileNotFoundError:
        private = load_key(run_dir)
        return None if private is None else private.public_key()
    except UnicodeDecodeError:
        raise ConfigError(f"{run_dir / PUBLIC_FILE} is not a public key: {_ADVICE}.") from None


def sign(key: Ed25519PrivateKey, manifest: bytes) -> bytes:
    """Returns the content of ``manifest.sig`` for the bytes of a manifest."""
    made = Signature(key=key_id(key.public_key()), ed25519=base64.b64encode(key.sign(manifest)).decode())
    return json.dumps(made.model_dump(), sort_keys=True, indent=1).encode()


@dataclass(frozen=True)
class Trust:
    """Keys whose signatures count, by id, and whether every manifest needs one of them."""

    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)
    required: bool = False

    @classmethod
    def of_keys(cls, keys: Iterable[Ed25519PublicKey], *, required: bool = False) -> Trust:
        return cls({key_id(key): key for key in keys}, required)

    @classmethod
    def from_settings(cls, settings: Settings) -> Trust:
        """Trusts the key of the data folder and those in ``models.trusted_keys``. Raises ConfigError."""
        keys = [read_public(text) for text in settings.models.trusted_keys]
        own = load_public(settings.run_dir)
        return cls.of_keys(
            [*keys, own] if own is not None else keys, required=settings.models.require_signature
        )

    def check(self, manifest: bytes, signature: bytes | None, name: str) -> None:
        """Checks the signature of the manifest of checkpoint ``name``; None means that it has none.

        A missing signature, and one of a key that is not trusted, are refused if signatures are required. One
        that is wrong or not readable is always refused. Raises TamperedError.
        """
        if signature is None:
            if self.required:
                raise TamperedError(
                    f"The manifest of {name} has no signature and models.require_signature is on: it must "
                    f"not be loaded. 'onward keys sign' signs a stored checkpoint that you trust."
                )
            return
        try:
            found = Signature.model_validate_json(signature)
            value = base64.b64decode(found.ed25519, validate=True)
        except (ValidationError, ValueError, binascii.Error):
            raise TamperedError(
                f"The signature of {name} is not readable (cut off or damaged): it must not be loaded."
            ) from None
        key = self.keys.get(found.key)
        if key is None:
            if self.required:
                raise TamperedError(
                    f"The manifest of {name} is signed by key {found.key[:ID_CHARACTERS]}, which is not "
                    f"trusted here: it must not be loaded unless its public key is in models.trusted_keys."
                )
            return
        try:
            key.verify(value, manifest)
        except InvalidSignature:
            raise TamperedError(
                f"The manifest of {name} is not what key {found.key} signed: it must not be loaded."
            ) from None


def refuse_unsigned_setup(settings: Settings, *, signs: bool) -> None:
    """Raises ConfigError if signatures are required and this process could not verify any, or, with
    ``signs``, could not make one: it would be noticed only after hours of training."""
    if not settings.models.require_signature:
        return
    key = load_key(settings.run_dir) if signs else None
    if signs and key is None:
        raise ConfigError(
            f"models.require_signature is on and {settings.run_dir} has no {KEY_FILE} to sign with: run "
            f"'onward keys init' there, or turn it off."
        )
    trusted = Trust.from_settings(settings).keys
    if not trusted:
        raise ConfigError(
            "models.require_signature is on and no key is trusted: run 'onward keys init', or list the "
            "trainer's public key in models.trusted_keys."
        )
    if key is not None and key_id(key.public_key()) not in trusted:
        raise ConfigError(
            f"models.require_signature is on and {settings.run_dir / PUBLIC_FILE} is of another key than "
            f"{KEY_FILE}, so nothing that is signed here would be loaded: delete the public file."
        )


def needed_key(settings: Settings) -> Ed25519PrivateKey | None:
    """Returns the key to sign with; None without one where none is required. Raises NotFoundError."""
    key = load_key(settings.run_dir)
    if key is None and settings.models.require_signature:
        raise NotFoundError(
            f"models.require_signature is on and {settings.run_dir / KEY_FILE} is missing: run this where "
            f"the key is, or make one with 'onward keys init'."
        )
    return key
