"""Which bytes are a whole file of a known format.

Pictures are made by Pillow, and sounds come with pygame. The other files are put together here by the
standards: RFC 3533 (Ogg), RFC 9639 (FLAC), RFC 8794 (EBML), ISO 14496-12 (MP4), ISO 11172-3 (MP3), ID3v2.
"""

from __future__ import annotations

import base64
import io
import random
import struct
import wave
from pathlib import Path

import pytest
from PIL import Image

from onward.capture.attachments import separate
from onward.capture.media import media_type

NOISE = random.Random(3).randbytes(3000)
SECRET = b"password=correct-horse-battery-staple " * 40


def image(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (25, 40), NOISE).save(file, form, **options)
    return file.getvalue()


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(1)
        out.setframerate(8000)
        out.writeframes(NOISE)
    return file.getvalue()


def page(body: bytes, number: int) -> bytes:
    """A page of Ogg: lacing values of 255, and the rest."""
    lacing = bytes([255] * (len(body) // 255) + [len(body) % 255])
    return b"OggS\0\2" + struct.pack("<qIII", 0, 7, number, 0) + bytes([len(lacing)]) + lacing + body


def ogg(first: bytes = b"OpusHead\1\1" + NOISE[:9]) -> bytes:
    return page(first, 0) + page(NOISE[:2000], 1) + page(NOISE[2000:], 2)


def frames(count: int = 8) -> bytes:
    """MPEG 1, layer III, 128 kbit/s, 44.1 kHz: 144 * 128000 / 44100 = 417 bytes each."""
    return b"".join(b"\xff\xfb\x90\x64" + NOISE[:413] for _ in range(count))


def id3(tag: bytes, size: int | None = None) -> bytes:
    size = len(tag) if size is None else size
    return b"ID3\4\0\0" + bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0)) + tag


def flac(size: int = 34) -> bytes:
    info = b"\0" + size.to_bytes(3, "big") + struct.pack(">HH", 4096, 4096) + NOISE[:30]
    return b"fLaC" + info + b"\x84" + (40).to_bytes(3, "big") + NOISE[:40] + b"\xff\xf8" + NOISE


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body


def mp4(brand: bytes = b"isom") -> bytes:
    large = struct.pack(">I4sQ", 1, b"free", 16 + 30) + NOISE[:30]
    return box(b"ftyp", brand + b"\0\0\2\0") + large + box(b"moov", NOISE[:300]) + box(b"mdat", NOISE)


def element(kind: str, body: bytes) -> bytes:
    return bytes.fromhex(kind) + struct.pack(">Q", len(body) | 1 << 56) + body


HEAD = element("1a45dfa3", element("4282", b"webm"))
FILES = {
    "PNG": (image("PNG"), "image/png"),
    "JPEG": (image("JPEG"), "image/jpeg"),
    "progressive JPEG": (image("JPEG", progressive=True), "image/jpeg"),
    "GIF": (image("GIF"), "image/gif"),
    "GIF in motion": (
        image("GIF", save_all=True, append_images=[Image.new("RGB", (25, 40))], comment=b"of noise"),
        "image/gif",
    ),
    "WEBP": (image("WEBP"), "image/webp"),
    "WEBP with a profile": (image("WEBP", icc_profile=NOISE, lossless=True), "image/webp"),
    "AVIF": (image("AVIF"), "image/avif"),
    "PDF": (image("PDF"), "application/pdf"),
    "WAV": (wav(), "audio/wav"),
    "MP3": (frames(), "audio/mpeg"),
    "MP3, cut": (frames()[:-100], "audio/mpeg"),
    "MP3 with a tag before": (id3(b"TIT2" + bytes(300)) + frames(), "audio/mpeg"),
    "MP3 with a tag behind": (frames() + b"TAG" + bytes(125), "audio/mpeg"),
    "Opus": (ogg(), "audio/ogg"),
    "Vorbis": (ogg(b"\1vorbis" + NOISE[:20]), "audio/ogg"),
    "FLAC": (flac(), "audio/flac"),
    "MP4": (mp4(), "video/mp4"),
    "M4A": (mp4(b"M4A "), "audio/mp4"),
    "WebM": (HEAD + element("18538067", NOISE), "video/webm"),
    "WebM, live": (HEAD + bytes.fromhex("1853806701ffffffffffffff") + NOISE, "video/webm"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_is_recognised(name):
    data, expected = FILES[name]
    assert media_type(data) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ogg", "audio/ogg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("mp3", "audio/mpeg"),
        ("wav", "audio/wav"),
    ],
)
def test_sounds_of_real_encoders_are_recognised(name, expected):
    pygame = pytest.importorskip("pygame")
    file = Path(pygame.__file__).parent / "examples" / "data" / f"house_lo.{name}"
    assert media_type(file.read_bytes()) == expected


