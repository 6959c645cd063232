"""The workloads by name, and how each is made from what a person asks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.verify.clients import known as clients
from sexton.verify.generator import Workload
from sexton.verify.workloads.abort import Abort
from sexton.verify.workloads.append import Append, AppendOptions
from sexton.verify.workloads.auto_commit import AutoCommit
from sexton.verify.workloads.early_read import EarlyRead, EarlyReadOptions
from sexton.verify.workloads.eos import Eos, EosOptions
from sexton.verify.workloads.groups import Groups, GroupsOptions
from sexton.verify.workloads.mixed import Mixed
from sexton.verify.workloads.queue import ABORT_P, SENDS_PER_LOG_MAX, Queue, QueueOptions
from sexton.verify.workloads.table import Table, TableOptions

QUEUE: Final = "queue"
TABLE: Final = "table"
EOS: Final = "eos"
GROUPS: Final = "groups"
MIXED: Final = "mixed"

ASSIGN: Final = "assign"
SUBSCRIBE: Final = "subscribe"
WAYS: Final = (ASSIGN, SUBSCRIBE)
"""How clients of `queue` get logs to read."""


@dataclass(frozen=True, slots=True)
class Asked:
    is_transactional: bool = False
    ways: tuple[str, ...] = (ASSIGN,)
    forgets_at_once: bool = False
    """Whether compacted topics forget what is deleted as soon as can be."""
    expected: str = ""
    """Of `abort`: where consumers must stand after one. Nothing: it is only counted."""
    sends_per_log_max: int = SENDS_PER_LOG_MAX
    """Of `queue`: then a log is left for a new one."""
    abort_p: float = ABORT_P
    """Of `queue` and `table`: that a transaction is aborted on purpose, at each of its steps."""


@dataclass(frozen=True, slots=True)
class Known:
    meaning: str
    make: Callable[[Asked, random.Random], Workload]
    compacts: bool = False
    """Whether it has compacted topics: Sexton needs a compactor then."""
    always_in_transactions: bool = False
    joins: bool = False
    """Whether clients must be able to be members of a group."""
    counts: str = ""
    """What it counts for people (`Workload.seen`), if anything."""
    copies: bool = False
    """Whether clients must be able to commit the offsets of a group in a transaction as the members that they are."""


def _queue(asked: Asked, rng: random.Random) -> Workload:
    options = QueueOptions(
        is_transactional=asked.is_transactional,
        uses_subscribe=SUBSCRIBE in asked.ways,
        uses_assign=ASSIGN in asked.ways,
        sends_per_log_max=asked.sends_per_log_max,
        abort_p=asked.abort_p,
    )
    return Queue(options, rng)


def _table(asked: Asked, rng: random.Random) -> Workload:
    options = TableOptions(
        is_transactional=asked.is_transactional, forgets_at_once=asked.forgets_at_once, abort_p=asked.abort_p
    )
    return Table(options, rng)


def _register(asked: Asked, rng: random.Random) -> Workload:
    options = TableOptions(logs=2, keys=5, scan_p=0.05, transaction_p=1, delete_p=0, table_p=0.2, reads_all_logs=True)
    return Table(options, rng)


def _mixed(asked: Asked, rng: random.Random) -> Workload:
    parts = (QUEUE, TABLE, EOS, GROUPS, EOS, GROUPS)  # one of these must send what the other reads
    return Mixed({name: WORKLOADS[name].make(asked, rng) for name in dict.fromkeys(parts)}, parts)


WORKLOADS: Final[Mapping[str, Known]] = {
    QUEUE: Known(
        "Records without keys in logs that fill up; with --txn, in transactions. All of Jepsen's anomalies.", _queue
    ),
    TABLE: Known(
        "Compacted topics: keys, tombstones, transactions, tables read from the start. What compaction may lose.",
        _table,
        compacts=True,
    ),
    "register": Known(
        "A key is a register: transactions over keys of several compacted logs, and reads of all of them.",
        _register,
        compacts=True,
        always_in_transactions=True,
    ),
    "append": Known(
        "A log is a list: appends, with --txn to several lists at once, and reads of whole lists.",
        lambda asked, rng: Append(AppendOptions(asked.is_transactional), rng),
    ),
    "abort": Known(
        "Where a consumer stands after a transaction was aborted: counted, not judged.",
        lambda asked, rng: Abort(rng),
        counts="where a consumer went on after an abort",
        joins=True,
        always_in_transactions=True,
    ),
    "early-read": Known(
        "Transactions that send, wait and poll: no consumer may get what is not committed.",
        lambda asked, rng: EarlyRead(EarlyReadOptions(), rng),
        always_in_transactions=True,
    ),
    "auto-commit": Known(
        "Clients that commit by themselves what they were given, and no more.",
        lambda asked, rng: AutoCommit(),
        joins=True,
    ),
    GROUPS: Known(
        "Members of a group join, poll, commit, leave and die.",
        lambda asked, rng: Groups(GroupsOptions(), rng),
        joins=True,
    ),
    EOS: Known(
        "Copiers read one topic and write another in transactions: each input has exactly one output.",
        lambda asked, rng: Eos(EosOptions(), rng),
        always_in_transactions=True,
        joins=True,
        copies=True,
    ),
    MIXED: Known(
        "queue, table, eos and groups at once in one cluster.",
        _mixed,
        compacts=True,
        always_in_transactions=True,
        joins=True,
        copies=True,
    ),
}


def able_clients(name: str, asked: Asked) -> Sequence[str]:
    """Clients that can do what this workload will ask for, of those that are there."""
    kind = WORKLOADS[name]
    return clients.installed(
        has_emptied_markers=kind.compacts and (asked.is_transactional or kind.always_in_transactions),
        has_members=kind.joins or (name == QUEUE and SUBSCRIBE in asked.ways),
        has_copiers=kind.copies,
    )
