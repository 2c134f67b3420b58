"""The hash of the token that nats-server's command line gets."""

import pytest

from onward.bus.bcrypt import bcrypt

# Made with libxcrypt's crypt(3), another implementation.
KNOWN = [
    ("", bytes(16), "$2b$04$......................w74bL5gU7LSJClZClCa.Pkz14aTv/XO"),
    ("token-of-a-service", bytes(range(16)), "$2b$04$..CA.uOD/eaGAOmJB.yMBulJH1DC.k8sMIuYnNTjmuaToKcXCmUQu"),
    ("é" * 30, b"\xff" * 16, "$2b$04$999999999999999999999u.RhCaxxDbAg1O6cll7n0BdEsoKeYtHa"),
]


def test_the_tables_begin_with_the_digits_of_pi():
    from onward.bus.bcrypt import _pi_words

    assert _pi_words()[:2] == (0x243F6A88, 0x85A308D3)
    assert len(_pi_words()) == 1042 and _pi_words()[-1] == 0x3AC372E6


@pytest.mark.parametrize(("text", "salt", "hashed"), KNOWN)
def test_the_hash_is_that_of_another_implementation(text: str, salt: bytes, hashed: str):
    assert bcrypt(text, salt) == hashed


def test_each_hash_has_a_salt_of_its_own():
    assert bcrypt("token") != bcrypt("token")
