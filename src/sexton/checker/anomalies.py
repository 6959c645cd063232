"""Every anomaly that the judge knows, by its name: what it means for who uses the cluster, and what proves it.

Names and numbers 1 to 17 are Jepsen's (`jepsen.tests.kafka`, and Elle for cycles); the others see what Jepsen's
histories do not have: record keys, positions, groups, replicas. A number may have several names, where one search
tells several things apart. `evidence` says what `values` and `ops` of a case are, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Weight(StrEnum):
    """What a finding does to the verdict, unless a model allows it."""

    WRONG = "wrong"
    """The verdict is false."""
    UNKNOWN = "unknown"
    """Something was not judged, so nobody can say true."""
    INFORMATION = "information"
    """No promise of Kafka is broken; people want to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    number: int
    name: str
    meaning: str
    evidence: str
    rules: tuple[int, ...] = ()
    """Of docs/rules.md, those that it breaks."""
    weight: Weight = Weight.WRONG


_ALL: Final = (
    Anomaly(
        number=1,
        name="inconsistent-offsets",
        meaning="Two consumers, or a consumer and a producer, were told of different records at one offset.",
        evidence="the values at the offset; who sent or polled one of them there",
        rules=(2,),
    ),
    Anomaly(
        number=2,
        name="duplicate",
        meaning="One send put its record into the log more than once.",
        evidence="the value; who sent or polled it; detail: its offsets",
        rules=(2,),
    ),
    Anomaly(
        number=3,
        name="G1a",
        meaning="A consumer acted on a record whose transaction was aborted, or whose send was refused.",
        evidence="the value; its sender, the reader",
        rules=(8,),
    ),
    Anomaly(
        number=4,
        name="precommitted-read",
        meaning="A transaction read what it had sent itself, before it was committed.",
        evidence="the value; the transaction",
        rules=(8,),
    ),
    Anomaly(
        number=5,
        name="lost-write",
        meaning="An acknowledged record was never given to anybody, though consumers have read on beyond it.",
        evidence="the value; its sender, a reader of the highest value read, or whose position moved over it",
        rules=(1,),
    ),
    Anomaly(
        number=6,
        name="poll-skip",
        meaning="A consumer's next poll began behind records that it had not been given.",
        evidence="the last value before and the first after; both polls; detail: what was skipped",
        rules=(1,),
    ),
    Anomaly(
        number=7,
        name="nonmonotonic-poll",
        meaning="A consumer's next poll gave it again what it had been given.",
        evidence="the last value before and the first after; both polls",
        rules=(2,),
    ),
    Anomaly(
        number=8,
        name="int-poll-skip",
        meaning="Within one operation a consumer was given records with others missing between them.",
        evidence="the values on both sides; the operation; detail: what was skipped",
        rules=(1,),
    ),
    Anomaly(
        number=9,
        name="int-nonmonotonic-poll",
        meaning="Within one operation a consumer was given records twice, or out of order.",
        evidence="the two values; the operation",
        rules=(2,),
    ),
    Anomaly(
        number=10,
        name="int-send-skip",
        meaning="Between two records of one operation lie records of others. Kafka does not promise otherwise.",
        evidence="the two values; the operation; detail: what lies between",
    ),
    Anomaly(
        number=11,
        name="int-nonmonotonic-send",
        meaning="Two records of one operation are in the log in another order than they were sent in.",
        evidence="the two values; the operation",
        rules=(2,),
    ),
    Anomaly(
        number=12,
        name="nonmonotonic-send",
        meaning="A producer's later record lies before its earlier one.",
        evidence="the last value of the earlier operation and the first of the later; both",
        rules=(2,),
    ),
    Anomaly(
        number=13,
        name="unseen",
        meaning="Acknowledged records that nobody was given until the end: lost, or nobody read that far.",
        evidence="the values of one log that were not seen; the last reader of that log",
        weight=Weight.UNKNOWN,
    ),
    Anomaly(
        number=14,
        name="realtime-lag",
        meaning="How far behind consumers were, at the worst.",
        evidence="the poll; detail: how far behind, and when",
        weight=Weight.INFORMATION,
    ),
    Anomaly(
        number=15,
        name="G0",
        meaning="Transactions' records lie in one order in one log and in the other order in another.",
        evidence="the transactions of a cycle in order; detail: why each is before the next",
    ),
    Anomaly(
        number=15,
        name="G1c",
        meaning="A transaction has read of another what, by the order of the logs, came later than itself.",
        evidence="as G0",
    ),
    Anomaly(
        number=15,
        name="G0-realtime",
        meaning="A record that was sent after another was acknowledged lies before it.",
        evidence="as G0",
    ),
    Anomaly(
        number=15,
        name="G1c-realtime",
        meaning="What was read of each other contradicts the clock on the wall.",
        evidence="as G0",
    ),
    Anomaly(
        number=15,
        name="G-single-realtime",
        meaning="A read of a whole log began after a record was acknowledged, and ended in front of it.",
        evidence="the value; its sender, the reader; detail: its offset, and where the reader took the log's end to be",
    ),
    Anomaly(
        number=16,
        name="PL-1-cycle-exists",
        meaning="There is a cycle like G0 among these transactions.",
        evidence="the transactions among which it is",
    ),
    Anomaly(
        number=16,
        name="PL-2-cycle-exists",
        meaning="There is a cycle like G1c among these transactions.",
        evidence="the transactions among which it is",
    ),
    Anomaly(
        number=16,
        name="strong-PL-1-cycle-exists",
        meaning="There is a cycle like G0-realtime among these transactions.",
        evidence="the transactions among which it is",
    ),
    Anomaly(
        number=16,
        name="strong-PL-2-cycle-exists",
        meaning="There is a cycle like G1c-realtime among these transactions.",
        evidence="the transactions among which it is",
    ),
    Anomaly(
        number=17,
        name="empty-transaction-graph",
        meaning="No two operations had to do with each other: there was nothing to judge.",
        evidence="none",
        weight=Weight.UNKNOWN,
    ),
    Anomaly(
        number=17,
        name="cycle-search-timeout",
        meaning="A cycle exists, and the search for the shortest was given up.",
        evidence="the transactions among which it is",
        weight=Weight.UNKNOWN,
    ),
    Anomaly(
        number=18,
        name="unwritten-read",
        meaning="A consumer was given a record that nobody sent.",
        evidence="the value; its readers",
        rules=(2,),
    ),
    Anomaly(
        number=19,
        name="G1c-wr",
        meaning="Transactions have read each other's records before they were committed.",
        evidence="as G0",
        rules=(8,),
    ),
    Anomaly(
        number=19,
        name="G1c-wr-realtime",
        meaning="A record was read before it was sent, by the clock on the wall.",
        evidence="as G0",
        rules=(8,),
    ),
    Anomaly(
        number=20,
        name="torn-transaction",
        meaning="Of one transaction some records were read, and others are gone.",
        evidence="the value that is gone, one that was read; the transaction, who passed the one and read the other",
        rules=(8,),
    ),
    Anomaly(
        number=21,
        name="fractured-read",
        meaning="A consumer passed two records of one transaction and was given one of them.",
        evidence="the value that was not given, the one that was; the transaction, the reader",
        weight=Weight.INFORMATION,
    ),
    Anomaly(
        number=22,
        name="wrong-span",
        meaning="A poll gave a record that lies outside of what the consumer's position moved over.",
        evidence="the value; the poll; detail: its offset and the span",
    ),
    Anomaly(
        number=23,
        name="stuck",
        meaning="All faults were healed, acknowledged records lie ahead, and a consumer gets nothing.",
        evidence="an acknowledged value ahead; its sender, the first and the last poll that stood still",
        rules=(1, 11),
    ),
    Anomaly(
        number=24,
        name="committed-too-far",
        meaning="A group's committed offset lies above all that its members had been given: records will be left out.",
        evidence="the operation that committed or saw it; detail: group, offset, how far members were",
    ),
    Anomaly(
        number=25,
        name="group-skip",
        meaning="A record lies below a group's committed offset, and no member was given it.",
        evidence="the value; its sender, the commit; detail: group, offset",
    ),
    Anomaly(
        number=26,
        name="offset-went-back",
        meaning="A group's committed offset is lower than it was; nobody has reset it.",
        evidence="who committed or saw the higher, who saw the lower; detail: group and both offsets",
    ),
    Anomaly(
        number=27,
        name="zombie-commit",
        meaning="A member of a generation that was over could still commit offsets.",
        evidence="the member that was in a later generation, the commit; detail: group and generations",
    ),
    Anomaly(
        number=28,
        name="eos-duplicate",
        meaning="One input was processed twice.",
        evidence="the outputs' values; their senders or readers; detail: the input's value",
        rules=(8,),
    ),
    Anomaly(
        number=28,
        name="eos-loss",
        meaning="An input counts as processed, and nothing came of it.",
        evidence="the input's value; its sender, the commit above it",
        rules=(8,),
    ),
    Anomaly(
        number=29,
        name="watermark-went-back",
        meaning="A high watermark or last stable offset is lower than it was, under the same leader.",
        evidence="both looks; detail: which, both offsets",
        rules=(7,),
    ),
    Anomaly(
        number=29,
        name="watermark-went-back-at-failover",
        meaning="The same after a change of leaders, where Kafka catches up again.",
        evidence="both looks; detail: which, both offsets",
        weight=Weight.INFORMATION,
    ),
    Anomaly(
        number=30,
        name="acknowledged-nowhere",
        meaning="A send was acknowledged without an offset, and its record is nowhere in what has been read since.",
        evidence="the value; its sender, a reader of what was sent later",
        rules=(1,),
    ),
    Anomaly(
        number=31,
        name="lost-record",
        meaning="A consumer passed a record without being given it, and compaction was not allowed to remove it.",
        evidence="the value; its sender, the reader",
        rules=(1, 3),
    ),
    Anomaly(
        number=32,
        name="lost-key",
        meaning="A table read from the start has nothing of a key that was never deleted.",
        evidence="the value that should be there; its sender, the reader",
        rules=(3,),
    ),
    Anomaly(
        number=33,
        name="stale-value",
        meaning="A table read from the start has an old value of a key.",
        evidence="the value that should be there, the one that is; the first's sender, the reader",
        rules=(3,),
    ),
    Anomaly(
        number=34,
        name="resurrected-key",
        meaning="A table read from the start has a key that was deleted.",
        evidence="the tombstone, the value that is there; the tombstone's sender, the reader",
        rules=(3, 5),
    ),
    Anomaly(
        number=34,
        name="slow-reader",
        meaning="The same for one who read for longer than tombstones are kept: Kafka promises no more.",
        evidence="as resurrected-key",
        weight=Weight.INFORMATION,
    ),
    Anomaly(
        number=35,
        name="aborted-in-table",
        meaning="A table contains a record whose transaction was aborted.",
        evidence="the value; its sender, the reader",
        rules=(8,),
    ),
    Anomaly(
        number=36,
        name="reappeared",
        meaning="A record was there, was gone, and is there again.",
        evidence="the value; three readers in order",
        rules=(4,),
    ),
    Anomaly(
        number=37,
        name="replicas-disagree",
        meaning="Two replicas fold to different tables.",
        evidence="what each has of a key, where it has something; both readers; detail: key, replicas",
        rules=(4,),
    ),
    Anomaly(
        number=38,
        name="table-drift",
        meaning="A table that was kept up to date differs from one that was read afresh.",
        evidence="what the kept table has of a key, what the fresh one has; who gave the first, the fresh reader",
        rules=(3,),
    ),
    Anomaly(
        number=39,
        name="moved",
        meaning="A record is at another offset than it was.",
        evidence="the value; who saw it first, who saw it elsewhere later; detail: both offsets",
        rules=(2,),
    ),
    Anomaly(
        number=40,
        name="tombstone-too-early",
        meaning="A tombstone was gone before its time: who read the old value may never hear of the deletion.",
        evidence="the tombstone's value; its sender, the reader",
        rules=(5,),
    ),
)

ANOMALIES: Final = {anomaly.name: anomaly for anomaly in _ALL}
