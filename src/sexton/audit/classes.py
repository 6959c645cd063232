"""The nine ways in which replicas come to disagree, and what each is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Class(IntEnum):
    TOMBSTONE = 1
    ABORTED_TO_COMMITTED = 2
    COMMITTED_TO_ABORTED = 3
    STUCK = 4
    LOST_RECORD = 5
    DIFFERENT_LOGS = 6
    WRONG_CLAIM = 7
    WILL_DIVERGE = 8
    RETENTION = 9

    @property
    def label(self) -> str:
        return _KNOWN[self].label

    @property
    def meaning(self) -> str:
        return _KNOWN[self].meaning

    @property
    def is_error(self) -> bool:
        return self is not Class.RETENTION


@dataclass(frozen=True, slots=True)
class _Meaning:
    label: str
    meaning: str


_KNOWN: Final = {
    Class.TOMBSTONE: _Meaning(
        "tombstone",
        "A deleted key is back: the others compacted its tombstone away while this replica was away.",
    ),
    Class.ABORTED_TO_COMMITTED: _Meaning(
        "aborted-to-committed",
        "Aborted data is shown as committed: the ABORT marker was compacted away, and a later COMMIT of the same "
        "producer was taken for its end.",
    ),
    Class.COMMITTED_TO_ABORTED: _Meaning(
        "committed-to-aborted",
        "A committed change is hidden: its COMMIT marker was compacted away, and a later ABORT of the same producer "
        "was taken for its end.",
    ),
    Class.STUCK: _Meaning(
        "stuck",
        "Consumers with read_committed get nothing from here on: a transaction is open whose marker was compacted away "
        "elsewhere, and will never come; or the broker holds its last stable offset back without one.",
    ),
    Class.LOST_RECORD: _Meaning(
        "lost-record", "This replica has lost a record that was acknowledged: a disk, an unclean stop, or a bug."
    ),
    Class.DIFFERENT_LOGS: _Meaning(
        "different-logs",
        "One offset holds different records: the logs went apart, as after an unclean election.",
    ),
    Class.WRONG_CLAIM: _Meaning(
        "wrong-claim",
        "The logs agree, but a broker's index or list of transactions contradicts its own log.",
    ),
    Class.WILL_DIVERGE: _Meaning(
        "will-diverge",
        "This replica will show something else than the others once it has caught up: what it has missed is gone.",
    ),
    Class.RETENTION: _Meaning("retention", "The key lies below where a replica's log starts. No error."),
}
