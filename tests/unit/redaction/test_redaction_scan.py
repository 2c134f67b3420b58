"""The shortcuts of the scan find what running every rule over everything would find."""

import random

import pytest
import re2

from onward.redaction import RULES, scan
from onward.redaction.rule import Hit

EXAMPLES = [text for rule in RULES for text, _ in rule.positives]
FILLING = ["nothing here", "", "x" * 300, "a\nb", "total: 12", "é", '{"k": 1}', "20:18:09", "the author said"]


def slow(buffer: bytes) -> set[Hit]:
    """All rules, no filter, no gate."""
    return {hit for compiled in scan._COMPILED for hit in scan._run(compiled, buffer)}


@pytest.mark.parametrize("seed", range(6))
def test_filter_and_gates_lose_nothing(seed):
    draw = random.Random(seed)
    texts = draw.choices(FILLING, k=60) + draw.sample(EXAMPLES, k=12 + seed * 4)
    draw.shuffle(texts)
    buffer = "\x00".join(texts).encode()
    assert set(scan.scan_plain(buffer)) == slow(buffer)


def test_each_example_alone_gets_through_filter_and_gates():
    for text in EXAMPLES:
        buffer = b"some other text\x00" + text.encode() + b"\x00" + b"and more of it, " * 40
        assert set(scan.scan_plain(buffer)) == slow(buffer), text


def test_every_rule_names_checks_that_exist_and_never_crosses_texts():
    assert len(scan._COMPILED) == len(RULES)
    for text in EXAMPLES:
        middle = len(text) // 2
        buffer = (text[:middle] + "\x00" + text[middle:]).encode()
        for hit in scan.scan_plain(buffer):
            assert b"\x00" not in buffer[hit.start : hit.end], hit


def test_gates_stand_for_all_their_rules():
    for gate in scan._GATES:
        assert gate.members
        for i in gate.members:
            for text, _ in RULES[i].positives:
                if re2.search(RULES[i].pattern.encode("latin-1"), text.encode(), _latin1()):
                    assert gate.expression.search(text.encode()), RULES[i].pattern


def _latin1():
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return options
