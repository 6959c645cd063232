"""The scenarios. Each runs unchanged on every system; what is wrong in the end is the system's doing.

In all of them the third broker is away while a deletion, or the end of a transaction, is written, compacted and
forgotten by the others. It comes back with a disk that has only the first half of the story, and there is nobody left
to tell it the second. Four corrupt what is read; the fifth is what might be expected to, and does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sexton.reproduce.script import Script
from sexton.reproduce.verdict import Verdict


async def tombstone(s: Script) -> None:
    await s.start()
    await s.produce("user", "alice")
    await s.kill()
    await s.delete("user")
    await s.wait_until_compacted()
    await s.read()
    await s.bring_back()
    await s.move_leadership()
    await s.read()


async def aborted_to_committed(s: Script) -> None:
    await s.start()
    await s.begin()
    await s.produce("poison", "bad")
    await s.kill()
    await s.abort()
    await s.wait_until_compacted()
    await s.begin()
    await s.produce("good", "data")
    await s.commit()
    await s.read()
    await s.bring_back()
    await s.move_leadership()
    await s.read()


async def committed_to_aborted(s: Script) -> None:
    await s.start()
    await s.produce("user", "alice")
    await s.begin()
    await s.delete("user")
    await s.kill()
    await s.commit()
    await s.wait_until_compacted()
    await s.read()
    await s.bring_back()
    await s.begin()
    await s.produce("garbage", "bad")
    await s.abort()
    await s.move_leadership()
    await s.read()


async def stuck_partition(s: Script) -> None:
    await s.start()
    await s.begin()
    await s.produce("price", "10")
    await s.kill()
    await s.commit()
    await s.produce("price", "11")
    await s.wait_until_compacted()
    await s.read()
    await s.bring_back()
    await s.move_leadership()
    await s.read()


async def committed_value(s: Script) -> None:
    await s.start()
    await s.begin()
    await s.produce("user", "alice")
    await s.kill()
    await s.commit()
    await s.wait_until_compacted()
    await s.read()
    await s.begin()
    await s.produce("garbage", "bad")
    await s.abort()
    await s.bring_back()
    await s.move_leadership()
    await s.read()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    story: str
    script: Callable[[Script], Awaitable[None]]
    without_coordination: Verdict = Verdict.CORRUPT
    """What comes of it where every replica compacts for itself."""


SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario(
            "tombstone",
            "A deleted key comes back",
            "A key is deleted while broker 3 is away. The others compact away the value, and then the tombstone. When "
            "broker 3 returns, nothing tells it of the deletion: it serves the old value.",
            tombstone,
        ),
        Scenario(
            "aborted-to-committed",
            "Rolled-back data is served as committed",
            "Transaction 1 is aborted while broker 3 is away. The others compact away its record, and then the ABORT "
            "marker. Broker 3 still holds the record, and takes the same producer's next marker, the COMMIT of "
            "transaction 2, for its end.",
            aborted_to_committed,
        ),
        Scenario(
            "committed-to-aborted",
            "A committed change is undone",
            "Transaction 1 deletes a key and is committed while broker 3 is away. The others compact away the key's "
            "value, the tombstone and the COMMIT marker. Broker 3 still holds value and tombstone, and takes the same "
            "producer's next marker, the ABORT of transaction 2, for transaction 1's end: the deletion is hidden, and "
            "the deleted value is served again.",
            committed_to_aborted,
        ),
        Scenario(
            "stuck-partition",
            "A partition freezes for its consumers",
            "Transaction 1 is committed while broker 3 is away, its record is superseded, and the others compact away "
            "the record and the COMMIT marker. For broker 3 the transaction is open, and no marker will ever come: "
            "consumers with read_committed are shown nothing from there on.",
            stuck_partition,
        ),
        Scenario(
            "committed-value",
            "A committed value is not hidden, and why",
            "Transaction 1 writes a value and is committed while broker 3 is away; its producer's transaction 2 is "
            "aborted. Would broker 3 take that ABORT for the end of transaction 1? It would, if the COMMIT marker were "
            "gone. But a cleaner keeps a COMMIT marker while a record of its transaction is left, and the value is: so "
            "broker 3 gets the marker when it returns. Only what nothing need supersede, a deletion, can be hidden.",
            committed_value,
            Verdict.CLEAN,
        ),
    )
}
