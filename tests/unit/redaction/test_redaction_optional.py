"""Kinds that are off unless asked for, and an entity finder that plugs in."""

import pytest

from onward.contracts.examples import TRAJECTORY
from onward.errors import ConfigError, RedactionError
from onward.redaction import redact, redact_trajectory
from onward.redaction.judging import wallets
from onward.redaction.rules.personal_optional import OPTIONAL, entities, optional

EXAMPLES = [(kind, rule) for kind, rules in OPTIONAL.items() for rule in rules]


@pytest.mark.parametrize("kind,rule", EXAMPLES)
def test_an_optional_kind_goes_when_asked_for_and_only_then(kind, rule):
    for text, secret in rule.positives:
        found = redact([text], also=[optional([kind])])
        assert found.document == [text.replace(secret, f"<{kind}:1>")]
        assert redact(found.document, also=[optional([kind])]).document == found.document
        assert kind not in redact([text]).counts
    for text in rule.negatives:
        assert kind not in redact([text], also=[optional([kind])]).counts


def test_an_unknown_kind_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'PLATE'.*WALLET"):
        optional(["PLATE"])


@pytest.mark.parametrize(
    "check,right,wrong",
    [
        # the address of the first block; one letter changed
        (wallets.bitcoin_base58, "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb"),
        # BIP-173 and BIP-350
        (
            wallets.bitcoin_bech32,
            "BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4",
            "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5",
        ),
        (
            wallets.bitcoin_bech32,
            "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
            "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj1",
        ),
        # EIP-55
        (
            wallets.ethereum,
            "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
            "0xFB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        ),
        (
            wallets.ethereum,
            "0x52908400098527886E0F7030069857D2E4169EE7",
            "0x52908400098527886E0F7030069857D2E4169Ee7",
        ),
        # ICAO 9303, part 4
        (
            wallets.passport_line,
            "L898902C36UTO7408122F1204159ZE184226B<<<<<10",
            "L898902C36UTO7408112F1204159ZE184226B<<<<<10",
        ),
    ],
)
def test_examples_of_the_standards(check, right, wrong):
    assert check(right) and not check(wrong)
    assert not check("") and not check(right[:-1]) and not check("é" * len(right))


def test_keccak_is_that_of_ethereum_and_no_sha3():
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert wallets.keccak256(b"").hex() == empty
    abc = "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"
    assert wallets.keccak256(b"abc").hex() == abc


def _names(text: str) -> list[tuple[int, int, str]]:
    at = text.find("Ada Lövelace")
    return [(at, at + len("Ada Lövelace"), "PERSON")] if at >= 0 else []


def test_an_entity_finder_sees_texts_and_its_spans_go_like_any_other_hit():
    found = redact({"a": "é Ada Lövelace!", "b": ["no one", "by Ada Lövelace"]}, also=[entities(_names)])
    assert found.document == {"a": "é <PERSON:1>!", "b": ["no one", "by <PERSON:1>"]}


def test_an_entity_finder_that_fails_holds_the_document_back():
    def broken(text: str) -> list[tuple[int, int, str]]:
        raise ValueError(text)

    with pytest.raises(RedactionError) as caught:
        redact("my secret text", also=[entities(broken)])
    assert "secret text" not in str(caught.value)


def test_a_trajectory_takes_optional_kinds_too():
    document = {**TRAJECTORY, "metadata": {**TRAJECTORY["metadata"], "note": "DOB: 1980-08-12"}}
    clean = redact_trajectory(document, also=[optional(["DATE_OF_BIRTH"])]).document
    assert clean["metadata"]["note"] == "DOB: <DATE_OF_BIRTH:1>"
