"""`sexton cloud accept-loss`: records whose object is lost for good are given up."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.cloud_place import DEFAULT_DIRECTORY, Directory, MetastoreUrl, StoreUrl, with_cluster
from sexton.cli.connect import confirm

if TYPE_CHECKING:
    from sexton.ports.metastore import Metastore
    from sexton.ports.objects import ObjectStore
    from sexton.types import PartitionId


def accept_loss(
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION")],
    first: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="The first offset that is lost.")],
    last: Annotated[int, typer.Option("--to", min=0, metavar="OFFSET", help="The last offset that is lost.")],
    directory: Directory = DEFAULT_DIRECTORY,
    metastore: MetastoreUrl = None,
    store: StoreUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give up records whose object is lost for good, so that consumers and compaction get on.

    Only runs that cannot be read are given up, each as a whole; what can be read stays.
    """
    from sexton.adapters.clock import SystemClock
    from sexton.compactor.cloud import losses
    from sexton.compactor.cloud.plans import Writer

    topic, partition = _parse_place(place)
    if last < first:
        raise UsageError(f"--to {last} lies below --from {first}", "", "Both are offsets that are lost")

    async def work(known: Metastore, bytes_of: ObjectStore, cluster_id: uuid.UUID) -> tuple[int, int]:
        rng = random.Random()
        key = await _cloud_partition(known, topic, partition)
        found = await losses.find_losses(known, bytes_of, cluster_id, key, range(first, last + 1), rng)
        if not found:
            raise UsageError(
                f"everything from offset {first} to {last} of {place} can be read: nothing is given up",
                "",
                "`sexton cloud check --deep` says what is lost",
            )
        console = show.results(highlight=False)
        for extent, why in found:
            offsets = f"offsets {extent.base_offset:,} to {extent.end_offset - 1:,}"
            console.print(escape(f"{offsets}, {extent.records_count:,} records: {why} ({extent.object_id})"))
        confirm("Give them up for good?", yes)
        writer = Writer(cluster_id, uuid.uuid4())
        count = await losses.accept(known, bytes_of, writer, key, topic, found, SystemClock(), rng)
        return count, len(found) - count

    count, kept_count = with_cluster(directory, metastore, store, work)
    show.results().print(f"{count:,} runs of {escape(place)} have no records any more; consumers pass over them")
    if kept_count:
        show.results().print(f"{kept_count:,} are readable now, or no longer part of the log")


def _parse_place(place: str) -> tuple[str, int]:
    topic, _, partition = place.rpartition(":")
    if not topic or not partition.isdecimal():
        raise UsageError(f"{place} names no partition", "", "As in orders:0")
    return topic, int(partition)


async def _cloud_partition(metastore: Metastore, topic: str, partition: int) -> PartitionId:
    known = await metastore.read_changes(0)
    topic_id = next((one.topic_id for one in known.topics if one.name == topic), None)
    placed = {(row.topic_id, row.partition): row for row in known.partitions}
    row = None if topic_id is None else placed.get((topic_id, partition))
    if row is None or not row.is_cloud:
        raise UsageError(
            f"{topic}:{partition} is not in the store", "", "`sexton cloud status` lists the partitions that are"
        )
    return row.topic_id, partition
