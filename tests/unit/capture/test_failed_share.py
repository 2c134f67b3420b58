"""The alert when more than a tenth of the newest trajectories could not be stored."""

from onward.capture.collecting.failed_share import FailedShare


class Told:
    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    async def raise_(self, kind, message, severity="warning", **facts):
        self.said.append((kind, severity, message))

    async def resolve(self, kind, message, **facts):
        self.said.append((kind, "resolved", message))


async def test_errors_of_a_tenth_are_an_alert_that_good_work_ends():
    told = Told()
    share = FailedShare(told)  # type: ignore[arg-type]
    await share.follow([True] * 19)
    assert told.said == []  # too few to judge
    await share.follow([False] * 161)  # 19 of 180 are above 10 %
    assert [one[:2] for one in told.said] == [("collection_errors", "critical")]
    assert "19 of the last 180 trajectories could not be stored" in told.said[0][2]
    await share.follow([False] * 20)  # 19 of 200
    assert len(told.said) == 1  # within the slack: it does not flicker
    await share.follow([False] * 5)  # 14 of 200
    assert told.said[1][:2] == ("collection_errors", "resolved")
