"""Why replicas differ on a key: which of the classes it is, by what is left of the story in their logs.

Nothing in a log says "I was away". What remains of it is a *hole*: offsets that this replica never got, because they
had been compacted away where it copied from. So the question is always what lies on which side of a hole: a record
whose transaction ended before it was committed for good; one whose marker comes after it may have been given another
transaction's marker.

Whatever cannot be told apart from what is left is said so: `is_sure` is false and `alternatives` names the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sexton.audit.claims import Mismatch, Mismatches
from sexton.audit.classes import Class
from sexton.audit.keys import DifferingKey, Explained, OnReplica, Sight
from sexton.audit.standing import Gap, Marker, Standing
from sexton.records.batch import ControlType
from sexton.types import NO_OFFSET, NO_PRODUCER_ID

TRANSACTION_MS_MAX: Final = 900_000
"""`transaction.max.timeout.ms` unless somebody changed it: no transaction is open for longer."""

Standings = Mapping[int, Standing]


def explain(key: DifferingKey, standings: Standings, reference: int, mismatches: Mismatches) -> Explained:
    """`mismatches` are those of these standings (`find_mismatches`), found once for all keys."""
    if key.is_pinned:
        return _pinned(key, standings)
    right, why_right = _right(key, standings, reference)
    accused = [number for number in key.replicas if number not in right]
    # Each wrong replica may have its own story. The one told is that of the first, by what explains most.
    found = _against(key, accused[0], right[0], standings, mismatches)
    lost = found.facts.get("fault_of") == "the others"
    if lost:
        accused, right = list(right), accused
        why_right = "it has what must not be missing"
    predicted = [number for number in accused if _is_predicted(standings[number], standings)]
    if predicted and len(predicted) == len(accused):
        found = _will_diverge(found, standings[predicted[0]])
    return Explained(
        is_class=found.is_class,
        is_sure=found.is_sure,
        because=found.because,
        accused=tuple(accused),
        right=tuple(right),
        why_right=why_right,
        alternatives=found.alternatives,
        facts={name: value for name, value in found.facts.items() if name != "fault_of"},
    )


# ---- Who is right. ----


def _right(key: DifferingKey, standings: Standings, reference: int) -> tuple[list[int], str]:
    """Which replicas we hold to be right, and why. What their logs prove comes first, then how many they are: a
    majority may have been away together."""
    groups = key.groups()
    away = _were_away(key, standings)
    if away:
        return [number for number in key.replicas if number not in away], (
            "it has compacted what came after, where the other has a hole that it has copied"
        )
    deleted_at = _deletion(key)
    if deleted_at is not None and None in groups:
        return groups[None], f"the tombstone at offset {deleted_at:,} is there"
    voters = [each for each in key.replicas if _votes(standings[each], standings)] or list(key.replicas)
    votes = {value: sum(each in voters for each in members) for value, members in groups.items()}
    most = [value for value, count in votes.items() if count == max(votes.values())]
    if len(most) == 1:
        is_only = votes[most[0]] == len(voters)
        return groups[most[0]], "it is up to date" if is_only else f"{votes[most[0]]} of {len(voters)} agree"
    if None in groups and len(groups) == 2 and _has_compacted(key, groups[None], standings):
        return groups[None], "it has compacted what came after"
    return groups[key.replicas[reference].value], (
        "it leads" if standings[reference].replica.is_leader else "its log reaches furthest, in the latest epoch"
    )


def _deletion(key: DifferingKey) -> int | None:
    """Where the newest record of all is a tombstone that no transaction could have aborted."""
    for each in key.replicas.values():
        newest = each.newest
        if newest is not None and newest.offset == key.newest_offset and newest.is_tombstone:
            return None if newest.is_transactional else newest.offset
    return None


def _votes(standing: Standing, standings: Standings) -> bool:
    """One that is down while others run, or that runs out of sync, tells of another time."""
    is_apart = standing.replica.is_down and any(not each.replica.is_down for each in standings.values())
    return not is_apart and standing.replica.is_in_sync is not False


def _were_away(key: DifferingKey, standings: Standings) -> list[int]:
    """Those that show something, if the others' cleaners have gone over it, and these have holes after it that no
    cleaner of theirs has made."""
    groups = key.groups()
    if None not in groups or len(groups) != 2 or not _has_compacted(key, groups[None], standings):
        return []
    rest = [number for number in key.replicas if number not in groups[None]]
    offset = key.newest_offset
    copied = [number for number in rest if standings[number].holes(offset)]
    if len(copied) < len(rest) or any(standings[number].may_have_cleaned(offset) for number in rest):
        return []
    return rest


def _has_compacted(key: DifferingKey, numbers: Sequence[int], standings: Standings) -> bool:
    return all((standings[each].replica.clean_offset or 0) > key.newest_offset for each in numbers)


def _is_predicted(standing: Standing, standings: Standings) -> bool:
    """Whether what is compared is what it will show, not what it shows: it lags, or is down while others are not."""
    return standing.lags or (standing.replica.is_down and any(not each.replica.is_down for each in standings.values()))


def _will_diverge(found: Explained, standing: Standing) -> Explained:
    how = "once it has caught up" if standing.lags else "once it is back"
    return Explained(
        is_class=Class.WILL_DIVERGE,
        is_sure=True,
        because=f"{standing.label} will show this {how}, and nothing that is left elsewhere mends it. It will be of "
        f"class {_named(found)}: {found.because}",
        facts={**found.facts, "will_be": int(found.is_class), "will_be_is_sure": found.is_sure},
    )


def _named(found: Explained) -> str:
    name = Class(found.is_class).label
    return name if found.is_sure else f"{name} or {' or '.join(Class(each).label for each in found.alternatives)}"


# ---- One replica against one that is right. ----


def _against(key: DifferingKey, accused: int, right: int, standings: Standings, mismatches: Mismatches) -> Explained:
    mine, theirs = key.replicas[accused], key.replicas[right]
    me, other = standings[accused], standings[right]
    my_offset = mine.shown.offset if mine.shown is not None else NO_OFFSET
    their_offset = theirs.shown.offset if theirs.shown is not None else NO_OFFSET
    if my_offset == their_offset and mine.content != theirs.content:
        return _different(mine.shown, theirs.shown, me, other)
    waiting = _waits(mine, me)
    if waiting is not None:
        return waiting
    hidden = _hides(mine, my_offset, me, standings, mismatches.get(accused, ()))
    if hidden is not None:
        return hidden
    if mine.newest is not None and their_offset >= 0 and mine.newest.offset > max(my_offset, their_offset):
        return _never_came(mine.newest, me, other)
    if their_offset > my_offset:
        found = _lost(theirs.shown, me, other, is_mine=True)
        found = found if my_offset >= 0 else _or_rightly_gone(found, their_offset, me)
        return _or_never_committed(found, theirs.shown, mine, me, other)
    assert mine.shown is not None, "it differs, and the other shows nothing newer"
    if theirs.newest is not None and theirs.newest.offset > my_offset:
        return _missed(theirs.newest, mine.shown, me, other)
    keeps_older = theirs.newest is not None
    if theirs.hidden is not None and theirs.hidden.offset == my_offset:
        return _committed_here_only(mine.shown, me, other)
    if _must_have(other, my_offset):
        return _lost(mine.shown, other, me, is_mine=False)
    return _never_came(mine.shown, me, other) if keeps_older else _came_back(mine.shown, me, other)


def _different(mine: Sight | None, theirs: Sight | None, me: Standing, other: Standing) -> Explained:
    assert mine is not None
    assert theirs is not None
    because = f"offset {mine.offset:,} holds one record on {me.label} and another on {other.label}"
    if mine.was_looked_up and theirs.was_looked_up:
        if mine.leader_epoch != theirs.leader_epoch:
            because += f", of leader epochs {mine.leader_epoch} and {theirs.leader_epoch}"
        elif mine.value == theirs.value and mine.timestamp_ms != theirs.timestamp_ms:
            because += f", that differ in their timestamps ({mine.timestamp_ms} and {theirs.timestamp_ms})"
    return Explained(Class.DIFFERENT_LOGS, True, because, facts={"offset": mine.offset})


def _waits(mine: OnReplica, me: Standing) -> Explained | None:
    """Something newer of the key is here, in a transaction that is open."""
    hidden = mine.hidden
    if hidden is None or (mine.newest is not None and hidden.offset < mine.newest.offset):
        return None
    for producer_id, first in me.open_transactions():
        is_its = hidden.producer_id in (producer_id, NO_PRODUCER_ID)
        if is_its and hidden.is_transactional and first <= hidden.offset and me.visible_end <= hidden.offset:
            what = "a tombstone" if hidden.is_tombstone else "a newer record"
            return Explained(
                Class.STUCK,
                True,
                f"{what} waits at offset {hidden.offset:,} in a transaction of producer {producer_id} that is open on "
                f"{me.label} since offset {first:,}; the next marker of this producer ends it, whatever it is",
                facts={"producer_id": producer_id, "first_offset": first, "waiting_offset": hidden.offset},
            )
    return None


def _hides(
    mine: OnReplica, shown_offset: int, me: Standing, standings: Standings, mismatches: Sequence[Mismatch]
) -> Explained | None:
    """Its newest visible record is older than one of an aborted transaction, which others begin, or end, elsewhere."""
    hidden = mine.hidden
    for each in mismatches:
        marker = each.marker
        is_inside = (
            hidden is not None
            and each.first <= hidden.offset < each.elsewhere
            and hidden.producer_id in (marker.producer_id, NO_PRODUCER_ID)
        )
        is_newer = hidden is not None and is_inside and hidden.offset > shown_offset
        if is_newer or (hidden is None and 0 <= shown_offset < each.first):
            return _aborted_here(each, hidden if is_inside else None, me)
    if hidden is None or hidden.offset < shown_offset or hidden.producer_id == NO_PRODUCER_ID:
        return None
    marker_here = me.marker_ending(hidden.producer_id, hidden.offset)
    if marker_here is None or marker_here.control_type != ControlType.ABORT:
        return None
    if not _commits_elsewhere(hidden, standings, me):
        return None
    return Explained(
        Class.COMMITTED_TO_ABORTED,
        True,
        f"the record at offset {hidden.offset:,} is of a transaction that {me.label} ends with the ABORT at "
        f"{marker_here.offset:,}, and another replica with a COMMIT",
        facts={"marker_offset": marker_here.offset, "producer_id": hidden.producer_id, "first_offset": hidden.offset},
    )


def _aborted_here(each: Mismatch, hidden: Sight | None, me: Standing) -> Explained:
    if hidden is None:
        what = "if it hid a tombstone of this key, that has been compacted away as aborted"
    else:
        what = f"it hides {'a tombstone' if hidden.is_tombstone else 'a record'} at {hidden.offset:,}"
    return Explained(
        Class.COMMITTED_TO_ABORTED,
        hidden is not None,
        f"the ABORT at offset {each.marker.offset:,} of producer {each.marker.producer_id} ends a transaction that "
        f"begins at {each.first:,} on {me.label}, and at {each.elsewhere:,} on the others: an older transaction, whose "
        f"COMMIT was compacted away, was ended by it; {what}",
        alternatives=() if hidden is not None else (Class.TOMBSTONE,),
        facts={
            "producer_id": each.marker.producer_id,
            "marker_offset": each.marker.offset,
            "first_offset": each.first,
            "first_offset_elsewhere": each.elsewhere,
        },
    )


def _commits_elsewhere(hidden: Sight, standings: Standings, me: Standing) -> bool:
    for standing in standings.values():
        if standing is me:
            continue
        marker = standing.marker_ending(hidden.producer_id, hidden.offset)
        if marker is not None and marker.control_type == ControlType.COMMIT:
            return True
    return False


def _committed_here_only(mine: Sight, me: Standing, other: Standing) -> Explained:
    marker = me.marker_ending(mine.producer_id, mine.offset) if mine.producer_id != NO_PRODUCER_ID else None
    where = "" if marker is None else f" at {marker.offset:,}"
    return Explained(
        Class.ABORTED_TO_COMMITTED,
        True,
        f"the record at offset {mine.offset:,} is committed on {me.label} by the marker{where}, and aborted on "
        f"{other.label}",
        facts={"offset": mine.offset, "producer_id": mine.producer_id},
    )


def _must_have(standing: Standing, offset: int) -> bool:
    """Whether nothing legal explains that a replica lacks the record at an offset: its cleaner has never been there,
    and where it was copied from nobody's had, for there is no hole."""
    clean = standing.replica.clean_offset
    return clean is not None and clean <= offset < standing.committed_end and standing.has_batch_at(offset)


