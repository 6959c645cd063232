"""The clients that a run can use, by name, and how each is told to be as impatient as Jepsen's are.

Settings have Java's names; a driver knows its client's. Those that a client lacks are left out here. `java-VERSION` is
Java's client in any version that knows transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sexton.extras import MissingExtraError
from sexton.harness import jars
from sexton.verify.clients import golang
from sexton.verify.clients.base import Settings

CALL_TIMEOUT_S: Final = 10
IMPATIENCE_MS: Final = 1_500

JAVA: Final = "java"
JAVA_PREFIX: Final = f"{JAVA}-"
FRANZ_GO: Final = "franz-go"

_GROUP: Final[Settings] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
PLAIN: Final[Settings] = {"enable.idempotence": False, "retries": 0}
KIP848: Final[Settings] = {"group.protocol": "consumer"}
_PATIENCE: Final[Settings] = {"request.timeout.ms": 3_000}


@dataclass(frozen=True, slots=True)
class Known:
    driver: str
    """Its module in this package."""
    package: str = ""
    """What is installed; nothing: it is not a package of Python, and is fetched."""
    producer: Settings = field(default_factory=dict)
    consumer: Settings = field(default_factory=dict)
    impatient: Settings = field(default_factory=dict)
    """How its producer is made to give up soon on an answer that does not come, and to ask again."""
    joins: bool = True
    """Whether its driver can be a member of a group."""
    has_kip848: bool = False
    """Whether it can join a group by the new protocol."""
    has_retries: bool = False
    """Whether its producer can be told not to send anything twice: without idempotence that makes duplicates."""
    copies: bool = True
    """Whether its producer tells the coordinator which member of a group it commits offsets for (KIP-447)."""
    reads_emptied_markers: bool = True
    """Whether its consumer gets past a control batch that compaction has emptied: Kafka has such (KAFKA-7467), too."""


CLIENTS: Final[Mapping[str, Known]] = {
    "confluent-kafka": Known(
        "confluent",
        "confluent-kafka",
        # The timeouts of records and requests follow from transaction.timeout.ms, and may not be longer.
        producer={"reconnect.backoff.max.ms": 1_000},
        consumer={**_GROUP, "reconnect.backoff.max.ms": 1_000, "enable.partition.eof": True},
        impatient={"socket.timeout.ms": IMPATIENCE_MS},
        has_kip848=True,
        has_retries=False,  # 2.16.1: with retries=0, too, it sends again what NOT_LEADER_OR_FOLLOWER came back for
    ),
    "aiokafka": Known(
        "aio",
        "aiokafka",
        producer=_PATIENCE,
        consumer={**_GROUP, "request.timeout.ms": 10_000},
        impatient={"request.timeout.ms": IMPATIENCE_MS},
        copies=False,  # 0.14.0: the group's name is all that it tells
        reads_emptied_markers=False,  # 0.14.0: Control batch did not contain any records
    ),
    "kafka-python": Known(
        "kafka_python",
        "kafka-python",
        producer={**_PATIENCE, "delivery.timeout.ms": 10_000},
        consumer={**_GROUP, "request.timeout.ms": 10_000},
        impatient={"request.timeout.ms": IMPATIENCE_MS},
        has_retries=True,
        reads_emptied_markers=False,  # 3.0.12: StopIteration raised unpacking messageset
    ),
    JAVA: Known(
        "java",
        producer={**_PATIENCE, "delivery.timeout.ms": 10_000, "reconnect.backoff.max.ms": 1_000},
        consumer={
            **_GROUP,
            "request.timeout.ms": 10_000,
            "default.api.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
        },
        impatient={"request.timeout.ms": IMPATIENCE_MS},
        has_kip848=True,
        has_retries=True,
    ),
    FRANZ_GO: Known(
        "franz",
        joins=False,
        copies=False,
        reads_emptied_markers=False,  # nothing tells its driver that the position has moved over them
    ),
}


def consumer_settings(name: str, *, speaks_kip848: bool) -> Settings:
    """With KIP-848 it is for brokers to say when a member is missed, and clients refuse to be told."""
    known = client_of(name)
    if not speaks_kip848 or not known.has_kip848:
        return known.consumer
    return {**{each: value for each, value in known.consumer.items() if each not in _GROUP}, **KIP848}


def installed(*, has_emptied_markers: bool, has_members: bool = False, has_copiers: bool = False) -> Sequence[str]:
    """Those that need nothing to be fetched, can read what there will be, and can do what they will be asked for."""
    able = {
        name: known
        for name, known in CLIENTS.items()
        if (known.reads_emptied_markers or not has_emptied_markers)
        and (known.joins or not has_members)
        and (known.copies or not has_copiers)
    }
    return [name for name, known in able.items() if (version_of(name) if known.package else is_fetched(name))]


def is_fetched(name: str) -> bool:
    return golang.is_built() if name == FRANZ_GO else jars.is_fetched(jars.DEFAULT_VERSION)


def client_of(name: str) -> Known:
    return CLIENTS[JAVA if java_version(name) else name]


def java_version(name: str) -> str:
    """Nothing: it is not Java's client in a version that was asked for."""
    version = name.removeprefix(JAVA_PREFIX)
    return version if version != name and jars.CLIENT_VERSION_PATTERN.fullmatch(version) else ""


def prepare(names: Iterable[str]) -> None:
    """Fetches what has to be fetched, and raises MissingExtraError, before anything was started."""
    for name in names:
        if not version_of(name):
            raise MissingExtraError(f"{name} is not installed", "", "Install it: pip install 'sexton[verify]'")
        environment(name)


def version_of(name: str) -> str:
    """Nothing: it is not installed."""
    known = client_of(name)
    if not known.package:
        return golang.version() if name == FRANZ_GO else java_version(name) or jars.DEFAULT_VERSION
    try:
        return version(known.package)
    except PackageNotFoundError:
        return ""


def environment(name: str) -> dict[str, str]:
    """What the client's process finds its client by."""
    found = {"SEXTON_CLIENT_TIMEOUT_S": str(CALL_TIMEOUT_S)}
    if name == FRANZ_GO:
        found["SEXTON_CLIENT_PROGRAM"] = str(golang.program())
    elif java_version(name):
        found["SEXTON_CLIENT_CLASSPATH"] = jars.client_classpath(java_version(name))
    elif not CLIENTS[name].package:
        found["SEXTON_CLIENT_CLASSPATH"] = jars.classpath(jars.DEFAULT_VERSION)
    return found


_PRODUCER_PREFIX: Final = "producer."
_CONSUMER_PREFIX: Final = "consumer."
_OF_PRODUCERS: Final = frozenset(
    {
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "message.timeout.ms",
        "retries",
        "transaction.timeout.ms",
    }
)
_OF_CONSUMERS: Final = frozenset(
    {
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)


def split(settings: Mapping[str, str]) -> tuple[Settings, Settings]:
    """What a person asked for, for producers and for consumers: some clients refuse what is not for them. A name that
    both have (`request.timeout.ms`) is for both, unless it begins with `producer.` or `consumer.`."""
    producer: dict[str, str | int | bool] = {}
    consumer: dict[str, str | int | bool] = {}
    for name, text in settings.items():
        plain = name.removeprefix(_PRODUCER_PREFIX).removeprefix(_CONSUMER_PREFIX)
        if not name.startswith(_CONSUMER_PREFIX) and plain not in _OF_CONSUMERS:
            producer[plain] = _value(text)
        if not name.startswith(_PRODUCER_PREFIX) and plain not in _OF_PRODUCERS:
            consumer[plain] = _value(text)
    return producer, consumer


def _value(text: str) -> str | int | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text
