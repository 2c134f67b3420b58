"""Recognises pictures, sounds, films and PDFs by their magic bytes and their structure. Pure.

Magic bytes alone prove nothing: a text behind them would go to the object store unseen. So the chain of
frames, pages, boxes or chunks of a format must lead to the end of the data. A file that was cut is not
recognised.
"""

from __future__ import annotations

from collections.abc import Callable

_EBML_HEADER, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_BITRATES = {
    (3, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""(Version, layer) as in a frame's header → kbit/s by index, from 1. Version 0 (MPEG 2.5) is as 2."""
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_CODECS = (
    b"\x01vorbis", b"OpusHead", b"\x7fFLAC", b"Speex   ", b"\x80theora", b"fishead\0", b"BBCD\0", b"OVP80",
)  # fmt: skip
"""First bytes of the first page of an Ogg file."""
_FRAMES_OF_JPEG = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def media_type(data: bytes) -> str | None:
    """Returns the type of a whole file of a known format; None for other data."""
    for magic, offset, read in _FORMATS:
        if data[offset : offset + len(magic)] == magic:
            try:
                return read(data)
            except IndexError:  # the data ended within a header
                return None
    return None


def _png(data: bytes) -> str | None:
    """Follows the chunks (PNG, section 5): IHDR first, IEND last and at the end of the data."""
    at, kind = 8, b""
    while at + 12 <= len(data) and kind != b"IEND":
        kind = data[at + 4 : at + 8]
        if at == 8 and kind != b"IHDR":
            return None
        at += 12 + _big(data, at, 4)
    return "image/png" if kind == b"IEND" and at == len(data) else None


def _jpeg(data: bytes) -> str | None:
    """Follows the segments to the first scan; the end must be marked."""
    at, has_frame = 2, False
    while data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # a fill byte
            at += 1
            continue
        if kind == 0xDA:
            return "image/jpeg" if has_frame and data.rstrip(b"\0")[-2:] == b"\xff\xd9" else None
        has_frame = has_frame or kind in _FRAMES_OF_JPEG
        at += 2 + _big(data, at + 2, 2)
    return None


def _gif(data: bytes) -> str | None:
    """Follows the blocks to the trailer, which must be the last byte; there must be a picture."""
    at, has_picture = 13 + _colours(data[10]), False
    while data[at] != 0x3B:
        if data[at] == 0x2C:
            has_picture = True
            at += 11 + _colours(data[at + 9])  # descriptor, colours, size of a code
        elif data[at] == 0x21:
            at += 2
        else:
            return None
        while data[at]:  # blocks with their sizes
            at += 1 + data[at]
        at += 1
    return "image/gif" if has_picture and at == len(data) - 1 else None


def _colours(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _riff(data: bytes) -> str | None:
    """Follows the chunks to the end, which has at most one byte of padding."""
    kinds = set()
    at, end = 12, 8 + int.from_bytes(data[4:8], "little")
    if len(data) not in (end, end + 1):
        return None
    while at + 8 <= end:
        kinds.add(data[at : at + 4])
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    if at not in (end, end + 1):
        return None
    if data[8:12] == b"WAVE":
        return "audio/wav" if kinds >= {b"fmt ", b"data"} else None
    is_picture = data[8:12] == b"WEBP" and kinds & {b"VP8 ", b"VP8L", b"ANMF"}
    return "image/webp" if is_picture else None


def _pdf(data: bytes) -> str | None:
    tail = data[-2048:]
    return "application/pdf" if b"startxref" in tail and b"%%EOF" in tail and b" obj" in data else None


def _boxes(data: bytes) -> str | None:
    """Follows the boxes (ISO 14496-12) to the end; the metadata must be one of them."""
    at, kinds = 0, set()
    while at + 8 <= len(data):
        kinds.add(data[at + 4 : at + 8])
        size = _big(data, at, 4)
        if size == 1:
            size = _big(data, at + 8, 8)
        elif size == 0:  # to the end
            size = len(data) - at
        if size < 8:
            return None
        at += size
    if at != len(data) or not kinds & {b"moov", b"moof", b"meta"}:
        return None
    brand = data[8:12]
    kinds_of_brand = {
        b"avif": "image/avif",
        b"avis": "image/avif",
        b"heic": "image/heic",
        b"M4A ": "audio/mp4",
    }
    return kinds_of_brand.get(brand, "video/mp4")


def _ogg(data: bytes) -> str | None:
    """Follows the pages (RFC 3533) to the end; the first one must name a codec."""
    at = 0
    while at < len(data):
        if data[at : at + 5] != b"OggS\0":
            return None
        sizes = data[at + 27 : at + 27 + data[at + 26]]
        if at == 0 and not data.startswith(_CODECS, 27 + len(sizes)):
            return None
        at += 27 + data[at + 26] + sum(sizes)
    return "audio/ogg" if at == len(data) else None


def _flac(data: bytes) -> str | None:
    """Follows the blocks of metadata, STREAMINFO first, to a frame."""
    at, is_last = 4, False
    if data[4] & 0x7F or _big(data, 5, 3) != 34 or _big(data, 8, 2) < 16:
        return None
    while not is_last:
        is_last = bool(data[at] & 0x80)
        at += 4 + _big(data, at + 1, 3)
    return "audio/flac" if data[at] == 0xFF and data[at + 1] & 0xFC == 0xF8 else None


def _ebml(data: bytes) -> str | None:
    """Follows the header and the segments (RFC 8794) to the end. A live stream does not know its size."""
    size, at = _size(data, 4)
    head, at = data[at : at + size], at + size
    if b"\x42\x82" not in head or not (b"webm" in head or b"matroska" in head):
        return None
    has_segment = False
    while at < len(data):
        kind = data[at : at + 4]
        if kind != _SEGMENT and data[at] != 0xEC:  # 0xEC: padding
            return None
        has_segment = has_segment or kind == _SEGMENT
        at += 4 if kind == _SEGMENT else 1
        unknown = data[at] in (0xFF, 0x01) and set(data[at + 1 : at + 8]) == {0xFF}
        size, at = _size(data, at)
        at = len(data) if unknown and kind == _SEGMENT else at + size
    return "video/webm" if has_segment and at == len(data) else None


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Reads a size of EBML; returns it and the place behind it."""
    length = 9 - data[at].bit_length()
    return _big(data, at, length) & ~(1 << 7 * length), at + length


def _id3(data: bytes) -> str | None:
    """Skips the tag (ID3v2, section 3.1) and its padding; frames must follow."""
    if data[3] not in (2, 3, 4) or data[4] == 0xFF or any(byte & 0x80 for byte in data[6:10]):
        return None
    size = sum(byte << 7 * (3 - place) for place, byte in enumerate(data[6:10]))
    at = 10 + size + (10 if data[5] & 0x10 else 0)
    while data[at] == 0:
        at += 1
    return _mpeg(data, at)


def _mpeg(data: bytes, at: int = 0) -> str | None:
    """Follows the frames of an MPEG sound to the end, where a tag (ID3v1) may be. The last may be cut."""
    frames = 0
    end = len(data) - 128 if data[-128:-125] == b"TAG" else len(data)
    while at + 4 <= end:
        size = _frame_size(data[at : at + 4])
        if size is None:
            break
        frames, at = frames + 1, at + size
    is_whole = at >= end or not data[at:end].strip(b"\0")
    return "audio/mpeg" if frames > 1 and is_whole else None


def _frame_size(header: bytes) -> int | None:
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    bitrate, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if header[0] != 0xFF or header[1] < 0xE0 or version == 1 or not layer or bitrate in (0, 15) or rate == 3:
        return None
    bits = 1000 * _BITRATES[version or 2, layer][bitrate - 1]
    if layer == 3:
        return (12 * bits // _RATES[version][rate] + padding) * 4
    samples = 72 if layer == 1 and version != 3 else 144
    return samples * bits // _RATES[version][rate] + padding


def _big(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], "big")


_FORMATS: list[tuple[bytes, int, Callable[[bytes], str | None]]] = [
    (b"\x89PNG\r\n\x1a\n", 0, _png),
    (b"\xff\xd8\xff", 0, _jpeg),
    (b"GIF87a", 0, _gif),
    (b"GIF89a", 0, _gif),
    (b"RIFF", 0, _riff),
    (b"%PDF-", 0, _pdf),
    (b"ftyp", 4, _boxes),
    (b"OggS", 0, _ogg),
    (b"fLaC", 0, _flac),
    (_EBML_HEADER, 0, _ebml),
    (b"ID3", 0, _id3),
    (b"\xff", 0, _mpeg),
]
"""Magic bytes, their place, and the function that reads the structure."""
