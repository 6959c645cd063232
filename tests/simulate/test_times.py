"""Who begins to read at a time misses nothing, and the judge would see it."""

from __future__ import annotations

import pytest

from sexton.client import consumer as consuming
from sexton.log.log import Log
from sexton.log.types import TimedOffset
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.final import FoundLog, check_times
from tests.simulated import TOPIC, Story

PLACE = (TOPIC, 0)


def judge_times(story: Story) -> None:
    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        for number in range(5):
            await story.write((b"k", b"%d" % number))
        await story.client_does(check())

    async def check() -> None:
        fetched = await consuming.fetch(story.admin.client, *PLACE, 0)
        log = FoundLog(0)
        log.values = {each.offset: each.value or b"" for each in fetched.records}
        log.times_ms = {each.offset: each.timestamp_ms for each in fetched.records}
        assert len(log.values) == 5
        await check_times(story.admin.client, PLACE, log)

    story.run(told())


def test_the_first_record_of_a_time_is_found() -> None:
    judge_times(Story(1))


@pytest.mark.parametrize("by", [1, -1], ids=["one is passed over", "an older one is in the way"])
def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    find = Log.offset_for_time

    def wrong(log: Log, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        found = find(log, timestamp_ms, end_offset)
        return found and found._replace(offset=min(4, max(0, found.offset + by)))

    monkeypatch.setattr(Log, "offset_for_time", wrong)
    with pytest.raises(SimulationFailure, match="the first record not older"):
        judge_times(Story(1))
