"""The Prometheus metrics, in its text format.

Metrics of the whole broker, of each API that was used, and of each compacted partition on this broker; of those at most
PARTITIONS_MAX, the first by name, so that a broker with very many does not flood Prometheus: the sums over all are
exported in any case, and `sexton_compaction_partitions_left_out` says how many have no series of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kio.schema.index import api_key_map

from sexton.broker.observe.traffic import BOUNDS_S
from sexton.cloud.metered import BOUNDS_S as STORE_BOUNDS_S
from sexton.cloud.metered import Ended
from sexton.http.exposition import Exposition
from sexton.protocol.private import PrivateApi
from sexton.replication.local_replica import Role
from sexton.supervision import WORK
from sexton.types import NO_LEADER

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

PARTITIONS_MAX: Final = 500
"""Maximum number of compacted partitions of a broker that get series of their own, nine each."""

PRIVATE_NAMES: Final[Mapping[int, str]] = {api: api.name.lower() for api in PrivateApi}
"""Names of the messages between our own processes."""


async def metrics(broker: Broker) -> bytes:
    """Written in pieces, between which the event loop goes on: the longest is a family of PARTITIONS_MAX samples. A
    piece is of one moment, and two may be a few requests apart."""
    out = Exposition()
    for write in (_broker, _partitions, _traffic, _cloud):
        write(out, broker)
        await asyncio.sleep(0)
    await broker.stored.write(out)
    replicas = await broker.compaction_requests.status()
    _compaction(out, broker, replicas)
    for _ in _compacted_partitions(out, replicas[:PARTITIONS_MAX]):
        await asyncio.sleep(0)
    return out.encode()


def _broker(out: Exposition, broker: Broker) -> None:
    view, config = broker.view, broker.config
    info = {"broker": config.node_id, "cluster": broker.cluster_id}
    out.gauge("sexton_broker_info", "Which broker this is.", 1, info)
    out.gauge("sexton_broker_lease_valid", "1 while this broker may serve, by its own clock.", broker.lease_is_valid())
    controller = view.controller
    is_controller = controller is not None and controller.broker_id == config.node_id
    out.gauge("sexton_broker_is_controller", "1 on the broker that decides for the cluster.", is_controller)
    out.gauge("sexton_brokers_live", "Brokers of the cluster that run, as this one knows.", len(view.live_brokers()))
    free_bytes, total_bytes = _disk(broker)
    out.gauge("sexton_disk_free_bytes", "Of the volume that holds this broker's logs.", free_bytes)
    out.gauge("sexton_disk_bytes", "Its size.", total_bytes)
    dispatch = broker.dispatch
    out.gauge("sexton_connections", "Kafka connections now.", len(dispatch.connections))
    out.counter("sexton_connections_accepted_total", "Kafka connections ever.", dispatch.accepted_count)
    doc = "Connections closed because what they sent was no request."
    out.counter("sexton_connections_malformed_total", doc, dispatch.traffic.malformed_count)
    bugs = [({"work": what}, broker.supervisor.bugs[what]) for what in WORK]
    doc = "Internal errors, by the work in which they were. The broker's log has their traces."
    out.family("sexton_bugs_survived_total", "counter", doc, bugs)


def _disk(broker: Broker) -> tuple[int, int]:
    try:
        return broker.disk.free_bytes(broker.config.log_dir)
    except OSError:
        return 0, 0


def _partitions(out: Exposition, broker: Broker) -> None:
    replicas = broker.replicas.all()
    leaders = [one for one in replicas if one.role is Role.LEADER]
    by_role = [({"role": role.value}, sum(one.role is role for one in replicas)) for role in Role]
    out.family("sexton_partitions", "gauge", "Replicas on this broker.", by_role)
    under = sum(len(one.row.isr) < len(one.row.replicas) for one in leaders)
    out.gauge("sexton_partitions_under_replicated", "Led here, with replicas that are not in sync.", under)
    short = sum(one.has_too_few_in_sync for one in leaders)
    out.gauge("sexton_partitions_under_min_isr", "Led here, and acks=all is refused.", short)
    offline = sum(row.leader == NO_LEADER for row in broker.view.partitions())
    out.gauge("sexton_partitions_offline", "Of the whole cluster: nobody leads them.", offline)
    failed = sum(one.log.failure is not None for one in replicas)
    out.gauge("sexton_logs_failed", "Logs here that the disk does not let go on.", failed)
    out.gauge("sexton_log_bytes", "All logs here.", sum(one.log.size_bytes for one in replicas))
    membership = broker.replicas.membership
    out.counter("sexton_isr_shrinks_total", "Times a leader here lost an in-sync replica.", membership.shrinks_count)
    out.counter("sexton_isr_expands_total", "Times it got one back.", membership.expands_count)
    doc = "Replicas that the fetch fence made start anew."
    out.counter("sexton_replicas_fenced_total", doc, membership.fenced_count)


def _traffic(out: Exposition, broker: Broker) -> None:
    found = [({"api": _api_name(key)}, one) for key, one in sorted(broker.dispatch.traffic.by_api.items())]
    counts = [(labels, one.requests_count) for labels, one in found]
    out.family("sexton_requests_total", "counter", "Requests, by API.", counts)
    received = [(labels, one.request_bytes) for labels, one in found]
    out.family("sexton_request_bytes_total", "counter", "Bytes that came in with them.", received)
    sent = [(labels, one.response_bytes) for labels, one in found]
    out.family("sexton_response_bytes_total", "counter", "Bytes that left with the answers.", sent)
    doc = "From a request's arrival until its answer left. Fetches may wait for records."
    taken = [(labels, one.counts, one.seconds) for labels, one in found]
    out.histogram("sexton_request_seconds", doc, BOUNDS_S, taken)


def _cloud(out: Exposition, broker: Broker) -> None:
    """Of brokers that have a store for cloud topics."""
    if broker.cloud is None:
        return
    cloud, stats = broker.cloud.replicas, broker.cloud.stats
    uploads, led = cloud.parts.uploads, [one.log for one in cloud.all() if one.is_leader]
    out.gauge("sexton_cloud_partitions_led", "Partitions of cloud topics that this broker leads.", len(led))
    out.gauge("sexton_cloud_log_bytes", "Of these, in the store.", sum(one.size_bytes for one in led))
    doc = "Extents of the partition that has most. From 20,000 on its producers are slowed down."
    out.gauge("sexton_cloud_extents_max", doc, max((one.extents_count for one in led), default=0))
    out.gauge("sexton_cloud_pending_bytes", "Appended, and not stored and committed yet.", uploads.pending_bytes)
    out.gauge("sexton_cloud_waiting_batches", "Batches that wait for room.", uploads.waiting_count)
    doc = "1 while neither the store nor the metastore takes anything."
    out.gauge("sexton_cloud_away", doc, uploads.is_away)
    out.gauge("sexton_cloud_cache_bytes", "Kept in memory for consumers.", cloud.parts.cache.size_bytes)
    reads = [({"from": "memory"}, stats.cache_hits_count), ({"from": "store"}, stats.cache_misses_count)]
    out.family("sexton_cloud_reads_total", "counter", "Runs that were read, by where they were.", reads)
    doc = "Runs that could not be read because their object is missing or damaged: data is lost."
    out.counter("sexton_cloud_missing_objects_total", doc, stats.lost_runs_count)
    ended = [
        ({"operation": operation, "outcome": outcome.value}, stats.requests[operation, outcome])
        for operation in ("put", "get", "delete")
        for outcome in Ended
    ]
    out.family("sexton_cloud_requests_total", "counter", "Requests to the store.", ended)
    doc = "Objects that took long to store and were sent a second time (cloud.hedge)."
    out.counter("sexton_cloud_hedged_puts_total", doc, stats.hedged_puts_count)
    moved = [({"direction": "put"}, stats.put_bytes), ({"direction": "get"}, stats.got_bytes)]
    out.family("sexton_cloud_bytes_total", "counter", "Bytes that went to the store, and came from it.", moved)
    doc = "How long requests to the store took that succeeded, and commits to the metastore."
    timed = [("put", stats.puts), ("get", stats.gets), ("commit", stats.commits)]
    taken = [({"operation": name}, one.counts, one.seconds) for name, one in timed]
    out.histogram("sexton_cloud_seconds", doc, STORE_BOUNDS_S, taken)
    doc = "Objects that this broker has deleted because nothing referred to them."
    out.counter("sexton_cloud_objects_deleted_total", doc, broker.cloud.collector.deleted_count)


def _api_name(key: int) -> str:
    name: str | None = api_key_map.get(key)
    return name or PRIVATE_NAMES.get(key, str(key))


def _compaction(out: Exposition, broker: Broker, replicas: list[dict[str, Any]]) -> None:
    totals = broker.compaction.memory.totals
    out.gauge("sexton_compaction_replicas", "Compacted replicas here.", len(replicas))
    out.gauge("sexton_compaction_due", "Of these, due for a pass.", sum(one["is_due"] for one in replicas))
    dirty = sum(one["dirty_bytes"] for one in replicas)
    out.gauge("sexton_compaction_dirty_bytes", "What has not been compacted yet.", dirty)
    out.gauge("sexton_compaction_underway", "Plans that compactors work on.", broker.compaction.plans.underway_count)
    counts = {
        "committed": totals.committed_count,
        "adopted": totals.adopted_count,
        "refused": totals.refused_count,
    }
    runs = [({"outcome": outcome}, count) for outcome, count in counts.items()]
    out.family(
        "sexton_compaction_runs_total",
        "counter",
        "Results that compactors handed back, and those that were taken over from leaders.",
        runs,
    )
    out.counter("sexton_compaction_input_bytes_total", "Sizes of logs before.", totals.bytes_before)
    out.counter("sexton_compaction_output_bytes_total", "Sizes of logs after.", totals.bytes_after)
    if broker.compaction.compactors.count is not None:
        doc = "Compactors that renew their leases. 0: nobody compacts."
        out.gauge("sexton_compaction_compactors", doc, broker.compaction.compactors.count)
    doc = "How long what is due here has waited, at most."
    out.gauge("sexton_compaction_due_seconds", doc, broker.compaction.publisher.longest_due_ms() / 1000)
    uncleanable = [one for one in replicas if one["uncleanable"] is not None]
    out.gauge("sexton_compaction_uncleanable", "Replicas here that no pass can compact as they are.", len(uncleanable))
    size_bytes = sum(one["size_bytes"] for one in uncleanable)
    out.gauge("sexton_compaction_uncleanable_bytes", "Sizes of their logs.", size_bytes)
    held = sum(bool(one["holding_back"]) for one in replicas)
    out.gauge("sexton_compaction_held_back", "Led here, where some replica keeps MTRO or MXRO from rising.", held)
    left_out = max(0, len(replicas) - PARTITIONS_MAX)
    out.gauge("sexton_compaction_partitions_left_out", "Compacted partitions without series of their own.", left_out)


_PARTITION_GAUGES: Final = (
    ("dirty_ratio", "dirty_ratio", "Share of the log that has not been compacted."),
    ("mcco", "mcco", "This replica: below it at most one record a key."),
    ("mxfo", "mxfo", "This replica: below it nothing transactional."),
    ("mtro", "mtro", "All replicas: below it tombstones may go."),
    ("mxro", "mxro", "All replicas: below it markers may go."),
    ("is_due", "partition_due", "1 if it is due for a pass."),
)


def _compacted_partitions(out: Exposition, replicas: list[dict[str, Any]]) -> Iterator[None]:
    """Yields before each family."""
    placed = [({"topic": one["topic"], "partition": one["partition"]}, one) for one in replicas]
    for field, name, doc in _PARTITION_GAUGES:
        samples = [(labels, one[field]) for labels, one in placed]
        yield
        out.family(f"sexton_compaction_{name}", "gauge", doc, samples)
    ran = [(labels, one["last_run"]) for labels, one in placed if one["last_run"] is not None]
    last = [(labels, one["compacted_ms"] / 1000) for labels, one in placed if one["compacted_ms"] is not None]
    doc = "When a pass was last committed, in seconds since 1970."
    yield
    out.family("sexton_compaction_last_run_timestamp_seconds", "gauge", doc, last)
    saved = [(labels, run["bytes_saved"]) for labels, run in ran]
    yield
    out.family("sexton_compaction_saved_bytes", "gauge", "By all passes since this broker started.", saved)
    waits = [({**labels, "replica": broker}, 1) for labels, one in placed for broker in one["holding_back"] or {}]
    yield
    out.family("sexton_compaction_waits_for_replica", "gauge", "1 for each replica that MTRO or MXRO waits for.", waits)
    since = [
        (labels, one["held_back_since_ms"] / 1000) for labels, one in placed if one["held_back_since_ms"] is not None
    ]
    doc = "Since when they wait, in seconds since 1970."
    yield
    out.family("sexton_compaction_held_back_since_timestamp_seconds", "gauge", doc, since)
    barred = [(labels, one["uncleanable"].since_ms / 1000) for labels, one in placed if one["uncleanable"] is not None]
    doc = "Since when no pass can compact it, in seconds since 1970."
    yield
    out.family("sexton_compaction_uncleanable_since_timestamp_seconds", "gauge", doc, barred)
