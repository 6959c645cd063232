"""Moving replicas between brokers while the partition is in use (KIP-455).

A reassignment has three stages. It starts: the row names old and new replicas together (new ones first, `adding` and
`removing` say which is which). New replicas copy the log and join the ISR as any follower does. When all replicas that
are to stay are in sync, it completes: the removed ones leave replicas and ISR, and if one of them leads, another is
elected. The row holds everything, so any controller can continue it, and a second request replaces the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sexton.metadata.elections import Brokers, elect, elect_uncleanly, is_proven
from sexton.metadata.incarnations import is_missing
from sexton.metadata.placement import check_assignment
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_LEADER


def is_in_progress(row: PartitionRow) -> bool:
    return bool(row.adding or row.removing)


def start(row: PartitionRow, target: Sequence[int], brokers: Brokers) -> PartitionRow | None:
    """The row to write; None if the target is already in place or in progress.

    A reassignment in progress is replaced: replicas that it was adding and that are no longer wanted are removed.
    (Kafka keeps them as `removing` until the end. The effect is the same, and Sexton has no need for them.)
    """
    check_assignment(target, brokers)
    if is_in_progress(row) and tuple(target) == tuple(id_ for id_ in row.replicas if id_ not in row.removing):
        return None
    base = tuple(id_ for id_ in row.replicas if id_ not in row.adding)
    isr = row.isr
    dropped = tuple(id_ for id_ in row.adding if id_ not in target)
    if dropped and _have_it(row, (id_ for id_ in row.isr if id_ not in dropped)):
        isr = tuple(id_ for id_ in row.isr if id_ not in dropped)
    elif dropped:
        base = (*base, *(id_ for id_ in dropped if id_ in row.isr))  # what only they have must be copied first
    removing = tuple(id_ for id_ in base if id_ not in target)
    changed = replace(
        row,
        replicas=(*target, *removing),
        isr=isr,
        adding=tuple(id_ for id_ in target if id_ not in base),
        removing=removing,
    )
    changed = progress(changed, brokers) or _elected(changed, brokers)
    return None if changed == row else changed


def progress(row: PartitionRow, brokers: Brokers) -> PartitionRow | None:
    """Completes the reassignment if possible; None if it is not yet."""
    if not is_in_progress(row):
        return None
    replicas = tuple(id_ for id_ in row.replicas if id_ not in row.removing)
    isr = tuple(id_ for id_ in row.isr if id_ not in row.removing)
    if any(id_ not in isr or is_missing(row, id_) for id_ in replicas):
        return None
    ended = _elected(_without_reassignment(row, replicas, isr), brokers)
    if relied_on(row, ended) and not is_proven(brokers, ended.leader):
        return None  # no replica that stays can be asked whether its log is still there, or has checked it yet
    return ended


def cancel(row: PartitionRow, brokers: Brokers, *, unclean: bool = False) -> PartitionRow:
    """Goes back to the replicas from before. If only new ones are in sync, that requires an unclean election, which is
    for partitions that have lost their in-sync replicas. A leader that runs would not hear of it at once, and go on
    acknowledging what its successor never gets."""
    if not is_in_progress(row):
        raise KafkaError(ErrorCode.no_reassignment_in_progress, "the partition is not being reassigned")
    replicas = tuple(id_ for id_ in row.replicas if id_ not in row.adding)
    isr = tuple(id_ for id_ in row.isr if id_ not in row.adding)
    if _have_it(row, isr):
        return _elected(_without_reassignment(row, replicas, isr), brokers)
    if not unclean:
        what = "only the new replicas are in sync: going back needs an unclean election"
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    _check_that_none_runs(row, brokers)
    return _elected_uncleanly(row, replicas, brokers)


def _check_that_none_runs(row: PartitionRow, brokers: Brokers) -> None:
    running = [id_ for id_ in row.isr if _have_it(row, [id_]) and id_ in brokers and brokers[id_].is_live]
    if running:
        what = (
            f"only the new replicas are in sync, and {running} of them run: going back would lose what only they have. "
            "Let the others get in sync, or stop these first"
        )
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)


def relied_on(row: PartitionRow, changed: PartitionRow) -> frozenset[int]:
    """If the change removes members from the ISR: the remaining members that have everything. One of them must be
    alive, because the removed replicas delete their logs. Empty if no member with a log is removed."""
    if not _have_it(row, (id_ for id_ in row.isr if id_ not in changed.isr)):
        return frozenset()
    return frozenset(id_ for id_ in changed.isr if id_ in row.isr and not is_missing(changed, id_))


def _elected_uncleanly(row: PartitionRow, replicas: tuple[int, ...], brokers: Brokers) -> PartitionRow:
    forced = elect_uncleanly(_without_reassignment(row, replicas, row.isr), brokers)
    if forced is None:
        what = "only the new replicas are in sync, and no other one runs: going back would leave nobody to lead"
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    return _elected(forced, brokers)


def _have_it(row: PartitionRow, members: Iterable[int]) -> bool:
    """Whether one of these members of the ISR has a log: the others delete theirs when they are removed."""
    return any(not is_missing(row, id_) for id_ in members)


def _without_reassignment(row: PartitionRow, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionRow:
    return replace(row, replicas=replicas, isr=isr, adding=(), removing=())


def _elected(row: PartitionRow, brokers: Brokers) -> PartitionRow:
    """Replaces a leader that is no longer a replica, and drops the incarnations of former replicas."""
    known = {id_: incarnation for id_, incarnation in row.incarnations.items() if id_ in row.replicas}
    row = replace(row, incarnations=known)
    if row.leader == NO_LEADER or row.leader in row.isr:
        return row
    return elect(row, brokers) or row
