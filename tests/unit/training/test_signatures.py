"""With models.require_signature only what a trusted key signed is loaded; without it old stores are too."""

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from typer.testing import CliRunner

from onward import cli, config
from onward.errors import ConfigError, ConflictError, NotFoundError, TamperedError
from onward.training import checkpoints, signatures
from onward.training.signatures import Trust
from onward.warehouse import Objects

OURS, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
STRICT = Trust.of_keys([OURS.public_key()], required=True)
LAX = Trust.of_keys([OURS.public_key()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "checkpoint"
    out.mkdir()
    (out / "adapter_config.json").write_text("{}")
    (out / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    checkpoints.write_manifest(out, job_id="job-1", epoch=1, base_digest="base")
    return out


def _settings(folder: Path, **models: Any) -> config.Settings:
    return config.load(environ={}, overrides={"data_dir": folder, "models": models})


def test_the_signature_is_ed25519_over_the_bytes_of_the_manifest(folder: Path) -> None:
    checkpoints.sign(folder, OURS)
    found = json.loads((folder / "manifest.sig").read_bytes())
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signatures.public_text(OURS.public_key())))
    key.verify(base64.b64decode(found["ed25519"]), (folder / "manifest.json").read_bytes())
    assert checkpoints.verify(folder, STRICT) == checkpoints.verify(folder)


def test_a_manifest_that_was_changed_after_signing_is_refused_also_where_none_is_required(
    folder: Path,
) -> None:
    checkpoints.sign(folder, OURS)
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"base"', '"other"'))
    checkpoints.verify(folder)  # consistent in itself
    for trust in (STRICT, LAX):
        with pytest.raises(TamperedError, match=r"is not what key [0-9a-f]{16} signed: it must not"):
            checkpoints.verify(folder, trust)


def test_a_changed_file_under_a_signed_manifest_is_refused(folder: Path) -> None:
    checkpoints.sign(folder, OURS)
    (folder / "adapter_config.json").write_text('{"r": 1}')
    with pytest.raises(TamperedError, match=r"adapter_config\.json in checkpoint does not match"):
        checkpoints.verify(folder, STRICT)


def test_a_manifest_that_another_key_signed_is_refused_where_a_signature_is_required(folder: Path) -> None:
    checkpoints.sign(folder, OTHER)
    with pytest.raises(TamperedError, match=r"signed by key [0-9a-f]{16}, which is not trusted here"):
        checkpoints.verify(folder, STRICT)
    checkpoints.verify(folder, LAX)  # as good as unsigned


def test_a_signature_under_the_id_of_another_key_is_refused(folder: Path) -> None:
    checkpoints.sign(folder, OTHER)
    made = json.loads((folder / "manifest.sig").read_bytes())
    made["key"] = signatures.key_id(OURS.public_key())
    (folder / "manifest.sig").write_text(json.dumps(made))
    with pytest.raises(TamperedError, match="is not what key"):
        checkpoints.verify(folder, LAX)


def test_a_missing_signature_is_refused_only_where_one_is_required(folder: Path) -> None:
    checkpoints.verify(folder, LAX)
    with pytest.raises(TamperedError, match=r"has no signature and models\.require_signature is on"):
        checkpoints.verify(folder, STRICT)


@pytest.mark.parametrize("cut", [0, 10, -20])
def test_a_truncated_signature_is_refused_everywhere(folder: Path, cut: int) -> None:
    checkpoints.sign(folder, OURS)
    body = (folder / "manifest.sig").read_bytes()
    (folder / "manifest.sig").write_bytes(body[:cut])
    for trust in (STRICT, LAX):
        with pytest.raises(TamperedError, match="not readable"):
            checkpoints.verify(folder, trust)


def test_a_new_manifest_has_not_the_signature_of_the_one_before(folder: Path) -> None:
    checkpoints.sign(folder, OURS)
    checkpoints.write_manifest(folder, job_id="job-1", epoch=2, base_digest="base")
    assert not (folder / "manifest.sig").exists()


async def test_no_file_of_an_unsigned_checkpoint_is_fetched_where_one_is_required(
    folder: Path, tmp_path: Path
) -> None:
    objects = Objects.open(tmp_path / "objects")
    manifest = checkpoints.verify(folder)
    commit = await checkpoints.store(objects, folder, manifest)
    where, out = commit.object_prefix, tmp_path / "fetched"
    with pytest.raises(TamperedError, match="has no signature"):
        await checkpoints.fetch(objects, where, out, trust=STRICT)
    assert {path.name for path in checkpoints.partial_of(out).iterdir()} == {"manifest.json"}
    with pytest.raises(TamperedError, match="has no signature"):
        await checkpoints.read_manifest(objects, where, trust=STRICT)
    assert await checkpoints.sign_stored(objects, "job-1", OURS) == commit  # its commit is as it was
    digest = commit.manifest_sha256
    assert await checkpoints.fetch(objects, where, out, manifest_sha256=digest, trust=STRICT) == manifest
    assert await checkpoints.read_manifest(objects, where, manifest_sha256=digest, trust=STRICT) == manifest
    assert checkpoints.verify(out, STRICT) == manifest  # the cached copy keeps its signature


async def test_a_changed_checkpoint_is_not_signed_afterwards(folder: Path, tmp_path: Path) -> None:
    objects = Objects.open(tmp_path / "objects")
    commit = await checkpoints.store(objects, folder, checkpoints.verify(folder))
    await objects.put(f"{commit.object_prefix}/adapter_config.json", b'{"r": 1}')
    with pytest.raises(TamperedError, match="does not match"):
        await checkpoints.sign_stored(objects, "job-1", OURS)
    assert not await objects.exists(f"{commit.object_prefix}/manifest.sig")


def test_the_private_key_is_for_its_owner_and_is_never_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    at = str(tmp_path / "data")
    made = CliRunner().invoke(cli.app, ["keys", "init", "--dir", at])
    assert made.exit_code == 0, made.output
    key = tmp_path / "data" / "run" / "models.key"
    assert key.stat().st_mode & 0o777 == 0o600
    secret, public = key.read_text().strip(), (key.parent / "models.pub").read_text().strip()
    assert public in made.output
    shown = CliRunner().invoke(cli.app, ["keys", "show", "--dir", at, "--json"])
    assert json.loads(shown.output)["public"] == public
    for text in (made.output, shown.output, caplog.text, repr(signatures.load_key(key.parent))):
        assert secret not in text
    again = CliRunner().invoke(cli.app, ["keys", "init", "--dir", at])
    assert isinstance(again.exception, ConflictError) and key.read_text().strip() == secret


def test_a_gateway_elsewhere_trusts_a_listed_public_key(folder: Path, tmp_path: Path) -> None:
    checkpoints.sign(folder, OURS)
    listed = [signatures.public_text(OURS.public_key())]
    settings = _settings(tmp_path / "gateway", require_signature=True, trusted_keys=listed)
    checkpoints.verify(folder, Trust.from_settings(settings))
    signatures.refuse_unsigned_setup(settings, signs=False)
    with pytest.raises(ConfigError, match=r"has no models\.key to sign with: run 'onward keys init'"):
        signatures.refuse_unsigned_setup(settings, signs=True)
    with pytest.raises(NotFoundError, match=r"models\.key is missing"):
        signatures.needed_key(settings)


def test_what_cannot_be_verified_is_told_at_the_start(tmp_path: Path) -> None:
    strict = _settings(tmp_path, require_signature=True)
    with pytest.raises(ConfigError, match="no key is trusted"):
        signatures.refuse_unsigned_setup(strict, signs=False)
    signatures.make_key(strict.run_dir)
    signatures.refuse_unsigned_setup(strict, signs=True)
    public = strict.run_dir / signatures.PUBLIC_FILE
    public.write_text(signatures.public_text(OURS.public_key()))  # the private one came from elsewhere
    with pytest.raises(ConfigError, match=r"models\.pub is of another key than models\.key"):
        signatures.refuse_unsigned_setup(strict, signs=True)
    public.unlink()
    signatures.refuse_unsigned_setup(strict, signs=True)
    with pytest.raises(ConfigError, match="is no public key"):
        _settings(tmp_path, trusted_keys=["rubbish"])


@pytest.mark.parametrize("text", ["", "short", "x" * 44, "é" * 44])
def test_a_damaged_private_key_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "models.key").write_text(text)
    with pytest.raises(ConfigError, match="'onward keys init' for a new key"):
        signatures.load_key(tmp_path)