def _lost(record: Sight | None, loser: Standing, other: Standing, *, is_mine: bool) -> Explained:
    assert record is not None
    return Explained(
        Class.LOST_RECORD,
        True,
        f"{loser.label} lacks the record at offset {record.offset:,} that {other.label} has, and has nothing newer of "
        f"the key, though it reaches offset {loser.end_offset:,}",
        facts={"offset": record.offset, "fault_of": "it" if is_mine else "the others"},
    )


def _or_rightly_gone(found: Explained, offset: int, me: Standing) -> Explained:
    """Where a replica shows nothing at all, its cleaner may have been right, and the others were away together."""
    clean = me.replica.clean_offset
    if me.replica.is_live if clean is None else clean > offset:
        return replace(
            found,
            is_sure=False,
            because=f"{found.because}; unless it was deleted, and all that show it were away then",
            alternatives=(Class.TOMBSTONE,),
        )
    return found


def _or_never_committed(
    found: Explained, record: Sight | None, mine: OnReplica, me: Standing, other: Standing
) -> Explained:
    """Where a cleaner has been, a record may be missing because it was aborted; then those that show it were away."""
    assert record is not None
    if not record.is_transactional or _must_have(me, record.offset):
        return found
    told = _never_came(record, other, me) if mine.newest is not None else None
    if told is not None and told.is_class == Class.ABORTED_TO_COMMITTED and told.is_sure:
        return replace(told, facts={**told.facts, "fault_of": "the others"})
    if told is not None and told.is_class == Class.LOST_RECORD:
        return found
    return replace(
        found,
        is_sure=False,
        because=f"{found.because}; unless it was aborted, and all that show it were away then",
        alternatives=(Class.ABORTED_TO_COMMITTED, *found.alternatives),
    )


