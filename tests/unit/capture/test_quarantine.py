"""The quarantine without servers: what is on disk, who can open it, what changes are noticed."""

import base64
import json
import stat
import threading
from datetime import UTC, datetime

import pytest

from onward.bus import Message
from onward.capture.collecting.quarantine import KEY_FILE, Quarantine, QuarantineKeys, count_held, held_id
from onward.clock import ManualClock
from onward.config import load
from onward.contracts import subjects
from onward.errors import ConfigError, NotFoundError, ObjectError, TamperedError
from onward.warehouse import Objects

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
ARRIVED = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
KEY = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.urlsafe_b64encode(bytes(range(100, 132))).decode()


def message(sequence: int = 7, data: bytes = SECRET.encode(), subject: str = subjects.TRAJECTORY) -> Message:
    return Message(data, {"X-Note": f"note {SECRET}"}, subject, sequence, 3, ARRIVED)


def keys(folder, key: str | None = None) -> QuarantineKeys:
    capture = {"quarantine_key": key} if key else {}
    return QuarantineKeys.from_settings(
        load(environ={}, overrides={"data_dir": str(folder), "capture": capture})
    )


def quarantine(folder, key: str | None = None) -> Quarantine:
    clock = ManualClock(datetime(2026, 5, 4, 4, 0, 0, tzinfo=UTC))
    return Quarantine(Objects.open(folder / "objects"), keys(folder, key), clock)


async def test_a_message_comes_back_as_it_was_and_nothing_of_it_is_on_disk(tmp_path):
    q = quarantine(tmp_path)
    held = await q.hold("S", message(), "redaction", "RuntimeError")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 2
    assert not any(SECRET.encode() in file.read_bytes() for file in files)
    facts, back = await q.open(held.held_id)
    assert facts == held
    assert (back.data, back.headers, back.sequence, back.timestamp) == (
        SECRET.encode(), {"X-Note": f"note {SECRET}"}, 7, ARRIVED,
    )  # fmt: skip


async def test_the_facts_are_these_and_say_nothing_of_the_content(tmp_path):
    q = quarantine(tmp_path, KEY)
    held = await q.hold("RL_TRAJECTORIES", message(subject=f"s.{SECRET}"), "too_deep", "ContractError")
    line = (tmp_path / "objects" / "quarantine" / held.held_id).read_bytes().partition(b"\n")[0]
    assert json.loads(line) == {
        "held_id": held.held_id,
        "since": "2026-05-04T04:00:00.000Z",
        "reason": "too_deep",
        "error": "ContractError",
        "subject": "",
        "stream": "RL_TRAJECTORIES",
        "sequence": 7,
        "arrived": "2026-05-04T03:02:01.123456+00:00",
        "size": 40,
        "trajectory_id": "",
        # printf 'onward quarantine key id\0' and bytes 0 to 31 | sha256sum
        "key_id": "1ea32772",
        "source": "stream",
    }


async def test_the_same_message_again_is_held_once_and_another_stream_is_another(tmp_path):
    q = quarantine(tmp_path)
    for _ in range(3):
        await q.hold("S", message(), "redaction")
    await q.hold("T", message(), "redaction")
    await q.hold("S", message(12), "redaction")
    assert await count_held(Objects.open(tmp_path / "objects")) == 3
    assert [held.sequence for held in await q.list_held()] == [7, 7, 12]
    assert len(await q.list_held(limit=2)) == 2
    assert held_id("S", 7, ARRIVED) != held_id("S", 7, ARRIVED.replace(year=2027))


async def test_the_key_file_is_made_once_for_all_and_only_for_its_owner(tmp_path):
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(keys(tmp_path).sealing_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 8 and len(found[0]) == 32
    file = tmp_path / "run" / KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [KEY_FILE]


async def test_collectors_with_one_key_open_what_the_others_hold(tmp_path):
    held = await quarantine(tmp_path, KEY).hold("S", message(), "redaction")
    assert not (tmp_path / "run").exists()
    assert (await quarantine(tmp_path, KEY).open(held.held_id))[1].data == SECRET.encode()
    with pytest.raises(ConfigError, match=f"The key '{held.key_id}' that sealed it is not here"):
        await quarantine(tmp_path, OTHER).open(held.held_id)


async def test_what_the_file_key_sealed_still_opens_after_a_shared_key_is_set(tmp_path):
    held = await quarantine(tmp_path).hold("S", message(), "redaction")
    after = quarantine(tmp_path, OTHER)
    newer = await after.hold("S", message(8), "redaction")
    assert held.key_id != newer.key_id
    assert (await after.open(held.held_id))[1].data == SECRET.encode()
    assert (await after.open(newer.held_id))[1].sequence == 8


@pytest.mark.parametrize("key", ["short", "!" * 44, base64.b64encode(b"x" * 31).decode()])
def test_a_setting_that_is_no_key_is_refused_at_once(tmp_path, key):
    with pytest.raises(ConfigError, match=r"capture\.quarantine_key is not 32 bytes in base64") as caught:
        keys(tmp_path, key)
    assert key not in str(caught.value)


async def test_a_broken_key_file_makes_the_message_wait(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / KEY_FILE).write_text("\xff not a key")
    with pytest.raises(ObjectError, match="is not 32 bytes in base64"):
        await quarantine(tmp_path).hold("S", message(), "redaction")
    assert await count_held(Objects.open(tmp_path / "objects")) == 0


@pytest.mark.parametrize("place", ["facts", "nonce", "body"])
async def test_a_changed_byte_anywhere_is_noticed(tmp_path, place):
    q = quarantine(tmp_path)
    held = await q.hold("S", message(), "redaction")
    file = tmp_path / "objects" / "quarantine" / held.held_id
    data = file.read_bytes()
    line = data.index(b"\n")
    if place == "facts":
        data = data.replace(b'"redaction"', b'"redactioN"')
    else:
        at = line + (1 if place == "nonce" else 20)
        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    file.write_bytes(data)
    with pytest.raises(TamperedError, match="was changed after it was sealed"):
        await q.open(held.held_id)


async def test_a_damaged_object_is_listed_and_can_be_dropped(tmp_path):
    q = quarantine(tmp_path)
    await Objects.open(tmp_path / "objects").put("quarantine/9-aa", b"\x00rubbish")
    (held,) = await q.list_held()
    assert (held.held_id, held.reason, held.sequence) == ("9-aa", "damaged", 9)
    with pytest.raises(TamperedError):
        await q.open("9-aa")
    await q.drop("9-aa")
    assert await q.list_held() == []


@pytest.mark.parametrize("name", ["9-aa", "../run/quarantine.key", "", "a/b"])
async def test_an_unknown_id_is_named(tmp_path, name):
    q = quarantine(tmp_path)
    for call in (q.open, q.facts, q.drop):
        with pytest.raises(NotFoundError, match="Nothing is held under"):
            await call(name)
