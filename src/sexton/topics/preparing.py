"""What a copy is from and to: all that can be refused is refused before Spark starts, and the target is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sexton.errors import SextonError
from sexton.topics import marks as progress_marks
from sexton.topics import target as target_topic
from sexton.topics.finding import TopicClient, TopicLog
from sexton.topics.marks import TargetInUseError


class NotCopiedError(SextonError):
    """What was asked for cannot be copied like this. Nothing was written."""

    exit_code: ClassVar[int] = 65


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    source: str
    target: str
    partitions: int | None = None
    """None: the target exists."""
    replicas: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    keeps_all: bool | None = None
    """All records in order, not only the newest of each key. None: if the source is not compacted."""
    codec: int | None = None
    """None: the one that most of the source has."""
    takes_what_is_there: bool = False

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise NotCopiedError("source and target are the same topic", self.source, "Name another target")


@dataclass(frozen=True, slots=True)
class Ready:
    request: Request
    source: TopicLog
    target: TopicLog
    keeps_all: bool
    offsets: Mapping[int, int]
    """Where the copy goes on in each partition of the source."""
    notes: tuple[str, ...] = ()


def prepare(client: TopicClient, request: Request) -> Ready:
    """Raises NotCopiedError and TargetInUseError."""
    source = client.topic(request.source)
    keeps_all = _keeps_all(request, source)
    target = _ready_target(client, request, source)
    offsets, notes = _beginning(client, request, source, target)
    return Ready(
        request=request, source=source, target=target, keeps_all=keeps_all, offsets=offsets, notes=tuple(notes)
    )


def is_compacted(topic: TopicLog, otherwise: bool) -> bool:
    return otherwise if topic.is_compacted is None else topic.is_compacted


def _keeps_all(request: Request, source: TopicLog) -> bool:
    if request.keeps_all is not None:
        return request.keeps_all
    if source.is_compacted is None:
        what = "no permission to see whether it is compacted (DescribeConfigs)"
        raise NotCopiedError(what, source.name, "Say --records latest, or --records all")
    return not source.is_compacted


def _ready_target(client: TopicClient, request: Request, source: TopicLog) -> TopicLog:
    if not client.run(lambda inside: target_topic.exists(inside, request.target)):
        if request.partitions is None:
            raise NotCopiedError("there is no such topic", request.target, "Say how many partitions it shall have")
        count = request.partitions
        client.run(
            lambda inside: target_topic.make(inside, source, request.target, count, request.replicas, request.settings)
        )
    found = client.topic(request.target)
    if request.partitions not in (None, found.partition_count):
        what = f"the topic exists, with {found.partition_count:,} partitions"
        raise TargetInUseError(what, request.target, "Name another, or delete it")
    client.run(lambda inside: target_topic.make_ready(inside, found))
    return found


def _beginning(
    client: TopicClient, request: Request, source: TopicLog, target: TopicLog
) -> tuple[dict[int, int], list[str]]:
    marks = client.run(lambda inside: progress_marks.read_marks(inside, source.name, target.name))
    starts = {log.partition: log.log_start_offset for log in source.partitions}
    start = progress_marks.start_of(
        target.name,
        marks,
        {log.partition: log.high_watermark for log in target.partitions},
        {log.partition: log.high_watermark for log in source.partitions},
        may_repeat=is_compacted(target, otherwise=False),
        takes_what_is_there=request.takes_what_is_there,
    )
    notes = [start.note] if start.note else []
    for number, offset in start.from_offsets.items():
        if offset < starts[number]:
            notes.append(
                f"offsets {offset:,} to {starts[number]:,} of partition {number} were deleted before they were copied"
            )
    return {number: max(offset, start.from_offsets.get(number, offset)) for number, offset in starts.items()}, notes