# ---- A value that others do not have: deleted, or never committed? ----


def _missed(tombstone: Sight, mine: Sight, me: Standing, other: Standing) -> Explained:
    """No cleaner takes a tombstone and leaves what it deletes: it never came here, or was lost."""
    return Explained(
        Class.TOMBSTONE,
        False,
        f"{me.label} shows the record at offset {mine.offset:,}, lacks the tombstone that {other.label} has at offset "
        f"{tombstone.offset:,}, and has been read past it",
        alternatives=(Class.LOST_RECORD,),
        facts={"offset": mine.offset, "tombstone_offset": tombstone.offset, **_hole_facts(me.holes(mine.offset))},
    )


def _never_came(mine: Sight, me: Standing, other: Standing) -> Explained:
    """The other has an older record of the key. No cleaner leaves that and takes a newer one that was committed: so it
    was aborted, or the other never got it."""
    where = f"{me.label} shows the record at offset {mine.offset:,}, where {other.label} has none but an older one"
    marker = _ending(mine, me) if mine.is_transactional else None
    holes = me.holes(mine.offset, NO_OFFSET if marker is None else marker.offset)
    if not mine.is_transactional or (marker is not None and not holes and me.has_all_gaps):
        lost = _lost(mine, other, me, is_mine=False)
        return replace(lost, is_sure=False, alternatives=(Class.DIFFERENT_LOGS,))
    facts: dict[str, object] = {"offset": mine.offset, **_hole_facts(holes)}
    if marker is not None:
        facts |= _marker_facts(marker)
        where += _ended_by(marker, holes)
        proof = _not_its_marker(mine, marker, holes) if holes else ""
        if proof:
            because = f"{where}, and {proof}: its own ABORT was compacted away"
            return Explained(Class.ABORTED_TO_COMMITTED, True, because, facts=facts)
    because = f"{where}; it was aborted, unless {other.label} has lost it"
    return Explained(Class.ABORTED_TO_COMMITTED, False, because, alternatives=(Class.LOST_RECORD,), facts=facts)


