"""Anomalies of compacted logs."""

from __future__ import annotations

from typing import Final

from sexton.checker.edit import Edit
from sexton.checker.planted import (
    LONG_TABLE,
    SHORT_TABLE,
    TABLES,
)
from sexton.checker.plants.registry import SKIPS, TABLE, Place, Plants
from sexton.history.op import F, Record, Send

PLANTS: Final = Plants()


@PLANTS.named(
    "lost-record",
    implied=[*TABLE, "lost-key", "stale-value", "resurrected-key", "slow-reader", "tombstone-too-early"],
)
def _record_of_a_table_is_withheld(edit: Edit) -> Place:
    looks = [(look, log) for log in TABLES for look in edit.view.looks_at.get(log, ())]
    found = [
        (look, log, newest.value)
        for look, log in looks
        for newest in edit.newest(look, log).values()
        if any(record.value == newest.value for record in look.records) and edit.is_seen_twice(log, newest.value)
    ]
    look, log, value = edit.pick(found)
    edit.drop(look.call, log, value)
    return Place(log, value)


@PLANTS.named("lost-key", implied=TABLE)
def _key_of_a_table_is_withheld(edit: Edit) -> Place:
    found = [
        (look, log, key, newest)
        for look, log in edit.tables()
        for key, newest in edit.newest(look, log).items()
        if not newest.send.is_tombstone
    ]
    look, log, key, newest = edit.pick(found)
    edit.drop(look.call, log, *(record.value for record in look.records if record.key == key))
    return Place(log, newest.value)


@PLANTS.named("stale-value", implied=TABLE)
def _newest_value_of_a_key_is_withheld(edit: Edit) -> Place:
    found = [
        (look, log, newest)
        for look, log in edit.tables()
        for key, newest in edit.newest(look, log).items()
        if not newest.send.is_tombstone and sum(record.key == key for record in look.records) > 1
    ]
    look, log, newest = edit.pick(found)
    edit.drop(look.call, log, newest.value)
    return Place(log, newest.value)


@PLANTS.named("resurrected-key", implied=[*TABLE, "tombstone-too-early"])
def _deleted_value_is_given_without_its_tombstone(edit: Edit) -> Place:
    found = []
    for look, log in edit.tables():
        removal = edit.view.removals[log]
        kept_ns = (edit.run.logs[log].delete_retention_ms - edit.run.clock_skew_ms) * 1_000_000
        if look.call.end_ns - look.call.begin_ns >= kept_ns:
            continue
        for key, records in removal.certain.items():
            newest = removal.newest_below(key, look.span.end_offset)
            if newest is None or removal.may_have_newer(key, newest.offset + 1, look.call.end_ns):
                continue
            older = [record for record in records if record.offset < newest.offset and not record.send.is_tombstone]
            if newest.send.is_tombstone and older:
                found.append((look, log, newest, older[-1]))
    look, log, tombstone, value = edit.pick(found)
    key = tombstone.send.key
    edit.drop(look.call, log, *(record.value for record in look.records if record.key == key))
    edit.insert(look.call, log, Record(value.offset, value.value, key))
    return Place(log, tombstone.value)


def _delete(edit: Edit, log: int) -> tuple[Record, Record]:
    """A key that nobody used, sent and deleted when all other tombstones may be gone."""
    edit.wait(10)
    key = 99
    value = Record(edit.new_offset(log), edit.new_value(), key)
    tombstone = Record(edit.new_offset(log), edit.new_value(), key, True)
    for record in (value, tombstone):
        edit.call(edit.new_process(), F.SEND, Send(log, record.value, record.offset, key, record.is_tombstone))
    return value, tombstone


@PLANTS.named("slow-reader")
def _reader_is_slower_than_tombstones_are_kept(edit: Edit) -> Place:
    value, tombstone = _delete(edit, SHORT_TABLE)
    edit.table(SHORT_TABLE, [*_settled(edit, SHORT_TABLE), value], seconds=10)
    return Place(SHORT_TABLE, tombstone.value)


@PLANTS.named("reappeared", implied=["resurrected-key"])
def _deleted_value_is_there_again(edit: Edit) -> Place:
    value, tombstone = _delete(edit, SHORT_TABLE)
    settled = _settled(edit, SHORT_TABLE)
    edit.table(SHORT_TABLE, [*settled, value, tombstone])
    edit.wait(10)
    edit.table(SHORT_TABLE, settled)
    edit.table(SHORT_TABLE, [*settled, value])
    return Place(SHORT_TABLE, value.value)


@PLANTS.named("replicas-disagree", implied=["resurrected-key", "slow-reader"])
def _one_replica_has_what_is_deleted(edit: Edit) -> Place:
    value, _ = _delete(edit, SHORT_TABLE)
    settled = _settled(edit, SHORT_TABLE)
    edit.wait(10)
    edit.table(SHORT_TABLE, settled, replica=1)
    edit.table(SHORT_TABLE, [*settled, value], replica=2)
    return Place(SHORT_TABLE, value.value)


def _settled(edit: Edit, log: int) -> list[Record]:
    """What a table that is read later may be given: the newest of each key."""
    newest = {record.key: record for record in edit.content(log)}
    return [record for record in newest.values() if not record.is_tombstone]


@PLANTS.named("table-drift", implied=["lost-key", *TABLE])
def _fresh_table_lacks_what_a_kept_one_has(edit: Edit) -> Place:
    log = edit.pick(TABLES)
    content = edit.content(log)
    newest = {record.key: record for record in content}
    removal = edit.view.removals[log]
    lost = edit.pick(
        record
        for record in newest.values()
        if not record.is_tombstone and not removal.may_be_gone(record.value, edit.view.end_ns)
    )
    edit.table(log, [record for record in content if record.key != lost.key])
    return Place(log, lost.value)


@PLANTS.named(
    "moved",
    implied=["duplicate", "int-nonmonotonic-poll", "stale-value", "resurrected-key", "table-drift", *SKIPS],
)
def _record_is_at_another_offset(edit: Edit) -> Place:
    """Which may put it before an older record of its key."""
    log = edit.pick(TABLES)
    content = edit.content(log)
    record = edit.pick(content)
    free = set(range(record.offset)) - set(edit.view.order(log).offsets)
    offset = edit.pick(sorted(free))
    edit.table(log, [other if other != record else record._replace(offset=offset) for other in content])
    return Place(log, record.value)


@PLANTS.named("tombstone-too-early", implied=TABLE)
def _tombstone_is_withheld(edit: Edit) -> Place:
    found = [
        (look, log, key, newest)
        for look, log in edit.tables(LONG_TABLE)
        for key, newest in edit.newest(look, log).items()
        if newest.send.is_tombstone
    ]
    look, log, key, newest = edit.pick(found)
    edit.drop(look.call, log, *(record.value for record in look.records if record.key == key))
    return Place(log, newest.value)
