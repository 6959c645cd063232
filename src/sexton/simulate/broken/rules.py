"""The rules of docs/rules.md, broken on purpose, one line each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sexton.broker.lifecycle.folder import Folder, Past
from sexton.broker.lifecycle.registration import Registration
from sexton.broker.produce import answer
from sexton.broker.transactions.markers import MarkerSender
from sexton.compaction import retention, rules
from sexton.compaction.eligibility import SegmentSummary
from sexton.compaction.fates import Fate
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.replication.leadership import Leadership
from sexton.replication.local_replica import LocalReplica
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile


def _commits_alone(self: Leadership, own_end: int) -> int:
    return own_end


def _counts_unflushed(self: LocalReplica) -> int:
    return self.log.end_offset


async def _keeps_its_tail(self: LocalReplica, offset: int) -> None:
    """Does not drop what its leader lacks."""


async def _gives_up_renewing(self: Registration) -> None:
    try:
        while True:
            await asyncio.sleep(self._renew_ms / 1000)
            await self.renew()
    except MetastoreUnavailableError:
        await asyncio.Event().wait()


def _forgets_tombstones(terms: Any, batch_last: Any, horizon_ms: Any) -> Fate:
    return Fate.TOMBSTONE_EXPIRED


def _counts_as_written(self: MarkerSender, item: Any, code: Any, leader: int) -> None:
    self._service.marker_written(item.due, item.place)


def _trusts_its_disk(self: Folder, former: Any) -> Past:
    return Past.WHOLE


def _keeps_one_segment(segments: Sequence[SegmentSummary], config: Any, high_watermark: int, now_ms: int) -> int:
    return max(one.base_offset for one in segments if one.base_offset <= high_watermark)


RULES: dict[str, Break] = {
    "1": Break(Patch(Leadership, "committed_end", _commits_alone)),
    "1-flush": Break(Patch(LocalReplica, "durable_end", property(_counts_unflushed))),
    "1-disk": Break(Patch(Folder, "past", _trusts_its_disk), Profile.COMPACTION),
    "1-retention": Break(Patch(retention, "retained_from", _keeps_one_segment), Profile.COMPACTION),
    "2": Break(Patch(LocalReplica, "cut_to", _keeps_its_tail)),
    "5": Break(Patch(rules, "tombstone_fate", _forgets_tombstones), Profile.COMPACTION),
    "8": Break(Patch(MarkerSender, "_answered", _counts_as_written), Profile.TRANSACTIONS),
    "9": Break(Patch(answer, "NO_OFFSET", 0)),
    "12": Break(Patch(Registration, "keep_renewing", _gives_up_renewing)),
}
"""By rule: a leader commits without its followers; a replica counts what is not on its disk; a broker takes any disk
for its own; retention takes what is neither old nor too much; a follower keeps what its leader lacks; a tombstone goes
at once; a marker that could not be written counts as written; a failed produce carries an offset; a broker tries only
once to renew its lease."""
