"""Clients before transaction version 2: which connection may speak for a producer.

**The hole** (KAFKA-17754). Until KIP-890 a request names its producer's id and epoch, and nothing else says which
transaction it was sent for. A client whose EndTxn is late gives up on the connection, opens another, asks again, is
answered, and begins its next transaction, in the same epoch. When the late EndTxn arrives at last, it ends that one:
half of it is committed, and the rest becomes the beginning of a transaction that the client never began. A late
Produce, a late AddPartitionsToTxn, a late TxnOffsetCommit and a late marker slide into the next transaction in the same
way.

**The rule.** Connections of a broker are numbered in the order in which they were accepted. Each producer, in its
epoch, is bound to the highest number on which it was seen. A request that comes with a lower one is not carried out
and not answered: its connection is closed. Whoever is still there opens another, which is the newest then, and asks
again, as after any lost connection; whoever has gone on does not even hear of it. No error code could tell the two
apart, and every one makes somebody give up (docs/decisions/0017).

**Why that closes it.** Requests on one connection arrive in the order in which they were sent, and are started in it.
So a request is late only with respect to one that went over another connection. All clients that we know (Java's,
librdkafka, kafka-python, aiokafka, Sarama, franz-go) send the requests of one kind for one producer to one broker over
one connection at a time, and open the next one after they have given up on the former: that is when it was accepted,
too, since a client can send nothing before the connection stands, and the kernel hands connections over in their order.
Hence what is late has the lower number, and whatever the client did next has been seen on a higher one. A request that
was given up on is never sent again by itself, so closing its connection brings nothing back. The kinds are kept apart
(requests to the transaction's coordinator; Produce; offsets for a group's coordinator; markers), because clients use
connections of their own for some of them.

**Two clients, one producer.** Flink's sink writes with one client and ends the transaction with another (the committer,
`FlinkKafkaInternalProducer.resumeTransaction`), whose connection may well be the older one: it is alive, so it connects
anew and ends the transaction. Then the writer's client ends it once more. There is nothing left to end, so that is
answered over any connection (`LateEnd`): else both would have to connect anew in every checkpoint.

**After a move.** A coordinator that has just been loaded has seen nobody. What comes first on a connection that was
there *before* it was loaded may be late: sent when this broker was the coordinator the time before. Such a connection
is closed (`UNPROVEN`), which costs a live client a reconnection, and makes a late request vanish. Except for a
producer that was initialised on it since: its epoch is new, and what is late has an old one. Markers are judged by the
same rule, from the moment on when the partition's leader became its leader. And a marker of a former coordinator is
late wherever a newer one has written a marker for the producer, to whichever partition: the log refuses it only where
that was this partition.

**What it cannot close.** A middlebox that accepts connections itself, and opens its own to us in another order or
hands two of them to us as one. A client that moves on in the same epoch although a Produce is unanswered (Java since
2.5 and librdkafka raise the epoch then; kafka-python 3.0 does not), if the late Produce arrives after the partition was
added to the next transaction and before the first Produce of that transaction. And two clients that take turns with
one producer, in one epoch, over connections that stay open, connect anew with every turn: slow, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Any

ANY_CONNECTION = 0
"""Connections are counted from 1."""

BINDINGS_MAX = 100_000
"""A binding is about 200 bytes. Beyond this the oldest go, and with them the protection of producers that have been
silent the longest."""

PURGE_EVERY = 1_000
"""New bindings between two looks for those that cannot matter any more."""


class Admission(Enum):
    ADMITTED = auto()
    OLDER = auto()
    """The producer was seen on a newer connection: this one must be opened again."""
    UNPROVEN = auto()
    """The connection is older than what we know: it must be opened again."""


class Bindings:
    """For requests of one kind. `generation` orders what a producer was before and is now: its epoch, mostly."""

    def __init__(self, older_are_unproven_than: int = 0, *, refuses_former: bool = False) -> None:
        """Connections up to that number were there before this broker took over. `refuses_former` says that a former
        generation is late here, whichever connection it comes on."""
        self._unproven = older_are_unproven_than
        self._refuses_former = refuses_former
        self._bound: dict[Hashable, tuple[Any, int]] = {}
        self._since_purge = 0

    def __len__(self) -> int:
        return len(self._bound)

    def bind(self, producer: Hashable, generation: Any, connection: int) -> None:
        """The producer was made what it is just now, and may go on over this connection or a newer one. Asked for
        again, it is what it was, and stays where it is."""
        bound = self._bound.get(producer)
        if bound is None or bound[0] < generation:
            self._put(producer, generation, connection)

    def admit(self, producer: Hashable, generation: Any, connection: int) -> Admission:
        bound = self._bound.get(producer)
        if bound is not None:
            if generation < bound[0]:
                # A former epoch is refused elsewhere, and no reason to forget the newer.
                return Admission.OLDER if self._refuses_former else Admission.ADMITTED
            if generation == bound[0]:
                if connection < bound[1]:
                    return Admission.OLDER
                if connection > bound[1]:
                    self._bound[producer] = generation, connection
                return Admission.ADMITTED
        if connection <= self._unproven:
            return Admission.UNPROVEN
        self._put(producer, generation, connection)
        return Admission.ADMITTED

    def purge(self, oldest_open: int) -> None:
        """Forgets bindings that no connection which is still open could break."""
        self._since_purge = 0
        self._bound = {producer: bound for producer, bound in self._bound.items() if bound[1] > oldest_open}

    @property
    def is_due_for_purge(self) -> bool:
        return self._since_purge >= PURGE_EVERY

    def _put(self, producer: Hashable, generation: Any, connection: int) -> None:
        self._since_purge += 1
        self._bound.pop(producer, None)
        self._bound[producer] = generation, connection
        if len(self._bound) > BINDINGS_MAX:
            del self._bound[next(iter(self._bound))]
