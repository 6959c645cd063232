"""What Kafka's brokers write into their logs: events, and which of them mean something."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

STARTED_MESSAGE: Final = "Kafka Server started"
"""Logged once the broker is caught up and unfenced, by all versions since KRaft."""

CLEANER_LOGGERS: Final = re.compile(r"^(kafka\.log|org\.apache\.kafka\.storage\.internals\.log)\.(Log)?Cleaner")
"""Kafka 3 logs as kafka.log.LogCleaner; Kafka 4 under the classes' new names, but the manager as before."""

RECOVERY_MESSAGES: Final = re.compile(r"Recovering unflushed segment|rebuilding index files")

METADATA_PARTITION: Final = "partition=__cluster_metadata-0"
"""KRaft's own log is recovered at every start, also after a clean stop; it says nothing about a topic's."""

NOISE: Final[Mapping[str, re.Pattern[str]]] = {
    "a controller took office": re.compile(r"Performing controller activation\."),
    "a peer is down, or not up yet": re.compile(r"Connection to node -?\d+ .*could not be established\. Node may"),
    "a controller registered during an election": re.compile(
        r"apiKey=CONTROLLER_REGISTRATION.*NotControllerException", re.DOTALL
    ),
    "two consumers were the first to ask for a coordinator": re.compile(
        r"Auto topic creation failed for __\w+ with error 'TOPIC_ALREADY_EXISTS'"
    ),
    "a busy machine": re.compile(r"Exceptionally slow controller event \w+"),
    "a connection was closed twice at shutdown": re.compile(r"close NetworkClient that has already been closed"),
}
"""What healthy nodes warn about at start and stop, by reason. Nothing about a log's files belongs here."""

LOG_PATTERN: Final = "[%d{yyyy-MM-dd HH:mm:ss,SSS}] %p [%c] %m%n"
EVENT_START: Final = re.compile(r"^\[[\d :,-]{23}\] (?P<level>[A-Z]+) \[(?P<logger>[^\]]+)\] ", re.MULTILINE)


class LogEvent(NamedTuple):
    """One call of a logger, with the further lines of its message and its stack trace."""

    level: str
    logger: str
    text: str


def log_events(text: str) -> list[LogEvent]:
    """A server log, cut into events. What precedes the first one (a line cut in half) is dropped."""
    starts = list(EVENT_START.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [
        LogEvent(start["level"], start["logger"], text[start.start() : end].rstrip())
        for start, end in zip(starts, ends, strict=True)
    ]
