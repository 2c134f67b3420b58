from onward.clock import ManualClock
from onward.http import limits
from onward.http.limits import RateLimit, network_of


async def test_as_many_at_once_as_in_a_minute_and_then_one_by_one():
    clock = ManualClock()
    limit = RateLimit(6, clock)
    assert [limit.take_token("a") for _ in range(6)] == [0.0] * 6
    assert limit.take_token("a") == 10.0  # one in ten seconds
    await clock.advance(4)
    assert limit.take_token("a") == 6.0
    await clock.advance(6)
    assert limit.take_token("a") == 0.0
    assert limit.take_token("a") == 10.0
    await clock.advance(3600)
    assert [limit.take_token("a") for _ in range(7)] == [0.0] * 6 + [10.0]  # never more than the six


async def test_names_do_not_take_from_each_other_and_zero_is_no_limit():
    clock = ManualClock()
    limit = RateLimit(1, clock)
    assert (limit.take_token("a"), limit.take_token("b"), limit.take_token("a")) == (0.0, 0.0, 60.0)
    free = RateLimit(0, clock)
    assert [free.take_token("a") for _ in range(1000)] == [0.0] * 1000


async def test_what_is_remembered_is_bounded_and_forgotten_when_it_is_full_again(monkeypatch):
    monkeypatch.setattr(limits, "REMEMBERED", 10)
    clock = ManualClock()
    limit = RateLimit(1, clock)
    for number in range(100):
        limit.take_token(str(number))
    assert len(limit._left) <= 10
    await clock.advance(60)
    limit.take_token("new")
    assert list(limit._left) == ["new"]


def test_a_host_has_all_of_its_ipv6_network():
    assert network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("testclient") == "testclient"
