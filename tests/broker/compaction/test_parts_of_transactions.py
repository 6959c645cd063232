"""Compaction knows keys, not transactions: what it leaves of one that was committed, and of one that was not."""

from __future__ import annotations

from sexton.client.producer import Message
from sexton.client.transactions import TransactionalProducer
from tests.log.helpers import read_all
from tests.simulated import TOPIC, Story

LEADER, OTHER = 1, 2


def test_of_a_committed_transaction_compaction_may_leave_a_part() -> None:
    """Two keys are written together, then one of them alone. Whoever reads the topic from its beginning sees one half
    of the transaction and never the other; the newest value of each key is there before and after."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([LEADER, OTHER], {"cleanup.policy": "compact"})
        await story.in_sync(LEADER, OTHER)

        async def write() -> None:
            producer = TransactionalProducer(story.admin.client, "transfers")
            await producer.init()
            for keys, value, is_commit in (
                ((b"debit", b"credit"), b"first", True),
                ((b"debit", b"credit"), b"never", False),
                ((b"debit",), b"second", True),
            ):
                producer.begin()
                for key in keys:
                    await producer.send(TOPIC, 0, [Message(key, value)])
                await (producer.commit() if is_commit else producer.abort())

        await story.client_does(write())
        log = story.replica(LEADER).log
        await story.until(lambda: story.replica(LEADER).last_stable_offset == log.end_offset)
        bound = await story.compact(LEADER)
        assert bound == log.end_offset
        batches = read_all(log)
        kept = [(each.key, each.value) for batch in batches if not batch.is_control for each in batch.records]
        assert kept == [(b"credit", b"first"), (b"debit", b"second")]
        assert not any(batch.is_transactional for batch in batches if not batch.is_control)

    story.run(told())
