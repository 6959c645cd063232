"""One operation of a history, as Jepsen's Kafka tests write them down.

Each operation is there twice: as its *invocation*, written before the request leaves, and as its *completion*, written
after the answer is back; so the time between the two only ever gets longer, and "this ended before that began" stays
true. A completion says one of three things: it happened (OK), it certainly did not (FAIL), nobody knows (INFO). An
invocation without a completion (its client or the run was killed) counts as INFO.

A *log* is one partition of one topic, by a number (Jepsen calls it a key; here a key is a record's). A *value* is a
number that is sent to one log at most once in a run, so that whoever reads it knows which operation sent it.

What an operation did to records is a list of *micro-operations* in order: sends, and polls of any number of logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

UNKNOWN: Final = -1
"""As an offset: the send was not acknowledged, or its acknowledgement named none. As a key: the record has none. As a
time or process: an imported history does not tell; what would be judged by it is not."""

NEMESIS: Final = -2
"""As a process: whoever injects faults. Its operations say when each fault was in force. Not a client of which nothing
is known: that one is UNKNOWN."""


class Type(IntEnum):
    INVOKE = 0
    OK = 1
    FAIL = 2
    INFO = 3


class F(StrEnum):
    """What was asked for. Other names may occur, and are neither judged nor lost."""

    SEND = "send"
    POLL = "poll"
    TXN = "txn"
    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"
    CRASH = "crash"
    DEBUG = "debug-topic-partitions"
    TABLE = "table"
    """A fresh consumer reads a log from its start to the end that it asked for first."""
    SCAN = "scan"
    """The same through one replica, named in `ext`."""
    COMMIT = "commit"
    COMMITTED = "committed"
    EOS = "eos"
    """Reads, sends what it made of it, and commits the offsets, in one transaction."""
    CREATE = "create"
    DELETE_RECORDS = "delete-records"


READS_AND_WRITES: Final = frozenset({F.SEND, F.POLL, F.TXN, F.TABLE, F.SCAN, F.EOS})
"""Whose value is a list of micro-operations."""

NAMES_LOGS: Final = frozenset({F.ASSIGN, F.SUBSCRIBE, F.CREATE})
"""Whose value is a list of logs."""

NAMES_OFFSETS: Final = frozenset({F.COMMIT, F.COMMITTED, F.DELETE_RECORDS})
"""Whose value is an offset per log."""


def has_value_of_ours(process: int, f: str) -> bool:
    """Whether an operation's value is one of the three. Any other, and that of a nemesis, is in `ext`, as `value`."""
    return process != NEMESIS and (f in READS_AND_WRITES or f in NAMES_LOGS or f in NAMES_OFFSETS)


class Ext(StrEnum):
    """Names in `Op.ext` that a judge reads. Whatever else is there is for people."""

    GROUP = "group"
    """Of a poll, commit, committed, eos."""
    GENERATION = "generation"
    OFFSETS = "offsets"
    """By log, of a transaction: the offsets that it sent for its group."""
    RESET = "reset"
    """True for a commit that is meant to go back."""
    SEEK_TO_BEGINNING = "seek-to-beginning"
    """True for an assign after which the consumer reads from the start of each log."""
    REPLICA = "replica"
    """Of a scan: through which broker."""
    LOG = "log"
    """Of a scan of one log: which, also if nothing of it could be read."""
    FINAL = "final"
    """True for what is read when everything is healed."""
    HIGH_WATERMARKS = "high-watermarks"
    """By log, as the next three, of a `debug-topic-partitions`: what brokers say of themselves."""
    LAST_STABLE_OFFSETS = "last-stable-offsets"
    LOG_STARTS = "log-starts"
    LEADER_EPOCHS = "leader-epochs"
    LEADERS = "leaders"
    """By log, of the same: which broker. No judge reads it, a page tells it."""
    MISSED = "missed"
    """True for a nemesis' `grave` whose replica was seen to have missed what was removed."""
    DAMAGED = "damaged"
    """Of a nemesis' operation: the files that it has damaged."""
    PHASE = "phase"
    """Of a nemesis' operation: `start` or `stop` of the fault that its f names."""


HEAL: Final = "heal"
"""As a nemesis' f: what it has broken is whole again."""


class Record(NamedTuple):
    """What a poll returned of one log."""

    offset: int
    value: int
    key: int = UNKNOWN
    is_tombstone: bool = False


class Send(NamedTuple):
    """In an invocation, and where no acknowledgement came, without an offset."""

    log: int
    value: int
    offset: int = UNKNOWN
    key: int = UNKNOWN
    is_tombstone: bool = False


class Poll(NamedTuple):
    """In an invocation: empty. A log of which nothing was polled is not in it."""

    records: Mapping[int, Sequence[Record]] = {}


MicroOp = Send | Poll


class Span(NamedTuple):
    """A consumer's position in a log before and after: it moved over [start_offset, end_offset), whatever it got."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Op:
    index: int
    """Its place in the history, dense, from 0. In an imported history it may have gaps, and still rises."""
    time_ns: int
    """Since the start of the run, on a clock that is never set."""
    process: int
    """One client at one time does one operation at a time. A process whose operation ended in INFO is never heard of
    again; its client goes on as another."""
    type: Type
    f: str
    micro_ops: tuple[MicroOp, ...] = ()
    logs: tuple[int, ...] = ()
    """Of an assign, subscribe, create."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """By log, of a commit, committed, delete-records."""
    spans: Mapping[int, Span] = field(default_factory=dict)
    """By log, of a completed operation that polled. None in imported histories."""
    rebalanced: frozenset[int] = frozenset()
    """Logs that were given or taken while the operation ran: Jepsen's `rebalance-log`."""
    error: str = ""
    node: int = UNKNOWN
    client: str = ""
    ext: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is known: producer id and epoch, transactional id, group, generation, replica, broker's error
    code. Of a nemesis, what it did to whom."""

    @property
    def is_completion(self) -> bool:
        return self.type is not Type.INVOKE


@dataclass(frozen=True, slots=True)
class Log:
    """Of one log, what a judge must know. Times are those that the topic was created with."""

    topic: str
    partition: int
    is_compacted: bool = False
    is_retained: bool = False
    """Whether `cleanup.policy` says delete: records may go from the log's start."""
    delete_retention_ms: int = 86_400_000
    eos_input: tuple[int, ...] = ()
    """Of an output log of exactly-once copiers: the logs it is made from. An output's key is its input's value."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as far as it is judged: `test.json` has more."""

    name: str = ""
    workload: str = ""
    logs: Mapping[int, Log] = field(default_factory=dict)
    is_read_committed: bool = True
    uses_subscribe: bool = False
    has_acks_all: bool = True
    is_damage_judged: bool = True
    """Whether the system is to be held to anything once files of a replica were damaged."""
    is_idempotent: bool = True
    """Whether producers without transactions are."""
    clock_skew_ms: int = 1_000
    """How far apart brokers' clocks have been in the run, at any two times, and a second."""
    log_names: Mapping[int, str] = field(default_factory=dict)
    """How an imported history spelled its logs, where they were no numbers."""
    value_names: Mapping[int, str] = field(default_factory=dict)
