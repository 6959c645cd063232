"""Which versions are run, and their part of docs/clients.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.clusters.jars import fetched_jars

POM: Final = Path(__file__).parents[1] / "java" / "frameworks.xml"


@dataclass(frozen=True)
class Framework:
    label: str
    profile: str
    """Of the pom."""
    brings: str
    """The client that it uses."""

    def classpath(self) -> str:
        return str(fetched_jars(POM, self.profile) / "*")


FLINK: Final = (
    Framework("Flink 2.0.2, connector 4.0.1", "flink-2.0.2", "Java 3.9.1"),
    Framework("Flink 2.2.1, connector 5.0.0", "flink-2.2.1", "Java 4.2.0"),
)
STREAMS: Final = (
    Framework("Kafka Streams 4.3.0", "streams-4.3.0", "Java 4.3.0"),
    Framework("Kafka Streams 3.9.2", "streams-3.9.2", "Java 3.9.2"),
)

SHOWN: Final = {
    "test_every_number_is_committed_once_whoever_is_killed": (
        FLINK,
        """\
**Flink's exactly-once sink**, once with writer and committer chained and once not (the committer then ends the writer's
transactions with a client of its own), with both ways of naming transactions. All brokers are killed in turn, and the
job itself, which recovers from its last checkpoint: every record is read once.
""",
    ),
    "test_every_record_is_counted_once_whoever_is_killed": (
        STREAMS,
        """\
**Kafka Streams** with `exactly_once_v2`: two instances count records by key, in a state store with its changelog. All
brokers are killed in turn, and an instance: every key's counts go up one by one, to the number of its records.
""",
    ),
}
"""By test: with whom it is run, and what it shows."""

HEAD: Final = """\
## Frameworks

They bring a client, and use its transactions in their own way (`tests/interop/frameworks/`).
"""


def everything() -> set[tuple[str, str]]:
    """What a run in which all goes well shows: label and test."""
    return {(one.label, test) for test, (frameworks, _) in SHOWN.items() for one in frameworks}


def section(passed: Collection[tuple[str, str]]) -> str:
    parts = [HEAD]
    for test, (frameworks, told) in SHOWN.items():
        labels, clients = (
            " | ".join(each) for each in zip(*((one.label, one.brings) for one in frameworks), strict=True)
        )
        shown = " | ".join("yes" if (one.label, test) in passed else "**no**" for one in frameworks)
        parts += [told, f"| | {labels} |", "|---" * (1 + len(frameworks)) + "|"]
        parts += [f"| its client | {clients} |", f"| every record exactly once | {shown} |", ""]
    return "\n".join(parts)
