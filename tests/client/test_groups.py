"""A member by the classic protocol, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from sexton.client import apis, groups
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST
from sexton.client.errors import RefusedError
from sexton.client.groups import GroupConsumer, commit_body, commit_offsets
from sexton.types import TopicPartition
from tests.simulated import TOPIC, Story

GROUP = "g"
PLACE = (TOPIC, 0)


def test_what_was_read_before_a_rebalance_is_not_committed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application commits from another task than it polls from. The member was away, another one took over and came
    less far; the member is back, and has not heard yet where to go on."""
    story = Story(1)
    fetch_offsets = groups.fetch_offsets
    members: list[GroupConsumer] = []

    async def commit_before_fetching(client: Client, group: str, places: Sequence[TopicPartition], *rest: Any) -> Any:
        for member in members:
            with suppress(RefusedError):
                await member.commit()
        return await fetch_offsets(client, group, places, *rest)

    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write(*((b"k", b"%d" % number) for number in range(5)))
        await story.client_does(read())

    async def read() -> None:
        client = story.admin.client
        member = GroupConsumer(client, GROUP, [TOPIC], start_at=EARLIEST)
        while member.consumer.positions.get(PLACE) != 5:
            await member.poll(100)
        removed = {"group_id": GROUP, "members": [{"member_id": member.membership.member_id, "reason": ""}]}
        await (await client.coordinator(GROUP)).call(apis.LEAVE_GROUP, removed)
        await commit_offsets(client, GROUP, commit_body(GROUP, {PLACE: 2}))
        while member.membership.is_joined:
            await member.poll(100)
        monkeypatch.setattr(groups, "fetch_offsets", commit_before_fetching)
        members.append(member)
        again = await member.poll(100)
        assert [one.record.value for one in again] == [b"2", b"3", b"4"]
        await member.close()

    story.run(told())
