import json
import stat

import pytest

from onward.capture import provenance
from onward.errors import ConfigError, NotFoundError

RECORD = {
    "generation_id": "g1",
    "continues": None,
    "prompt_ids": [1, 2, 3],
    "token_ids": [4, 5],
    "logprobs": [-0.5, -1.0],
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "finish_reason": "stop",
    "model_digest": "d" * 64,
}
KEY = bytes(32)


def _signed(**changes):
    record = {**RECORD, **changes}
    return {**record, "signature": provenance.sign(record, KEY)}


def test_a_signed_record_verifies_also_after_other_json_libraries():
    record = _signed()
    assert provenance.verify(record, KEY)
    integers = json.loads(json.dumps(record).replace("1.0", "1"))  # JavaScript writes 1 for 1.0
    assert integers["temperature"] == 1 and provenance.verify(integers, KEY)
    without_nulls = {name: value for name, value in record.items() if value is not None}
    assert provenance.verify(without_nulls, KEY)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [4, 6]},
        {"logprobs": [-0.5, -1.0000001]},
        {"prompt_ids": [1, 2]},
        {"temperature": 0.9},
        {"model_digest": "e" * 64},
        {"continues": "g0"},
        {"generation_id": "g2"},
        {"added": "field"},
    ],
)
def test_any_change_breaks_the_signature(change):
    assert not provenance.verify({**_signed(), **change}, KEY)


def test_another_key_no_signature_and_odd_values_do_not_verify():
    assert not provenance.verify(_signed(), bytes([1] * 32))
    assert not provenance.verify(RECORD, KEY)
    assert not provenance.verify({**_signed(), "signature": 5}, KEY)
    assert not provenance.verify({**_signed(), "signature": "ü"}, KEY)
    assert not provenance.verify({**_signed(), "token_ids": ["x"]}, KEY)
    assert not provenance.verify({**_signed(), "logprobs": [float("nan")]}, KEY)
    assert not provenance.verify({**_signed(), "temperature": "warm"}, KEY)


def test_a_record_whose_tokens_were_dropped_does_not_verify():
    assert not provenance.verify(_signed(tokens_void=True, token_ids=[], logprobs=[]), KEY)


def test_the_key_is_made_once_and_private(tmp_path):
    with pytest.raises(NotFoundError):
        provenance.load_key(tmp_path)
    key = provenance.load_key(tmp_path, create=True)
    assert len(key) == 32
    assert provenance.load_key(tmp_path, create=True) == provenance.load_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "gateway.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.key"]
    (tmp_path / "gateway.key").write_text("short")
    with pytest.raises(ConfigError):
        provenance.load_key(tmp_path)