def _came_back(mine: Sight, me: Standing, other: Standing) -> Explained:
    where = f"{me.label} shows the record at offset {mine.offset:,}, of which {other.label} has nothing any more"
    if not mine.is_transactional:
        return _tombstone(f"{where}: it was deleted, and the tombstone is gone", me, mine)
    marker = _ending(mine, me)
    if marker is None:
        return _either(f"{where}; which marker ended its transaction cannot be told from folds alone", me, mine)
    holes = me.holes(mine.offset, marker.offset)
    facts = _marker_facts(marker)
    if not holes and not me.has_all_gaps:
        return _either(f"{where}; its log has too many holes to tell of each", me, mine, facts)
    if not holes:
        return _tombstone(
            f"{where}: its transaction was committed at {marker.offset:,}, with nothing missing in between; it was "
            "deleted later, and the tombstone is gone",
            me,
            mine,
            facts,
        )
    told = where + _ended_by(marker, holes)
    proof = _not_its_marker(mine, marker, holes)
    if proof:
        because = f"{told}, and {proof}: its own marker was compacted away, an ABORT, or a COMMIT and then a tombstone"
        return _either(because, me, mine, facts)
    if mine.was_looked_up and marker.producer_epoch == mine.producer_epoch + 1:
        because = (
            f"{told}; with transaction version 2 that marker is of the record's own transaction, by its epoch "
            f"{marker.producer_epoch}, so it was deleted later, and the tombstone is gone"
        )
        found = _tombstone(because, me, mine, facts)
        others = (Class.ABORTED_TO_COMMITTED, *found.alternatives)
        return replace(found, is_sure=False, alternatives=others)
    return _either(f"{told}, which may be another transaction's", me, mine, facts)


