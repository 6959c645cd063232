"""Which versions are run, and their part of docs/clients.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.harness.jars import fetched_jars

POMS: Final = Path(__file__).parents[1] / "java"


@dataclass(frozen=True)
class Framework:
    label: str
    profile: str
    """Of the pom."""
    brings: str
    """The client that it uses."""
    pom: str = "frameworks.xml"

    @property
    def version(self) -> str:
        return self.profile.partition("-")[2]

    def jars(self) -> Path:
        """Their directory. Fetched when it is first asked for."""
        return fetched_jars(POMS / self.pom, self.profile)

    def classpath(self) -> str:
        return str(self.jars() / "*")


FLINK: Final = (
    Framework("Flink 2.0.2, connector 4.0.1", "flink-2.0.2", "Java 3.9.1"),
    Framework("Flink 2.2.1, connector 5.0.0", "flink-2.2.1", "Java 4.2.0"),
)
STREAMS: Final = (
    Framework("Kafka Streams 4.3.0", "streams-4.3.0", "Java 4.3.0"),
    Framework("Kafka Streams 3.9.2", "streams-3.9.2", "Java 3.9.2"),
)
CONNECT: Final = (
    Framework("Kafka Connect 4.3.0", "connect-4.3.0", "Java 4.3.0", "connect.xml"),
    Framework("Kafka Connect 3.9.2", "connect-3.9.2", "Java 3.9.2", "connect.xml"),
)
MIRROR_MAKER: Final = (Framework("MirrorMaker 4.3.0", "connect-4.3.0", "Java 4.3.0", "connect.xml"),)
DEBEZIUM: Final = (Framework("Debezium 3.4.3", "debezium-3.4.3", "Java 4.3.0", "debezium.xml"),)
APICURIO: Final = (Framework("Apicurio Registry 3.3.3", "apicurio-3.3.3", "Java 3.9.2", "apicurio.xml"),)


@dataclass(frozen=True)
class Shown:
    """What a test shows, for docs/clients.md."""

    frameworks: Sequence[Framework]
    told: str
    row: str = "every record exactly once"


SHOWN: Final = {
    "test_every_number_is_committed_once_whoever_is_killed": Shown(
        FLINK,
        """\
**Flink's exactly-once sink**, once with writer and committer chained and once not (the committer then ends the writer's
transactions with a client of its own), with both ways of naming transactions. All brokers are killed in turn, and the
job itself, which recovers from its last checkpoint: every record is read once.
""",
    ),
    "test_every_record_is_counted_once_whoever_is_killed": Shown(
        STREAMS,
        """\
**Kafka Streams** with `exactly_once_v2`: two instances count records by key, in a state store with its changelog. All
brokers are killed in turn, and an instance: every key's counts go up one by one, to the number of its records.
""",
    ),
    "test_every_line_of_a_source_is_committed_once_whoever_is_killed": Shown(
        CONNECT,
        """\
**Kafka Connect's exactly-once source**: two distributed workers follow two files, with a transaction for each poll and
one for each interval, into topics that they create themselves (`topic.creation.default.compression.type=lz4`). Each
worker is killed, then all brokers in turn: every line is read once, and no task had to be started again by hand.
""",
    ),
    "test_every_change_of_a_table_is_written_once_whoever_is_killed": Shown(
        DEBEZIUM,
        """\
**Debezium**, as a connector of Kafka Connect with exactly-once support: the changes of a table in PostgreSQL, and a
tombstone for each row that is deleted, in a compacted topic. The worker is killed, then all brokers in turn: every
change of every row is read once, in order.
""",
        "every change exactly once",
    ),
    "test_a_topic_and_its_group_are_mirrored_without_an_error_whichever_broker_is_killed": Shown(
        MIRROR_MAKER,
        """\
**MirrorMaker 2** in dedicated mode, from one Sexton cluster to another: records, settings and partitions of a topic,
and a group's offsets (`sync.group.offsets.enabled`); it also asks for access rules, as it does by default. After
several rounds of all that it does its log has no error. Then all brokers of both clusters are killed in turn, and
MirrorMaker itself.
""",
        "every record arrives; the group skips nothing, and ends at the end",
    ),
    "test_every_schema_that_was_registered_is_there_whoever_is_killed": Shown(
        APICURIO,
        """\
**Apicurio Registry** with its KafkaSQL storage, whose only durable state is a topic: schemas are registered over REST
while all brokers are killed in turn, and so is the registry. What starts again reads the topic and has every schema.
""",
        "every schema is there, with the id that it was given",
    ),
}
"""By test."""

HEAD: Final = """\
## Frameworks

They bring a client, and use it in their own way (`tests/interop/frameworks/`).
"""


def everything() -> set[tuple[str, str]]:
    """What a run in which all goes well shows: label and test."""
    return {(one.label, test) for test, shown in SHOWN.items() for one in shown.frameworks}


def section(passed: Collection[tuple[str, str]]) -> str:
    parts = [HEAD]
    for test, shown in SHOWN.items():
        labels, clients = (
            " | ".join(each) for each in zip(*((one.label, one.brings) for one in shown.frameworks), strict=True)
        )
        seen = " | ".join("yes" if (one.label, test) in passed else "**no**" for one in shown.frameworks)
        parts += [shown.told, f"| | {labels} |", "|---" * (1 + len(shown.frameworks)) + "|"]
        parts += [f"| its client | {clients} |", f"| {shown.row} | {seen} |", ""]
    return "\n".join(parts)
