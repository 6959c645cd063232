"""A bug in one partition, put there by the test: the others go on, it is counted, and is over when the bug is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sexton.broker.broker import Broker
from sexton.broker.compaction.publish import Publisher
from sexton.broker.observe.metrics import metrics
from sexton.protocol.messages import MalformedMessageError
from sexton.replication import fetcher, messages
from sexton.replication.local_replica import LocalReplica
from sexton.replication.membership import Membership
from sexton.replication.replicas import Replicas
from sexton.replication.roles import Roles
from sexton.replication.session import FollowerSession
from sexton.simulate.errors import SimulationFailure
from tests.simulated import Story

BAD = "bad"
SETTINGS = {"cleanup.policy": "compact,delete"}


class Bug:
    """Stands in for a function of the product. While it is there, whoever calls it for the topic `BAD` meets it."""

    def __init__(self, patches: pytest.MonkeyPatch, owner: Any, attribute: str) -> None:
        self.is_there = False
        self.met_count = 0
        original = getattr(owner, attribute)
        patches.setattr(owner, attribute, lambda *arguments, **named: self._call(original, arguments, named))

    def _call(self, original: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.is_there and any(_topic(one) == BAD for one in arguments):
            self.met_count += 1
            raise IndexError("nobody expected this")
        return original(*arguments, **named)


def _topic(argument: Any) -> str | None:
    replica = argument if isinstance(argument, LocalReplica) else getattr(argument, "replica", None)
    return replica.topic if isinstance(replica, LocalReplica) else None


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [
        (fetcher, "take_fetched"),
        (fetcher, "held_by"),
        (FollowerSession, "_data_of"),
        (Membership, "_decided"),
        (Replicas, "_retain"),
        (Publisher, "_work_row"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_bug_in_one_partition_keeps_no_other_from_going_on(
    monkeypatch: pytest.MonkeyPatch, owner: Any, attribute: str
) -> None:
    story, bug = Story(2), Bug(monkeypatch, owner, attribute)
    story.has_bugs = True

    async def body() -> None:
        await story.start()
        for topic in ("t", BAD):
            await story.create_topic([1, 2], SETTINGS, topic=topic)
            await story.write((b"k", b"before"), topic=topic)
        processes = [story.node(one).process for one in (1, 2)]
        bug.is_there = True
        writing = story.loop.create_task(story.write((b"k", b"meanwhile"), topic=BAD))
        await story.until(lambda: bug.met_count >= 2)
        await story.write((b"k", b"meanwhile"))
        bug.is_there = False
        assert sum(story.broker(one).supervisor.bugs.total() for one in (1, 2)) == bug.met_count
        assert sum([await told(one) for one in (1, 2)]) == bug.met_count
        await writing
        await story.write((b"k", b"after"), topic=BAD)
        await story.in_sync(1, 2, topic=BAD)
        assert [story.node(one).process for one in (1, 2)] == processes

    async def told(broker_id: int) -> int:
        """What Prometheus is told."""
        process = story.node(broker_id).process
        assert process is not None
        page = await story.loop.spawn(process, metrics(story.broker(broker_id)))
        return sum(
            int(count) for count in re.findall(rb"^sexton_bugs_survived_total{work=.*} (\d+)$", page, re.MULTILINE)
        )

    story.run(body())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("owner", "attribute"), [(Roles, "_change"), (Broker, "role_changed")])
def test_a_bug_in_the_change_of_one_role_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, owner: Any, attribute: str, is_restarted: bool
) -> None:
    """Before the new epoch is in the leader's history, or after it."""
    story, bug = Story(2), Bug(monkeypatch, owner, attribute)
    story.has_bugs = True

    async def body() -> None:
        await story.start()
        for topic in ("t", BAD):
            await story.create_topic([1, 2], topic=topic)
            await story.write((b"k", b"before"), topic=topic)
        if is_restarted:  # its log is then one that another process may have led
            story.cluster.kill(story.node(2), power_lost=False)
            await story.start(2)
            await story.in_sync(1, 2, topic=BAD)
        bug.is_there = True
        story.cluster.kill(story.node(1), power_lost=False)
        await story.led_by(2)
        await story.write((b"k", b"meanwhile"))
        assert bug.met_count
        assert not story.replica(2, BAD).is_leader
        bug.is_there = False
        await story.led_by(2, BAD)
        await story.write((b"k", b"after"), topic=BAD)

    story.run(body())


def test_a_bug_in_the_loop_that_follows_a_broker_ends_ours_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once ended the task without a word: no partition of that leader was followed any more."""
    story = Story(2)

    async def body() -> None:
        await story.start()
        await story.create_topic([1, 2])

        def has_a_bug(data: memoryview) -> list[messages.PartitionData]:
            raise AssertionError("nobody expected this")

        monkeypatch.setattr(messages, "decode_answer", has_a_bug)
        await story.write((b"k", b"v"))

    with pytest.raises(SimulationFailure, match="broker-2 ended by itself: AssertionError"):
        story.run(body())


def test_a_request_that_makes_no_sense_is_the_peers_mistake_and_no_bug_of_ours() -> None:
    story = Story(1)

    async def body() -> None:
        await story.start()
        for garbage in (b"", b"\x00" * 3, b"\xff" * 200):
            with pytest.raises(MalformedMessageError):
                story.broker(1).replicas.replica_fetch("somebody", memoryview(garbage))

    story.run(body())


def test_an_answer_that_makes_no_sense_is_the_peers_mistake_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(2)

    async def body() -> None:
        await story.start()
        await story.create_topic([1, 2])
        decode, met = messages.decode_answer, []

        def cut_short(data: memoryview) -> list[messages.PartitionData]:
            met.append(len(data))
            return decode(data[:-1] if len(met) < 3 else data)

        monkeypatch.setattr(messages, "decode_answer", cut_short)
        await story.write((b"k", b"v"))
        assert len(met) > 2

    story.run(body())
