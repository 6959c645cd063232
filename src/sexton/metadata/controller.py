"""What the controller does next, as data; the caller carries it out through the metastore.

Every broker calls `controller_steps` each time it has looked at the leases. For most brokers it answers one question:
is there a controller, and is it alive? If not, an ACTIVE broker claims the role. The controller itself fences brokers
whose lease has expired, elects leaders, completes reassignments, and periodically gives leaderships back to preferred
leaders.

Each action is a compare-and-set, so one that comes late fails and is decided again; nothing is assumed to have worked
until the view shows it. A former controller that does not know yet that it was replaced only does the same work again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sexton.metadata import reassignment
from sexton.metadata.cloud_elections import elect_cloud
from sexton.metadata.elections import elect, elect_preferred
from sexton.metadata.leases import ExpiredLease, LeaseWatch
from sexton.metadata.view import ClusterView
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow
from sexton.types import NO_LEADER

ROWS_PER_ACTION_MAX = 1000
"""Rows per transaction: large enough to move a dead broker's partitions at once, small enough for its timeout."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    allows_unclean: Callable[[str], bool]
    """Whether the topic of this name allows unclean elections (`elections.allows_unclean`)."""
    rebalances_leaders: bool = True
    """`auto.leader.rebalance.enable`."""
    rebalance_interval_ms: int = 300_000
    """`leader.imbalance.check.interval.seconds`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """To be carried out with `claim_controller(own id, own epoch, expected_term)`."""

    expected_term: int


@dataclass(frozen=True, slots=True)
class Fence:
    """To be carried out with `fence_broker`."""

    lease: ExpiredLease


@dataclass(frozen=True, slots=True)
class UpdatePartitions:
    """To be carried out with `update_partitions(rows, live)`. `why` is for the log."""

    rows: Sequence[PartitionRow]
    live: Mapping[int, int]
    why: str
    relied_on: BrokerRow | None = None
    """The broker that must prove to be alive first, because others that have everything leave the ISR and rely on it.
    That its lease has not expired says nothing about the last seconds: its disk may be gone, or its power, and with it
    what was not flushed. And replicas that a completed reassignment removes delete their logs."""


Action = Claim | Fence | UpdatePartitions


@dataclass(frozen=True, slots=True)
class ControllerMemory:
    """State between two calls. It only saves work: with a new one, everything is looked at again."""

    checked_version: int = -1
    """The version of the view in which no partition needed anything."""
    rebalanced_ms: int | None = None


def controller_steps(
    view: ClusterView,
    watch: LeaseWatch,
    broker_id: int,
    broker_epoch: int,
    now_ms: int,
    settings: ControllerSettings,
    memory: ControllerMemory,
) -> tuple[list[Action], ControllerMemory]:
    """`now_ms` is monotonic. To be called again after the actions have been carried out: fencing a broker makes
    elections due."""
    own = view.broker(broker_id)
    if own is None or own.epoch != broker_epoch or own.status is not BrokerStatus.ACTIVE:
        return [], ControllerMemory()
    if not _is_controller(view, own):
        return ([] if _has_controller(view, watch) else [_claim(view)]), ControllerMemory()
    others = [row for row in view.live_brokers() if row.broker_id != broker_id]
    actions: list[Action] = [Fence(lease) for lease in watch.expired(others)]
    rebalanced_ms = now_ms if memory.rebalanced_ms is None else memory.rebalanced_ms
    if memory.checked_version != view.version:
        updates = _updates(view, own, _needed_rows(view, settings), "elections and reassignments")
        actions += updates
        if not updates:
            memory = replace(memory, checked_version=view.version)
    if settings.rebalances_leaders and now_ms - rebalanced_ms >= settings.rebalance_interval_ms:
        rebalanced_ms = now_ms
        actions += _updates(view, own, _rebalanced_rows(view), "preferred leaders")
    return actions, replace(memory, rebalanced_ms=rebalanced_ms)


def _is_controller(view: ClusterView, own: BrokerRow) -> bool:
    row = view.controller
    return row is not None and (row.broker_id, row.broker_epoch) == (own.broker_id, own.epoch)


def _has_controller(view: ClusterView, watch: LeaseWatch) -> bool:
    """A controller that is shutting down does not count: another broker may take over at once."""
    row = view.controller
    broker = view.broker(row.broker_id) if row is not None else None
    return (
        row is not None
        and broker is not None
        and broker.epoch == row.broker_epoch
        and broker.status in (BrokerStatus.STARTING, BrokerStatus.ACTIVE)
        and not watch.has_run_out(broker)
    )


def _claim(view: ClusterView) -> Claim:
    return Claim(view.controller.term if view.controller is not None else 0)


def _needed_rows(view: ClusterView, settings: ControllerSettings) -> Iterator[PartitionRow]:
    """Most partitions need nothing, and this runs whenever anything in the cluster has changed, so they are skipped
    quickly."""
    brokers = view.brokers
    active = {id_ for id_, broker in brokers.items() if broker.status is BrokerStatus.ACTIVE}
    for row in view.partitions():
        is_whole = len(row.isr) == len(row.replicas) or not row.is_cloud
        if row.leader in active and active.issuperset(row.isr) and is_whole and not reassignment.is_in_progress(row):
            continue
        topic = view.topic_by_id(row.topic_id)
        assert topic is not None
        if row.is_cloud:
            elected = elect_cloud(row, brokers)
            if elected is not None:
                yield elected
            continue
        changed = elect(row, brokers)
        if (changed or row).leader == NO_LEADER and settings.allows_unclean(topic.name):
            changed = elect(row, brokers, unclean=True)
        changed = reassignment.progress(changed or row, brokers) or changed
        if changed is not None:
            yield changed


def _rebalanced_rows(view: ClusterView) -> Iterator[PartitionRow]:
    for row in view.partitions():
        if row.leader not in (row.replicas[0], NO_LEADER):
            changed = elect_preferred(row, view.brokers)
            if changed is not None:
                yield changed


def _updates(view: ClusterView, own: BrokerRow, rows: Iterator[PartitionRow], why: str) -> list[UpdatePartitions]:
    """Leaders are elected with the broker epochs that were seen alive. Rows with the same leader go together: the
    election of a leader that has restarted meanwhile is refused, and affects no other."""
    together: dict[int, list[PartitionRow]] = {}
    for row in rows:
        together.setdefault(row.leader, []).append(row)
    updates = []
    for leader, led in together.items():
        live = {own.broker_id: own.epoch}
        if leader != NO_LEADER:
            live[leader] = view.brokers[leader].epoch
        relied_on = None if leader in (NO_LEADER, own.broker_id) else view.brokers[leader]
        for start in range(0, len(led), ROWS_PER_ACTION_MAX):
            updates.append(UpdatePartitions(led[start : start + ROWS_PER_ACTION_MAX], live, why, relied_on))
    return updates