HIDDEN = {
    "after ID3": b"ID3\3" + SECRET,
    "after the size of a tag": id3(b"TIT2") + SECRET,
    "in a tag without frames": id3(SECRET),
    "in a tag with one frame": id3(SECRET) + frames(1),
    "with a size that is none": b"ID3\4\0\0\xff\xff\xff\xff" + SECRET + frames(),
    "after a frame's header": b"\xff\xfb\x90\x64" + SECRET,
    "after the frames": frames() + SECRET,
    "after OggS": b"OggS" + SECRET,
    "after a header of Ogg": b"OggS\0\2" + bytes(20) + b"\1\xff" + SECRET,
    "in a page of no codec": page(SECRET, 0) + page(NOISE, 1),
    "after the pages": ogg() + SECRET,
    "after fLaC": b"fLaC" + SECRET,
    "after a size of STREAMINFO": b"fLaC\x80\0\0\x22" + SECRET,
    "in a block of the wrong size": flac(35) + SECRET,
    "after ftyp": b"\0\0\0\x18ftypisom" + SECRET,
    "in a box without metadata": box(b"ftyp", b"isom") + box(b"mdat", SECRET),
    "after the boxes": mp4() + SECRET,
    "in a box of size 2": box(b"ftyp", b"isom") + b"\0\0\0\2moov" + SECRET,
    "after EBML's first bytes": b"\x1aE\xdf\xa3" + SECRET,
    "in EBML of no known type": element("1a45dfa3", element("4282", b"text")) + element("18538067", SECRET),
    "in an element of another kind": HEAD + element("ec", NOISE) + element("1654ae6b", SECRET),
    "after the segment": HEAD + element("18538067", NOISE) + SECRET,
    "after WAVE": b"RIFF" + struct.pack("<I", 4 + len(SECRET)) + b"WAVE" + SECRET,
    "after WEBP": b"RIFF" + struct.pack("<I", 4 + len(SECRET)) + b"WEBP" + SECRET,
    "in a JPEG": b"\xff\xd8\xff" + SECRET + b"\xff\xd9",
    "in a JPEG without a frame": b"\xff\xd8\xff\xe0\0\4\0\0\xff\xda\0\2" + SECRET + b"\xff\xd9",
    "in a GIF": b"GIF89a\x01\0\x01\0\0\0\0" + SECRET + b";",
    "in a comment of a GIF": b"GIF89a\x01\0\x01\0\0\0\0!\xfe\x26" + SECRET[:38] + b"\0;",
    "in a PDF": b"%PDF-1.4\n\xff\0" + SECRET + b"%%EOF",
    "in a PNG": b"\x89PNG\r\n\x1a\n" + SECRET,
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_text_behind_magic_bytes_is_no_file_of_that_format(name):
    assert media_type(HIDDEN[name]) is None


@pytest.mark.parametrize("name", sorted(HIDDEN.keys() - {"in a comment of a GIF"}))
def test_text_behind_magic_bytes_never_goes_to_the_store(name):
    data = HIDDEN[name].ljust(300, b"x")
    encoded = base64.b64encode(data).decode()
    for given in (f"data:audio/mpeg;base64,{encoded}", {"mimeType": "image/png", "data": encoded}, [encoded]):
        assert not any(one.is_kept for one in separate(given)[1])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_ends_early_raises_nothing(name):
    data, _ = FILES[name]
    for end in [*range(100), *range(100, len(data), 97)]:
        assert media_type(data[:end]) in (None, FILES[name][1])


def test_no_data_raises_anything():
    noise = random.Random(5)
    for data, _ in FILES.values():
        for _ in range(100):
            changed = bytearray(data)
            for _ in range(noise.randint(1, 4)):
                changed[noise.randrange(min(len(data), 200))] = noise.randrange(256)
            media_type(bytes(changed))
            media_type(bytes(changed[: noise.randrange(60)]))
