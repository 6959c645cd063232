"""Elections: who leads a partition. Each function takes a row and the known brokers, and returns the row to write, or
None.

Rows are written by compare-and-set on their partition epoch, so a decision based on an old row does no harm.

- A leader is an in-sync replica on an ACTIVE broker, the first one in the order of preference. A DRAINING broker leads
  only if there is no other; a STARTING one is not elected, but keeps what it leads if no other can take it.
- The leader epoch rises whenever the leader changes, also to none, and when the same leader starts again.
- Fenced brokers leave the ISR, so that `acks=all` does not wait for them, but only if a member remains that is ACTIVE
  or DRAINING. A STARTING member may still find that its disk has lost what it acknowledged; and if all members are
  down, each of them has everything, and the first to come back may lead.
- Unclean election (of a leader that may lack acknowledged records) happens only if it is allowed; the new leader is
  then the only member of the ISR. On a compacted topic it happens only if an operator forces it, and starts a new
  *generation*: the other replicas start from empty logs, because what they removed was decided by watermarks that are
  no longer valid (docs/rules.md, traps).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum

from sexton.metadata.incarnations import is_another_log, is_missing, known_incarnation, marked_as_missing
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.topic import TopicConfig
from sexton.types import NO_LEADER, LeaderEpoch

Brokers = Mapping[int, BrokerRow]

_PROVEN = (BrokerStatus.ACTIVE, BrokerStatus.DRAINING)
"""Statuses of brokers that have corrected their rows at startup: what the metastore says about their logs was true when
they started."""


def is_proven(brokers: Brokers, broker_id: int) -> bool:
    """Whether the broker is up and has checked its disk since it started. A STARTING broker may renew its lease for a
    long time before it finds that its logs are gone."""
    broker = brokers.get(broker_id)
    return broker is not None and broker.status in _PROVEN


class LogState(Enum):
    """What a starting broker finds of a replica on its disk."""

    COMPLETE = "complete"
    """It has everything that it ever acknowledged: its topic flushes first, the broker was stopped cleanly, or its
    machine has kept the page cache."""
    UNCERTAIN = "uncertain"
    """The log is there, but its last records may be lost with the page cache."""
    LOST = "lost"
    """There is no such log, or it has another incarnation than the metastore knows."""


def elect(row: PartitionRow, brokers: Brokers, *, unclean: bool = False) -> PartitionRow | None:
    """What the controller does whenever a broker changes: keeps a leader that can lead, else elects another."""
    isr = _without_fenced(row, brokers)
    leader = _best_leader(row, isr, brokers)
    if leader == NO_LEADER and unclean:
        forced = elect_uncleanly(row, brokers)
        if forced is not None:
            return forced
    return _changed(row, leader, isr)


def allows_unclean(config: TopicConfig) -> bool:
    """Whether a topic's configs allow it. Never automatically on a compacted topic: its watermarks would cover records
    that the new leader lacks. There an operator must force it (`elect_on_request`)."""
    return config.unclean_leader_election_enable and not config.compacts


def elect_uncleanly(row: PartitionRow, brokers: Brokers) -> PartitionRow | None:
    """Elects a running replica, preferably one whose log is not missing. If its log is missing, it starts from an empty
    one with a new incarnation. That is derived from the old one, so that two deciders write the same."""
    active = [id_ for id_ in row.replicas if id_ in brokers and brokers[id_].status is BrokerStatus.ACTIVE]
    lost: Callable[[int], bool] = lambda id_: is_missing(row, id_)  # noqa: E731
    leader = next(iter(sorted(active, key=lost)), None)
    if leader is None:
        return None
    leader_epoch = LeaderEpoch(row.leader_epoch + 1)
    incarnations = dict(row.incarnations)
    if lost(leader):
        incarnations[leader] = _following_id(row, leader, leader_epoch)
    return replace(row, leader=leader, isr=(leader,), leader_epoch=leader_epoch, incarnations=incarnations)


def elect_preferred(row: PartitionRow, brokers: Brokers) -> PartitionRow | None:
    """Moves leadership back to the first replica, if it is in sync and ACTIVE: it was placed first so that leaders are
    spread evenly."""
    preferred = row.replicas[0]
    if row.leader == preferred or not _can_lead(row, row.isr, brokers, preferred, BrokerStatus.ACTIVE):
        return None
    return _changed(row, preferred, _without_fenced(row, brokers))


def elect_on_request(row: PartitionRow, brokers: Brokers, *, unclean: bool, is_compacted: bool = False) -> PartitionRow:
    """For ElectLeaders. An unclean election that an operator requests is carried out whatever the topic's configs
    say."""
    if (row.leader != NO_LEADER) if unclean else (row.leader == row.replicas[0]):
        raise KafkaError(ErrorCode.election_not_needed, "the partition has the leader that the election would choose")
    if unclean:
        elected = elect(row, brokers, unclean=True)
        if elected is None or elected.leader == NO_LEADER:
            raise KafkaError(ErrorCode.eligible_leaders_not_available, "no replica's broker is active")
        is_forced = elected.leader not in row.isr or is_missing(row, elected.leader)
        return _in_new_generation(elected) if is_compacted and is_forced else elected
    preferred = elect_preferred(row, brokers)
    if preferred is None:
        what = f"broker {row.replicas[0]} is not in sync or not active"
        raise KafkaError(ErrorCode.preferred_leader_not_available, what)
    return preferred


def hand_over(
    row: PartitionRow, broker_id: int, brokers: Brokers, answering: Collection[int] | None = None
) -> PartitionRow | None:
    """What a broker that shuts down does with each of its partitions: another replica leads, and acks=all no longer
    waits for this one. Returns None if no other member of the ISR is ACTIVE and among `answering`: a member that has
    not just responded may have lost power, and with it what was not flushed."""
    isr = tuple(member for member in _without_fenced(row, brokers) if member != broker_id)
    others = successors(row, broker_id, brokers, answering)
    if not others or broker_id not in row.isr:
        return None
    return _changed(row, row.leader if row.leader in isr else others[0], isr)


def successors(
    row: PartitionRow, broker_id: int, brokers: Brokers, answering: Collection[int] | None = None
) -> list[int]:
    """The other members of the ISR that could lead, in order of preference."""
    isr = tuple(member for member in _without_fenced(row, brokers) if member != broker_id)
    return [
        id_
        for id_ in row.replicas
        if _can_lead(row, isr, brokers, id_, BrokerStatus.ACTIVE) and (answering is None or id_ in answering)
    ]


def is_needed(row: PartitionRow, broker_id: int, brokers: Brokers, answering: Collection[int]) -> bool:
    """Whether other members of the ISR seem alive but none of them is `answering`. If this broker fenced itself, the
    partition would be left to them at once (`_without_fenced`). If its lease expires instead, theirs expire before,
    should they be dead."""
    others = [id_ for id_ in row.isr if id_ != broker_id and is_proven(brokers, id_)]
    return broker_id in row.isr and bool(others) and not any(id_ in answering for id_ in others)


def rebuild(
    row: PartitionRow, broker_id: int, brokers: Brokers, answering: Collection[int], *, fresh: uuid.UUID
) -> PartitionRow | None:
    """What a broker does that finds its log damaged: an empty log takes its place. None if no other replica has
    everything."""
    left = hand_over(row, broker_id, brokers, answering) if broker_id in row.isr else row
    if left is None or left.leader in (broker_id, NO_LEADER):
        return None
    return replace(left, incarnations={**left.incarnations, broker_id: fresh})


def give_up(
    row: PartitionRow,
    broker_id: int,
    brokers: Brokers,
    *,
    is_readable: bool,
    answering: Collection[int] | None = None,
) -> PartitionRow | None:
    """What a broker does whose disk failed under a log, or that finds one damaged: hands over, as above. If no other
    can take over, a readable log stays as it is. An unreadable one is marked as missing, so that its broker is not
    elected; it leads again after it has started with that very log repaired."""
    handed_over = hand_over(row, broker_id, brokers, answering)
    known = known_incarnation(row, broker_id)
    if handed_over is not None or is_readable or known is None or broker_id not in row.isr:
        return handed_over
    marked = replace(row, incarnations={**row.incarnations, broker_id: marked_as_missing(known)})
    return _changed(marked, NO_LEADER if row.leader == broker_id else row.leader, row.isr, before=row)


def restart(
    row: PartitionRow,
    broker_id: int,
    brokers: Brokers,
    *,
    log: LogState,
    on_disk: uuid.UUID | None,
    fresh: uuid.UUID,
) -> PartitionRow | None:
    """What a (re)starting broker must write, before it becomes ACTIVE, to each row that names it as a replica.

    `on_disk` is the incarnation of the log that was found; `fresh` is the one of the empty log that replaces a lost
    log. A log that was marked as missing stays so until that very log is found, whatever `log` says.
    """
    known = known_incarnation(row, broker_id)
    if is_missing(row, broker_id):
        log = LogState.LOST if is_another_log(row, broker_id, on_disk) else LogState.UNCERTAIN
    others_in_sync = tuple(member for member in row.isr if member != broker_id)
    is_last = not others_have_it(row, broker_id)
    incarnations = dict(row.incarnations)
    isr = row.isr
    if log is LogState.LOST:
        if broker_id in row.isr and is_last:
            incarnations[broker_id] = marked_as_missing(known or fresh)
        else:
            incarnations[broker_id] = fresh
            isr = others_in_sync
    else:
        if on_disk is not None:
            incarnations[broker_id] = on_disk
        if log is LogState.UNCERTAIN and not is_last:
            isr = others_in_sync
    marked = replace(row, incarnations=incarnations)
    leader = row.leader
    if leader in (broker_id, NO_LEADER):
        leader = _best_leader(replace(marked, leader=NO_LEADER), isr, brokers)
        if leader == NO_LEADER and broker_id in isr and not is_missing(marked, broker_id):
            leader = broker_id
    return _changed(marked, leader, isr, starts_again=leader == broker_id, before=row)


def begin_anew(row: PartitionRow, broker_id: int, brokers: Brokers, *, fresh: uuid.UUID) -> PartitionRow:
    """What a broker does with an in-sync log that ends below its own watermarks: it has lost records that it, or the
    replica that it copied from, has compacted by. If others in sync have them, it leaves the ISR, as with a lost log.
    If not, its log is all there is: as after a forced election a new generation begins, and watermarks of the old one
    no longer count."""
    if others_have_it(row, broker_id):
        left = restart(row, broker_id, brokers, log=LogState.LOST, on_disk=None, fresh=fresh)
        assert left is not None
        return left
    return _in_new_generation(
        replace(row, leader=broker_id, isr=(broker_id,), leader_epoch=LeaderEpoch(row.leader_epoch + 1))
    )


# Helpers


def others_have_it(row: PartitionRow, broker_id: int) -> bool:
    """Whether there are other members of the ISR, alive or dead, whose logs are not known to be missing: only to them
    may a partition be left."""
    return any(member != broker_id and not is_missing(row, member) for member in row.isr)


def _without_fenced(row: PartitionRow, brokers: Brokers) -> tuple[int, ...]:
    remaining = tuple(id_ for id_ in row.isr if (broker := brokers.get(id_)) is not None and broker.is_live)
    if any(is_proven(brokers, id_) and not is_missing(row, id_) for id_ in remaining):
        return remaining
    return row.isr


def _can_lead(row: PartitionRow, isr: tuple[int, ...], brokers: Brokers, broker_id: int, status: BrokerStatus) -> bool:
    broker = brokers.get(broker_id)
    return broker is not None and broker.status is status and broker_id in isr and not is_missing(row, broker_id)


def _best_leader(row: PartitionRow, isr: tuple[int, ...], brokers: Brokers) -> int:
    """Considers the present leader first, so that leadership moves only when it must."""
    candidates = (row.leader, *row.replicas)
    for status in (BrokerStatus.ACTIVE, BrokerStatus.DRAINING):
        for broker_id in candidates:
            if _can_lead(row, isr, brokers, broker_id, status):
                return broker_id
    return row.leader if _can_lead(row, isr, brokers, row.leader, BrokerStatus.STARTING) else NO_LEADER


def _in_new_generation(row: PartitionRow) -> PartitionRow:
    """Gives all replicas but the leader new, empty logs. Their incarnations are derived from the old ones, so that two
    deciders write the same."""
    generation = row.generation + 1
    anew = {id_: _following_id(row, id_, generation) for id_ in row.replicas if id_ != row.leader}
    return replace(row, incarnations={**row.incarnations, **anew}, generation=generation)


def _following_id(row: PartitionRow, broker_id: int, number: int) -> uuid.UUID:
    before = row.incarnations.get(broker_id, row.topic_id)
    return uuid.UUID(int=uuid.uuid5(before, f"{broker_id} {number}").int, version=4)


def _changed(
    row: PartitionRow,
    leader: int,
    isr: tuple[int, ...],
    *,
    starts_again: bool = False,
    before: PartitionRow | None = None,
) -> PartitionRow | None:
    assert isr, "the last member never leaves the ISR"
    leader_epoch = LeaderEpoch(row.leader_epoch + (1 if starts_again or leader != row.leader else 0))
    changed = replace(row, leader=leader, isr=isr, leader_epoch=leader_epoch)
    return None if changed == (before or row) else changed
