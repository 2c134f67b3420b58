"""Checksums of crypto wallets and of a passport's machine-readable zone: pure functions from text to bool.

Only the optional kinds use them. Python has no Keccak-256, only the later SHA-3 with another padding.
"""

from __future__ import annotations

import hashlib

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_CONSTANTS = (1, 0x2BC830A3)
_MASK = (1 << 64) - 1
_ROTATIONS = (1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 2, 14, 27, 41, 56, 8, 25, 43, 62, 18, 39, 61, 20, 44)
_LANES = (10, 7, 11, 17, 18, 3, 5, 16, 8, 21, 24, 4, 15, 23, 19, 13, 12, 2, 20, 14, 22, 9, 6, 1)
_RATE = 136


def bitcoin_base58(text: str) -> bool:
    """Base58Check of 25 bytes with version 0 or 5 (pay to public key hash or script hash)."""
    if not 26 <= len(text) <= 35 or not set(_BASE58).issuperset(text):
        return False
    number = 0
    for c in text:
        number = number * 58 + _BASE58.index(c)
    if number >= 1 << 200:
        return False
    data = number.to_bytes(25, "big")
    check = hashlib.sha256(hashlib.sha256(data[:21]).digest()).digest()
    return data[0] in (0, 5) and check[:4] == data[21:]


def bitcoin_bech32(text: str) -> bool:
    """BIP-173 and BIP-350: the checksum of ``bc1…`` is that of bech32 or bech32m; one case only."""
    low = text.lower()
    if text not in (low, text.upper()) or not low.startswith("bc1") or not 14 <= len(text) <= 90:
        return False
    if not set(_BECH32).issuperset(low[3:]):
        return False
    check = 1
    for value in [3, 3, 0, 2, 3, *map(_BECH32.index, low[3:])]:  # "bc", expanded as BIP-173 says
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for i, term in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= term if top >> i & 1 else 0
    return check in _BECH32_CONSTANTS


def ethereum(text: str) -> bool:
    """EIP-55: a letter is upper case where Keccak-256 of the lower-case address has a digit from 8 on."""
    body = text[2:]
    if len(body) != 40 or text[:2] != "0x" or not set("0123456789abcdefABCDEF").issuperset(body):
        return False
    digest = keccak256(body.lower().encode()).hex()
    return all(not c.isalpha() or c.isupper() == (digest[i] >= "8") for i, c in enumerate(body))


def keccak256(message: bytes) -> bytes:
    """Keccak[512] with the padding of the original submission (10*1), as Ethereum uses it."""
    padded = message + b"\x01" + b"\x00" * (-(len(message) + 1) % _RATE)
    padded = padded[:-1] + bytes([padded[-1] | 0x80])
    state = [0] * 25
    for at in range(0, len(padded), _RATE):
        for i in range(_RATE // 8):
            state[i] ^= int.from_bytes(padded[at + 8 * i : at + 8 * i + 8], "little")
        _permute(state)
    return b"".join(lane.to_bytes(8, "little") for lane in state[:4])


def _permute(a: list[int]) -> None:
    """Keccak-f[1600]: theta, rho and pi, chi, iota; 24 rounds."""
    register = 1
    for _ in range(24):
        columns = [a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20] for x in range(5)]
        for x in range(5):
            parity = columns[x - 1] ^ _rotated(columns[(x + 1) % 5], 1)
            for y in range(0, 25, 5):
                a[x + y] ^= parity
        moved = a[1]
        for lane, by in zip(_LANES, _ROTATIONS, strict=True):
            a[lane], moved = _rotated(moved, by), a[lane]
        for y in range(0, 25, 5):
            row = a[y : y + 5]
            for x in range(5):
                a[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5] & _MASK)
        for j in range(7):
            if register & 1:
                a[0] ^= 1 << ((1 << j) - 1)
            register = register << 1 ^ (0x171 if register & 0x80 else 0)


def _rotated(lane: int, by: int) -> int:
    return (lane << by | lane >> (64 - by)) & _MASK


def passport_line(text: str) -> bool:
    """Second line of a passport (ICAO 9303, TD3): check digits of number, birth, expiry and whole line."""
    if len(text) != 44 or not set("<0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ").issuperset(text):
        return False
    parts = ((text[0:9], text[9]), (text[13:19], text[19]), (text[21:27], text[27]))
    whole = text[0:10] + text[13:20] + text[21:43]
    return all(_icao(part) == digit for part, digit in (*parts, (whole, text[43])))


def _icao(text: str) -> str:
    """Weights 7, 3, 1; letters count from 10, the filler 0."""
    values = [0 if c == "<" else int(c, 36) for c in text]
    return str(sum(value * (7, 3, 1)[i % 3] for i, value in enumerate(values)) % 10)
