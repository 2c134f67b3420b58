"""The plan, on configurations worked out by hand."""

from __future__ import annotations

import pytest
from nats.js import api

from onward.bus.buckets import BUCKETS, bucket_config
from onward.bus.streams import DAY, STREAMS, compare, covers, sized
from onward.contracts import subjects


def differences(name: str, **changes) -> dict[str, tuple[bool, str]]:
    declared = STREAMS[name].config()
    return {d.field: (d.loses_data, d.migration) for d in compare(declared, declared.evolve(**changes))}


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_stream_as_declared_has_no_difference(name):
    assert differences(name) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_msgs": 1000}, {"max_msgs": (False, "update")}),
        (
            {"max_msgs": 1000, "discard": api.DiscardPolicy.OLD},
            {"max_msgs": (True, "update"), "discard": (True, "update")},
        ),
        ({"max_age": 7 * DAY}, {"max_age": (True, "update")}),
        ({"max_age": 0}, {"max_age": (False, "keep")}),
        ({"max_age": 60 * DAY}, {"max_age": (False, "keep")}),
        ({"max_bytes": -1}, {"max_bytes": (False, "update")}),
        ({"max_bytes": 1 << 40}, {"max_bytes": (False, "keep")}),
        ({"max_msg_size": 1024}, {"max_msg_size": (True, "update")}),
        ({"max_msg_size": -1}, {}),
        ({"duplicate_window": 120.0}, {"duplicate_window": (False, "update")}),
        ({"storage": api.StorageType.MEMORY}, {"storage": (True, "manual")}),
        ({"retention": api.RetentionPolicy.WORK_QUEUE}, {"retention": (True, "manual")}),
        ({"no_ack": True}, {"no_ack": (True, "manual")}),
        ({"persist_mode": api.PersistMode.ASYNC}, {"persist_mode": (True, "manual")}),
        ({"deny_delete": True}, {"deny_delete": (False, "manual")}),
        ({"subjects": ["something.else"]}, {"subjects": (True, "update")}),
        ({"max_msgs_per_subject": 5}, {"max_msgs_per_subject": (True, "update")}),
    ],
)
def test_each_difference_says_whether_it_loses_data_and_how_it_would_be_removed(changes, expected):
    assert differences("RL_TRAJECTORIES", **changes) == expected


def test_a_missing_stream_is_one_difference():
    (only,) = compare(STREAMS["RL_DEPLOY"].config(), None)
    assert (only.field, only.loses_data, only.migration) == ("stream", True, "create")


def test_the_audit_log_must_be_append_only():
    declared = STREAMS["RL_AUDIT"].config()
    found = compare(declared, declared.evolve(deny_delete=False, deny_purge=False))
    assert [(d.field, d.migration) for d in found] == [("deny_delete", "update")]


def test_the_request_reply_subject_is_in_no_declared_stream():
    for spec in STREAMS.values():
        assert not any(covers(s, subjects.TRAINING_STATUS_REQUEST) for s in spec.subjects), spec.name


def test_every_declared_stream_waits_instead_of_dropping_and_keeps_files():
    configs = [s.config() for s in STREAMS.values()] + [bucket_config(n, b) for n, b in BUCKETS.items()]
    for config in configs:
        assert config.discard == api.DiscardPolicy.NEW
        assert config.retention == api.RetentionPolicy.LIMITS
        assert config.storage == api.StorageType.FILE
        assert config.max_bytes is not None and config.max_bytes > 0
        assert config.persist_mode is None and not config.no_ack
    assert STREAMS["RL_TRAINING"].max_age == 90 * DAY


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a.>", False),
        ("a.>", "a.*", True),
        ("a.b", "a.*", False),
        (">", "a", True),
    ],
)
def test_covers_follows_nats_wildcards(pattern, subject, expected):
    assert covers(pattern, subject) is expected


def test_byte_limits_follow_the_expected_volume_and_never_fall_below_the_built_in_ones() -> None:
    limits = {name: spec.max_bytes for name, spec in sized(100.0).items()}
    # 100 GB a month are 100e9 bytes in the 30 days that a stream keeps them; a quarter is to spare.
    assert 125_000_000_000 <= limits["RL_TRAJECTORIES"] < 125_002_000_000
    assert 31_250_000_000 <= limits["RL_REWARDS"] < 31_252_000_000
    assert limits["RL_AUDIT"] == STREAMS["RL_AUDIT"].max_bytes, "who did what does not follow the volume"
    assert sized(3.0) == dict(STREAMS), "the default setting changes nothing"
    assert sized(0.001) == dict(STREAMS)
    assert sized(3.0, 64 << 20)["RL_TRAJECTORIES"].max_bytes == 64 << 20
    assert sized(100.0, 1 << 40)["RL_TRAJECTORIES"].max_bytes == 1 << 40