def _marker_facts(marker: Marker) -> dict[str, object]:
    return {
        "producer_id": marker.producer_id,
        "marker_offset": marker.offset,
        "marker_epoch": marker.producer_epoch,
    }


def _ended_by(marker: Marker, holes: Sequence[Gap]) -> str:
    beyond = f", beyond a hole at {holes[0].start:,}" if holes else ""
    return f"; its transaction is ended by the COMMIT at {marker.offset:,}{beyond}"


def _ending(mine: Sight, me: Standing) -> Marker | None:
    """Without the producer's id, if only one transaction can be meant."""
    if mine.producer_id != NO_PRODUCER_ID:
        return me.marker_ending(mine.producer_id, mine.offset)
    spanning = [
        marker
        for marker in me.markers(ControlType.COMMIT)
        if NO_OFFSET != marker.first_data_offset <= mine.offset < marker.offset
    ]
    return spanning[0] if len(spanning) == 1 else None


def _not_its_marker(mine: Sight, marker: Marker, holes: Sequence[Gap]) -> str:
    """Why the marker cannot be of the record's transaction; "" if it may be."""
    if not mine.was_looked_up:
        return ""
    if marker.producer_epoch > mine.producer_epoch + 1:
        # From transaction version 2 on each transaction has an epoch of its own, one below its marker's.
        return (
            f"the marker's epoch is {marker.producer_epoch} where the record's is {mine.producer_epoch}: transactions "
            "have ended in between"
        )
    open_ms = max(each.time_after_ms for each in holes) - mine.timestamp_ms
    if open_ms > TRANSACTION_MS_MAX:
        return f"it comes {open_ms // 1000} s later, which is longer than a transaction can be open"
    return ""


def _tombstone(because: str, me: Standing, mine: Sight, facts: Mapping[str, object] | None = None) -> Explained:
    """Sure as long as this replica's own cleaner has left what lies above the record: it might have taken the traces of
    a transaction that hid the tombstone here."""
    holes = me.holes(mine.offset)
    is_sure = not me.may_have_cleaned(mine.offset)
    if not is_sure:
        because += ", unless it was hidden here by a transaction of which its own cleaner has left nothing"
    elif holes:
        because += f" (offsets {holes[0].start:,} to {holes[0].end:,} never came: it was away then)"
    return Explained(
        Class.TOMBSTONE,
        is_sure,
        because,
        alternatives=() if is_sure else (Class.COMMITTED_TO_ABORTED,),
        facts={"offset": mine.offset, **(facts or {}), **_hole_facts(holes)},
    )


def _either(because: str, me: Standing, mine: Sight, facts: Mapping[str, object] | None = None) -> Explained:
    return Explained(
        Class.ABORTED_TO_COMMITTED,
        False,
        because,
        alternatives=(Class.TOMBSTONE,),
        facts={"offset": mine.offset, **(facts or {}), **_hole_facts(me.holes(mine.offset))},
    )


def _hole_facts(holes: Sequence[Gap]) -> dict[str, object]:
    """The first of them, and when the batches around it were written."""
    if not holes:
        return {}
    first = holes[0]
    return {"hole": [first.start, first.end], "hole_times_ms": [first.time_before_ms, first.time_after_ms]}


# ---- A replica whose consumers wait. ----


def _pinned(key: DifferingKey, standings: Standings) -> Explained:
    newest = key.newest_offset
    accused = tuple(number for number in key.replicas if standings[number].visible_end <= newest)
    me = standings[accused[0]]
    producers = [pair for pair in me.open_transactions() if pair[1] <= me.visible_end]
    told = f", pinned by producer {producers[0][0]}" if producers else ""
    is_predicted = all(_is_predicted(standings[number], standings) for number in accused)
    return Explained(
        Class.WILL_DIVERGE if is_predicted else Class.STUCK,
        True,
        f"its newest record, at offset {newest:,}, is not shown by {me.label}, whose last stable offset "
        f"{'will be' if is_predicted else 'is'} {me.visible_end:,}{told}",
        accused=accused,
        right=tuple(number for number in key.replicas if number not in accused),
        why_right="its consumers go on",
        facts={"offset": newest, "will_be": int(Class.STUCK)} if is_predicted else {"offset": newest},
    )
