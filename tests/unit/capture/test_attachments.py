"""Pictures and other binary data: what counts as one, and what is scanned all the same.

The files are made by Pillow, matplotlib and the standard library; the hashes by ``hashlib``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import sqlite3
import wave
from datetime import UTC, datetime
from typing import Any

import pytest
from PIL import Image

from onward import Recorder
from onward.bus.outbox import Outbox
from onward.capture import attachments
from onward.capture.attachments import MIN_CHARS, SUBJECT, separate, size_text
from onward.capture.conversations import exchange
from onward.capture.conversations.messages import conversation
from onward.clock import ManualClock
from onward.contracts import Trajectory, decode

NOISE = random.Random(7).randbytes(3000)


def image(form: str) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (25, 40), NOISE).save(file, form)
    return file.getvalue()


def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(NOISE)
    return file.getvalue()


def paper() -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (25, 40), NOISE).save(file, "PDF")
    return file.getvalue()


FILES = {
    "image/png": image("PNG"),
    "image/jpeg": image("JPEG"),
    "image/gif": image("GIF"),
    "image/webp": image("WEBP"),
    "audio/wav": sound(),
    "application/pdf": paper(),
}
NOUNS = {"image": "picture", "audio": "sound", "application": "document"}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def note(media_type: str, data: bytes) -> str:
    noun, digest = NOUNS[media_type.split("/")[0]], hashlib.sha256(data).hexdigest()
    return f"[{noun} {media_type} {size_text(len(data))} sha256:{digest}]"


def forms(media_type: str, data: bytes) -> list[tuple[Any, Any]]:
    """A file as each API sends it, and what stands in its place."""
    url, told = f"data:{media_type};base64,{b64(data)}", note(media_type, data)
    pairs: list[tuple[Any, Any]] = [
        ({"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": {"url": told}}),
        (f"before {url} after", f"before {told} after"),
    ]
    for names in (("media_type", "data"), ("mime_type", "data"), ("mimeType", "blob"), ("format", "data")):
        declared = media_type.split("/")[1] if names[0] == "format" else media_type
        pairs.append(({names[0]: declared, names[1]: b64(data)}, {names[0]: declared, names[1]: told}))
    pairs.append((f"screenshot: {b64(data)}", f"screenshot: {told}"))
    block, noted = {"mimeType": media_type, "data": b64(data)}, {"mimeType": media_type, "data": told}
    pairs.append((json.dumps([block, 1]), json.dumps([noted, 1])))
    pairs.append(({"images": [b64(data)]}, {"images": [told]}))
    pairs.append(({"screenshot": base64.encodebytes(data).decode()}, {"screenshot": told}))
    return pairs


@pytest.mark.parametrize("media_type", FILES)
def test_a_file_becomes_its_note_in_the_form_of_every_api(media_type):
    data = FILES[media_type]
    for given, expected in forms(media_type, data):
        before = json.dumps(given)
        noted, found = separate({"parts": [given, "text"]})
        assert noted == {"parts": [expected, "text"]} and json.dumps(given) == before
        assert [(one.media_type, one.size, one.is_kept) for one in found] == [(media_type, len(data), True)]
        assert found[0].data == data and found[0].sha256 == hashlib.sha256(data).hexdigest()


def test_a_picture_that_occurs_twice_is_one_attachment():
    part = {"media_type": "image/png", "data": b64(FILES["image/png"])}
    assert len(separate([part, [part]])[1]) == 1


def test_a_picture_of_another_format_than_declared_is_told_as_what_it_is():
    noted, _ = separate({"media_type": "image/png", "data": b64(FILES["image/jpeg"])})
    assert noted["data"] == note("image/jpeg", FILES["image/jpeg"])


SECRET = "the password is " + "correct-horse-battery-staple " * 20


@pytest.mark.parametrize(
    "given",
    [
        f"data:image/png;base64,{b64(SECRET.encode())}",
        {"media_type": "image/png", "data": b64(SECRET.encode())},
        {"type": "image", "mimeType": "image/svg+xml", "data": b64(f"<svg>{SECRET}</svg>".encode())},
        {"media_type": "application/pdf", "data": b64(f"%PDF-1.4\n{SECRET}\n%%EOF".encode())},
        {"token": b64(NOISE)},
        {"media_type": "image/png", "data": "x" * MIN_CHARS + "!"},
        {"media_type": "image/png", "data": b64(FILES["image/png"])[: MIN_CHARS - 1]},
        {"media_type": "image/png", "text": SECRET},
        b64(NOISE),
        "run: " + b64(NOISE),
        json.dumps({"media_type": "image/png", "data": b64(SECRET.encode()), "a": 1}, indent=2),
        '{"media_type": "image/png", "data": ' + "x" * MIN_CHARS,
        "[" * 100_000 + '"image/png"',
    ],
)
def test_text_and_undeclared_data_stay_in_place_and_are_scanned(given):
    noted, found = separate(given)
    assert noted is given and found == []


def test_half_a_surrogate_beside_a_picture_stays_an_escape(tmp_path):
    data = FILES["image/png"]
    told = '{"type": "image/png", "data": "%s", "title": "cut \\ud83d", "more": "é \\ud83d\\ude00 \\udc00"}'
    noted, found = separate({"output": told % b64(data)})
    assert noted["output"] == told.replace("\\ud83d\\ude00", "\U0001f600") % note("image/png", data)
    assert len(found) == 1
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task("Look") as task:
        task.turn(observation="Look", action={"tool_name": "shot"}, result=told % b64(data))
        assert recorder.held() == []
    assert "cut \\\\ud83d" in body_of(tmp_path) and b64(data) not in body_of(tmp_path)


@pytest.mark.parametrize("depth", [300, 520, 900, 5000])
def test_a_picture_in_json_of_any_depth_disturbs_nobody(depth, tmp_path):
    picture = json.dumps({"type": "image/png", "data": b64(FILES["image/png"])})
    deep = f"[{picture}, {'[' * depth}{']' * depth}]"
    noted, found = separate({"output": deep})
    assert len(found) == (noted["output"] != deep)
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task("Look") as task:
        task.turn(observation="Look", action={"tool_name": "shot"}, result=deep)
        task.finish()
        assert recorder.stats().recorded == 1 and recorder.stats().held == 0


HASHES = [hashlib.sha1(bytes([n])).hexdigest() for n in range(20)]
FOLDERS = [f"src/package_{n}/{'Module' * (n % 4)}/file-{n}" for n in range(40)]
SEQUENCE = ["ACGTTGCAACGTAGCTAGCTAGCATCGATCGATCGACTAGCTAGCATCGACTAGCATCGAT"] * 12
PLAIN = {
    "hashes": "\n".join(HASHES),
    "hashes in a row": " ".join(HASHES),
    "a hex dump": NOISE.hex(" ", 16),
    "a hex dump in lines": NOISE.hex("\n", 32),
    "folders": "\n".join(FOLDERS),
    "words": "Every word here has only letters and blanks " * 10,
    "a sequence": "\n".join(SEQUENCE),
    "one long word": "Aa0" * 120,
}
TYPES = [
    "text/plain", "text/markdown", "text/csv", "application/json", "application/x-ndjson", "application/xml",
    "image/svg+xml", "application/x-unheard-of", "chemical/seq-na-fasta",
]  # fmt: skip


@pytest.mark.parametrize("media_type", TYPES)
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_text_beside_its_declared_type_is_never_taken_for_data(kind, media_type):
    for given in (
        {"mimeType": media_type, "text": PLAIN[kind]},
        [{"format": media_type, "a": [PLAIN[kind]]}],
    ):
        assert separate(given) == (given, [])
        assert separate(json.dumps(given)) == (json.dumps(given), [])


@pytest.mark.parametrize("media_type", ["image/png", "application/octet-stream", "audio/wav"])
@pytest.mark.parametrize("kind", sorted(PLAIN.keys() - {"one long word"}))
def test_a_list_beside_a_picture_stays(kind, media_type):
    given = {"mimeType": media_type, "data": b64(FILES["image/png"]), "text": PLAIN[kind]}
    assert separate(given)[0]["text"] == PLAIN[kind]


def test_binary_data_of_a_type_that_may_be_text_stays():
    url = f"data:text/plain;base64,{b64(NOISE)}"
    assert separate([url, {"mimeType": "text/plain", "blob": b64(NOISE)}])[1] == []


def test_a_picture_beside_a_type_of_text_is_a_picture():
    noted, _ = separate({"mimeType": "text/plain", "text": b64(FILES["image/png"])})
    assert noted["text"] == note("image/png", FILES["image/png"])


@pytest.mark.parametrize(
    "data",
    [
        NOISE,
        b"\x89PNG\r\n\x1a\n" + SECRET.encode(),
        FILES["image/png"] + SECRET.encode(),
        FILES["image/png"][:-20] + SECRET.encode(),
        b"\xff\xd8\xff" + SECRET.encode(),
        b"GIF89a\x00\xff" + SECRET.encode(),
    ],
)
def test_binary_data_that_is_not_what_it_declares_is_stored_nowhere(data):
    noted, found = separate({"url": f"data:image/png;base64,{b64(data)}"})
    digest = hashlib.sha256(data).hexdigest()
    assert noted["url"] == f"[unreadable data image/png {size_text(len(data))} sha256:{digest}]"
    assert [one.is_kept for one in found] == [False]


def test_a_secret_hidden_as_a_picture_is_found_by_the_redactor(tmp_path):
    secret = "correct-horse-battery-staple"
    hidden = f"data:image/png;base64,{b64(SECRET.encode())}"
    with Recorder(tmp_path / "o.db", known_secrets=[secret]) as recorder, recorder.task("x") as task:
        task.turn(observation={"parts": [hidden]}, action="next")
    assert hidden not in body_of(tmp_path) and secret not in body_of(tmp_path)


def body_of(folder: Any) -> str:
    with sqlite3.connect(folder / "o.db") as connection:
        return connection.execute("SELECT body FROM queue").fetchone()[0].decode()


@pytest.mark.parametrize("size", [0, 999, 1000, 123_456, 999_499, 999_500, 2_000_000])
def test_sizes_are_told_in_three_digits_or_less(size):
    number, unit = size_text(size).split()
    assert abs(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit] - size) <= 0.05 * max(size, 1)


def test_the_recorder_stores_a_note_and_lists_the_attachment(tmp_path):
    data = FILES["image/png"]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(data)}"}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}]
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task("Look") as task:
        task.turn(observation=exchange.request_observation(asked, None), action="Noise.")
        task.turn(observation={"raw": data}, action="Noise.")
    trajectory = decode(body_of(tmp_path).encode(), Trajectory)
    digest = hashlib.sha256(data).hexdigest()
    assert trajectory.metadata.attachments == [
        {"media_type": "image/png", "bytes": len(data), "sha256": digest}
    ]
    told = note("image/png", data)
    messages = conversation(json.loads(body_of(tmp_path))).messages
    assert messages[0]["content"] == f"What is this?\n{told}" and messages[1]["content"] == "Noise."
    assert trajectory.turns[1].observation.content == {"raw": told}
    assert exchange.text(asked[0]["content"]) == f"What is this?\n{told}"


def test_notes_are_left_alone_by_a_second_separation_and_by_redaction(tmp_path):
    told = note("image/png", FILES["image/png"])
    assert separate({"url": told})[1] == []
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task(told) as task:
        task.turn(observation=told, action=told)
    assert body_of(tmp_path).count(told) == 3


@pytest.mark.parametrize("keep", [True, False])
def test_the_bytes_wait_beside_the_outbox_for_the_object_store(keep, tmp_path):
    data, digest = FILES["image/png"], hashlib.sha256(FILES["image/png"]).hexdigest()
    clock = ManualClock(datetime(2026, 3, 5, 12, tzinfo=UTC))
    picture = {"media_type": "image/png", "data": b64(data)}
    torso = {"media_type": "image/png", "data": b64(NOISE)}
    with Recorder(
        tmp_path / "o.db", known_secrets=[], objects=tmp_path, keep_attachments=keep, clock=clock
    ) as recorder:
        for _ in range(2):
            with recorder.task("Look") as task:
                task.turn(observation={"parts": [picture, torso]}, action="Noise.")
        assert recorder.pending() == 2
    key = f"attachments/20260305/{digest}"
    first = json.loads(body_of(tmp_path))["metadata"]["attachments"][0]
    assert first.get("uri") == (key if keep else None) and first["sha256"] == digest
    waiting = tmp_path / "o.db.attachments"
    assert waiting.exists() is keep
    if keep:
        (attached,) = Outbox(waiting).next_batch()
        assert (attached.subject, attached.msg_id, attached.body) == (SUBJECT, key, data)
        assert waiting.stat().st_mode & 0o077 == 0


def test_a_task_is_searched_for_pictures_once(tmp_path, monkeypatch):
    searched = []

    def search(document: Any, separate: Any = attachments.separate) -> Any:
        searched.append(document["trajectory_id"])
        return separate(document)

    monkeypatch.setattr(attachments, "separate", search)
    with Recorder(tmp_path / "o.db", known_secrets=[], objects=tmp_path) as recorder:
        with recorder.task("Look") as task:
            task.turn(observation={"parts": [b64(FILES["image/png"])]}, action="Noise.")
        assert searched == [task.trajectory_id]


@pytest.mark.parametrize("on_full", ["raise", "block"])
def test_a_full_outbox_of_attachments_stops_no_trajectory_and_is_reported_once(on_full, tmp_path, caplog):
    data = Image.frombytes("RGB", (200, 200), random.Random(1).randbytes(120_000))
    file = io.BytesIO()
    data.save(file, "PNG")
    large = {"media_type": "image/png", "data": b64(file.getvalue())}
    small = {"media_type": "image/gif", "data": b64(FILES["image/gif"])}
    settings: dict[str, Any] = {"objects": tmp_path, "max_bytes": 100_000, "on_full": on_full}
    with Recorder(tmp_path / "o.db", known_secrets=[], **settings) as recorder:
        for picture in (large, large, small, large):
            with recorder.task("Look") as task:
                task.turn(observation={"parts": [picture]}, action="Noise.")
        assert recorder.stats().recorded == 4 and recorder.stats().failed == 0
    with sqlite3.connect(tmp_path / "o.db") as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    listed = [json.loads(body)["metadata"]["attachments"][0] for (body,) in rows]
    assert ["uri" in one for one in listed] == [False, False, True, False]
    assert listed[0]["sha256"] == hashlib.sha256(file.getvalue()).hexdigest()
    told = [one for one in caplog.records if "without the bytes of their pictures" in one.getMessage()]
    assert len(told) == 2  # it had room for the small picture in between


def test_attachments_that_the_agent_lists_itself_stay_before_those_that_are_found(tmp_path):
    own = [{"name": "plan.txt", "bytes": 3}, {"name": "shot.png", "data": b64(FILES["image/png"])}]
    described = {"attachments": own}
    recorder = Recorder(tmp_path / "o.db", known_secrets=[])
    with recorder, recorder.task("Look", metadata=described) as task:
        task.turn(observation={"parts": [b64(FILES["image/gif"])]}, action="Noise.")
    listed = json.loads(body_of(tmp_path))["metadata"]["attachments"]
    assert listed[:2] == [own[0], {"name": "shot.png", "data": note("image/png", FILES["image/png"])}]
    assert {one["media_type"] for one in listed[2:]} == {"image/png", "image/gif"}
