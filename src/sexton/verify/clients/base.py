"""What a driver offers, whichever client is behind it, and the words that it uses for failures.

A driver's module has what `Driver` names. It adds nothing to the client: what a client does not do by itself (rewind
after an abort, say) its driver does not do either. Settings have the names that Java's client gives them; a driver
knows what its client calls them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

CALL_TIMEOUT_S: Final = float(os.environ.get("SEXTON_CLIENT_TIMEOUT_S", "60"))
"""How long a driver lets its client try, where the client asks for a number."""

Place = tuple[str, int]
"""Topic and partition."""

Settings = Mapping[str, str | int | bool]
Headers = Sequence[tuple[str, bytes | None]]

CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

# What an application is to do after a failure, as the client tells it.
RETRY: Final = "retry"
"""The same call again: its outcome is not known yet."""
ABORT: Final = "abort"
"""The transaction is lost; abort it and begin the next one."""
FENCED: Final = "fenced"
"""Another instance has taken over; close."""
FATAL: Final = "fatal"
"""This producer cannot go on; close it and make a new one."""


class Failure(Exception):  # noqa: N818
    """A client's error: what to do, and the client's own name for it."""

    def __init__(self, todo: str, name: str, message: str) -> None:
        super().__init__(todo, name, message)
        self.todo = todo
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return f"{self.todo}: {self.name}: {self.message}"


class Refused(Exception):  # noqa: N818
    """What a producer without transactions or an administrator was told: Kafka's error code, and the client's own name
    for it. A driver knows its client's codes; of an error that is not Kafka's there is none."""

    def __init__(self, code: int | None, name: str) -> None:
        super().__init__(code, name)
        self.code = code
        self.name = name


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Message(NamedTuple):
    """A record with all that an application sees of it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: str


class Attributes(NamedTuple):
    """What each record of one call of `produce` has beside its value."""

    key: bytes | None = None
    partition: int | None = None
    headers: Headers = ()
    at_ms: int | None = None


class Written(NamedTuple):
    """What a producer is told of a record that it sent. All are -1 with acks=0."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str | None
    """None: the client does not say."""


class Replicas(NamedTuple):
    """Replicas of one partition, as broker ids."""

    all: Sequence[int]
    in_sync: Sequence[int]


class GroupMember(NamedTuple):
    client_id: str
    partitions: Sequence[int] | None
    """None: the client leaves the assignment encoded."""


class Group(NamedTuple):
    state: str
    members: Sequence[GroupMember]


class Nodes(NamedTuple):
    """A cluster."""

    ids: Sequence[int]
    controller: int
    cluster_id: str


class Reference(int):
    """Stands for an object of a client's process in the arguments of a call (see serve.py)."""


class Frozen:
    """A member of a group as it was: what its producer would tell if it had not heard of a rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self._metadata = consumer.group_metadata()

    def group_metadata(self) -> Any:
        return self._metadata


class Consumer(Protocol):
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None: ...

    def group_metadata(self) -> Any: ...

    def assign(self, starts: Mapping[Place, int]) -> None:
        """Read these from these offsets on."""

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def subscribe_pattern(self, pattern: str, by_broker: bool) -> None:
        """All topics that match; with KIP-848 brokers can be left to find out which do."""

    def poll(self, timeout_s: float) -> list[Record]:
        """Whatever one poll of the client returns."""

    def poll_messages(self, timeout_s: float) -> list[Message]:
        """Polls, and returns whole messages."""

    def assignment(self) -> list[Place]: ...

    def rebalanced(self) -> list[Place]:
        """What its group gave it or took from it since this was asked last."""

    def generation(self) -> int:
        """Of its group, as far as it knows; -1: it is no member, or does not tell."""

    def position(self, place: Place) -> int:
        """Negative while the client cannot tell: librdkafka, before a record was polled. (With `enable.partition.eof`
        it can tell at the end of a log, too.)"""

    def seek(self, place: Place, offset: int) -> None: ...

    def seek_to_beginning(self, place: Place) -> None: ...

    def seek_to_end(self, place: Place) -> None: ...

    def pause(self, place: Place) -> None: ...

    def resume(self, place: Place) -> None: ...

    def bounds(self, place: Place) -> tuple[int, int]:
        """The first offset, and the one behind the last."""

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        """Of the first record that is not older; None: there is none."""

    def committed(self, place: Place) -> int | None: ...

    def commit(self) -> None:
        """What was polled so far, at once."""

    def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None: ...

    def leave(self) -> None:
        """Closes as the client does by default: a member leaves its group."""

    def close(self) -> None:
        """Without waiting for what is under way."""


class Producer(Protocol):
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        """Without a transactional id, an idempotent producer; of it, only `init`, `send`, `flush` and `close` are
        called."""

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        """Handed to the client; `flush` says what became of it."""

    def flush(self) -> list[int]:
        """The offsets of what was sent since the last flush, in the order in which it was sent."""

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Session(Protocol):
    """A member of a group that copies what it reads, in transactions (franz-go)."""

    def __init__(self, bootstrap: str, transactional_id: str, group: str) -> None: ...

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def poll(self, timeout_s: float) -> list[Record]: ...

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None: ...

    def end(self, commit: bool) -> bool:
        """Whether it was committed; what was polled since the last commit is polled again if it was not."""

    def close(self) -> None: ...


class Admin(Protocol):
    """Every method raises Refused."""

    def __init__(self, bootstrap: str, security: Security | None = None) -> None: ...

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None: ...

    def delete(self, topic: str) -> None: ...

    def topics(self) -> list[str]: ...

    def describe(self, topic: str) -> dict[int, Replicas]: ...

    def config(self, topic: str) -> dict[str, str]: ...

    def alter(self, topic: str, config: Mapping[str, str]) -> None: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def delete_records(self, place: Place, before: int) -> int:
        """The first offset that is left."""

    def groups(self) -> list[str]: ...

    def describe_group(self, group: str) -> Group: ...

    def delete_group(self, group: str) -> None: ...

    def group_offsets(self, group: str) -> dict[Place, int]: ...

    def alter_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None: ...

    def describe_cluster(self) -> Nodes: ...

    def close(self) -> None: ...


# What a client may lack (`Driver.lacks`).
ZSTD: Final = "zstd"
ZSTD_TOPICS: Final = "zstd topics"
"""It fetches in a version in which brokers do not give out what a topic asks to be compressed by zstd."""
NULL_PAIRS: Final = "null pairs"
"""Records with neither key nor value."""
NULL_HEADERS: Final = "null headers"
INVALID_RECORD: Final = "invalid record"
"""A name for INVALID_RECORD: it is told as an unknown error."""
INCREMENTAL: Final = "incremental"
"""A change of one setting alone: `Admin.alter` replaces all of them."""
DELETE_GROUP: Final = "delete group"
ALTER_GROUP_OFFSETS: Final = "alter group offsets"


class Driver(Protocol):
    """A driver's module, which has the classes `Producer`, `Consumer`, `Frozen` and `Admin`, too. (franz-go's has
    `Producer`, `Consumer` and `Session` only.)"""

    POLL_S: float
    """How long a member of a group polls at a time."""
    ISOLATION: str
    """The client's default."""
    EAGER: Settings
    COOPERATIVE: Settings
    """How a member asks for either way to rebalance."""

    def prepare(self) -> None:
        """Starts what producers and consumers share, before several threads would."""

    def lacks(self) -> frozenset[str]: ...

    def produce(
        self, bootstrap: str, topic: str, values: Iterable[bytes | None], given: Attributes, settings: Settings
    ) -> list[Written]:
        """By a producer of its own, without transactions. Raises Refused."""
