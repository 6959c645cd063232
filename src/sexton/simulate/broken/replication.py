"""Defects that Sexton once had, put back: how leaders, followers and in-sync sets work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sexton.broker.api import alter_partition_reassignments
from sexton.broker.broker import Broker
from sexton.broker.lifecycle import handover
from sexton.broker.lifecycle.control import Control
from sexton.metadata import reassignment
from sexton.metadata.controller import Action
from sexton.metadata.elections import Brokers
from sexton.ports.metastore import BrokerRow, PartitionRow
from sexton.replication import membership
from sexton.replication.leadership import IsrChange, Leadership, Progress
from sexton.replication.membership import BATCH_ROWS_MAX, Asked, Membership
from sexton.settings.topic import TopicConfig
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile


def _forgets_what_was_refused(self: Leadership, change: IsrChange) -> None:
    if self.pending is not None and self.pending.isr == change.isr:
        self.pending = None


def _all_at_once(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    for start in range(0, len(asked), BATCH_ROWS_MAX):
        yield asked[start : start + BATCH_ROWS_MAX]


def _keeps_progress_by_number(self: Leadership, follower: int) -> Progress | None:
    return self._progress.get(follower)


def _names_whoever_is_there(self: Membership, asked: Asked) -> Mapping[int, int]:
    joining = (b for b in asked.row.isr if b not in asked.before.isr)
    return {b: -1 if (broker := self._host.view.broker(b)) is None else broker.epoch for b in joining}


def _allows_what_the_setting_says(config: TopicConfig) -> bool:
    return config.unclean_leader_election_enable


def _whoever_runs(row: PartitionRow, brokers: Brokers) -> None:
    pass


def _takes_the_first(row: PartitionRow, replicas: tuple[int, ...], brokers: Brokers) -> PartitionRow:
    return reassignment._elected(reassignment._without_reassignment(row, replicas, replicas[:1]), brokers)


async def _trusts_the_metastore(broker: Broker) -> dict[int, int]:
    return {row.broker_id: row.epoch for row in broker.view.live_brokers()}


async def _asks_nobody(self: Control, actions: Sequence[Action]) -> list[BrokerRow]:
    return []


REPLICATION: dict[str, Break] = {
    "isr-join-forgotten": Break(
        (Patch(Leadership, "refused", _forgets_what_was_refused), Patch(membership, "_batches", _all_at_once)),
        minutes=0.3,
    ),
    "progress-outlives-incarnation": Break(Patch(Leadership, "_kept_progress", _keeps_progress_by_number), minutes=0.3),
    "cancel-elects-uncleanly": Break(
        (
            Patch(alter_partition_reassignments, "allows_unclean", _allows_what_the_setting_says),
            Patch(reassignment, "_check_that_none_runs", _whoever_runs),
            Patch(reassignment, "_elected_uncleanly", _takes_the_first),
        ),
        Profile.COMPACTION,
    ),
    "hands-over-to-the-dead": Break(Patch(handover, "answering", _trusts_the_metastore), minutes=0.4),
    "elects-the-dead": Break(Patch(Control, "_silent", _asks_nobody), minutes=1),
    "join-names-another-process": Break(Patch(Membership, "_named", _names_whoever_is_there)),
}
"""A join whose repetition is refused counts no more, though the first attempt may have been carried out; what a
replica's former log held counts for its new one; a reassignment of a compacted topic that is cancelled elects a replica
that lacks records, in the same generation, and one that may not even run; a broker that is stopped leaves its
partitions to others whose leases have not run out yet, dead or alive; the controller elects such a one and takes the
others out of the ISR; a join that is repeated names the process that is there by then."""
