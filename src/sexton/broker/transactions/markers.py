"""Transaction markers: written into every partition of a transaction when it ends.

`write_marker` writes one into a partition that this broker leads. `MarkerSender` makes sure that all of them are
written: it sends each to the leader of its partition, and retries, with the leader of that time, until the leader
answers that the marker is committed or the partition is deleted. Markers that wait for the same broker are sent
together.

What a leader may answer, and what follows. Success: the marker is written. INVALID_PRODUCER_EPOCH: the partition has
seen a newer epoch of the producer, so this transaction was ended there by other means (an operator's abort); it counts
as written. Anything else, TRANSACTION_COORDINATOR_FENCED included: retry, until this broker learns that it is no longer
the coordinator.

Before transaction version 2 a marker names nothing but a producer and its epoch: one that is sent too often ends the
next transaction. A coordinator whose write failed is loaded again and sends all markers again, while some of them wait
for a retry or are in flight. So a marker is sent only while it is owed, and never while another marker of the same
producer to the same partition is in flight: the sender waits until that one has completed or failed.

**A topic that was deleted and made again** meanwhile gets the marker, as in Kafka: a transaction names its partitions
by topic and number. With the topic's id beside them the marker could be left out where the id is another one by now.
That would be wrong. A client before transaction version 2 joins a partition once, by name, and writes to whichever
topic has that name: the leader asks by name whether the partition is in the transaction (AddPartitionsToTxn knows no
ids), the coordinator says yes, and the records in the new topic would never be ended. Nor is the id that a coordinator
sees when a partition joins the one that the leader writes to: its view may be behind. And the marker keeps out what a
deposed coordinator may still verify there (`verifier`). It costs the new topic one offset, and a producer that has
written nothing to the new topic yet one abort and a new epoch, since its next sequence is not 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from sexton.broker.admin import is_serving
from sexton.broker.transactions.marker_batches import append_marker
from sexton.coordinators.log import EndMarker
from sexton.coordinators.transactions.service import DueMarkers, TransactionService
from sexton.errors import SextonError
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.supervision import BACK_OFF_MS
from sexton.types import TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.lifecycle.peers import Peers

logger = logging.getLogger(__name__)

WRITE_TXN_MARKERS = 27
VERSION = 2

COMMIT_WAIT_S = 2.0
"""How long a response waits until a marker is committed. The other markers of the same request wait with it."""

RETRY_S = 0.1
ITEMS_PER_REQUEST_MAX = 1_000
REQUESTS_IN_FLIGHT_MAX = 4
"""Maximum number of requests in flight to one broker. More than one, so that a partition that is slow to commit does
not delay the others for long."""


async def write_marker(broker: Broker, marker: EndMarker, place: TopicPartition) -> ErrorCode:
    """Writes a marker into a partition that this broker leads. Returns the error code for its sender."""
    try:
        async with asyncio.timeout(COMMIT_WAIT_S):
            topic, partition = place
            if topic == OFFSETS_TOPIC:
                await broker.groups.end_transaction(partition, marker)
            else:
                committed = append_marker(broker.replicas.leader(topic, partition), marker, broker.clock.now_ms())
                if committed is not None:
                    await committed
    except KafkaError as error:
        return error.code
    except TimeoutError:
        return ErrorCode.request_timed_out
    except OSError as error:
        logger.error("%s-%d: cannot write a marker: %s. Check the disk", *place, error)
        return ErrorCode.kafka_storage_error
    return ErrorCode.none


class _Item(NamedTuple):
    due: DueMarkers
    place: TopicPartition

    @property
    def marker(self) -> EndMarker:
        markers = self.due.markers
        return EndMarker(markers.producer, markers.is_commit, self.due.coordinator_epoch, markers.client_version)

    @property
    def way(self) -> tuple[int, TopicPartition]:
        """Only one marker per producer and partition may be in flight."""
        return self.due.markers.producer.producer_id, self.place


class MarkerSender:
    def __init__(self, broker: Broker, peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self._waiting: dict[int, dict[_Item, None]] = {}
        """Markers to send, by the broker that leads their partition."""
        self._in_flight: dict[int, int] = {}
        self._on_their_way: set[tuple[int, TopicPartition]] = set()
        """`_Item.way` of the markers in flight."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[_Item, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def _service(self) -> TransactionService:
        return self._broker.transactions.service

    def send(self, due: DueMarkers) -> None:
        for place in due.markers.partitions:
            self._route(_Item(due, place))

    async def close(self) -> None:
        self._is_closed = True
        for timer in self._retries.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _route(self, item: _Item) -> None:
        if self._is_closed or not self._service.owes(item.due, item.place):
            return  # it is written; or the coordinator, here once loaded again or elsewhere, sends all markers again
        row = self._broker.view.partition(*item.place)
        if row is None:
            self._spawn(self._confirm_gone(item))
            return
        if row.leader != self._broker.config.node_id and not is_serving(self._broker.view.broker(row.leader)):
            self._retry(item)
            return
        self._waiting.setdefault(row.leader, {})[item] = None
        if self._in_flight.get(row.leader, 0) < REQUESTS_IN_FLIGHT_MAX:
            self._in_flight[row.leader] = self._in_flight.get(row.leader, 0) + 1
            self._spawn(self._deliver(row.leader))

    async def _confirm_gone(self, item: _Item) -> None:
        """This broker's view may be behind: the partition counts as deleted only if the metastore does not have it
        either."""
        try:
            await self._broker.catch_up()
        except MetastoreUnavailableError:
            self._retry(item)
            return
        except Exception as bug:
            self._survive(bug, item)
            return
        if self._broker.view.partition(*item.place) is None:
            logger.info("%s-%d was deleted: %s needs no marker there", *item.place, item.due.markers.transactional_id)
            self._service.marker_written(item.due, item.place)
        else:
            self._route(item)

    async def _deliver(self, leader: int) -> None:
        """Sends the markers that wait for that broker until none is left."""
        try:
            await asyncio.sleep(0)  # so that markers decided in this turn of the loop are sent together
            while self._waiting.get(leader):
                items = self._take(leader)
                try:
                    codes = await self._codes(leader, items) if items else ()
                except Exception as bug:
                    codes = [bug] * len(items)
                finally:
                    self._on_their_way.difference_update(item.way for item in items)
                for item, code in zip(items, codes, strict=True):
                    if isinstance(code, ErrorCode):
                        self._answered(item, code, leader)
                    else:
                        self._survive(code, item)
        finally:
            self._in_flight[leader] -= 1

    async def _codes(self, leader: int, items: list[_Item]) -> Sequence[ErrorCode | BaseException]:
        if leader == self._broker.config.node_id:
            writing = (write_marker(self._broker, i.marker, i.place) for i in items)
            return await asyncio.gather(*writing, return_exceptions=True)
        return await self._ask(leader, items)

    def _survive(self, bug: BaseException, item: _Item) -> None:
        """Without its marker a transaction never ends, so it is retried. If it was written after all, it is written
        once however often it is sent."""
        self._broker.supervisor.survived(bug, "markers", "{}-{}".format(*item.place))
        self._retry(item, BACK_OFF_MS[0] / 1000)

    def _take(self, leader: int) -> list[_Item]:
        """Takes the markers that may be sent now. Much may have changed since they were queued."""
        waiting = self._waiting[leader]
        items = []
        for item in list(islice(waiting, ITEMS_PER_REQUEST_MAX)):
            del waiting[item]
            if item.way in self._on_their_way:
                self._retry(item)
            elif self._service.owes(item.due, item.place):
                self._on_their_way.add(item.way)
                items.append(item)
        return items

    async def _ask(self, leader: int, items: list[_Item]) -> list[ErrorCode]:
        row = self._broker.view.broker(leader)
        if row is None:
            return [ErrorCode.not_leader_or_follower] * len(items)
        try:
            answer = await self._peers.call(row, WRITE_TXN_MARKERS, VERSION, {"markers": _bodies(items)})
        except SextonError as error:
            logger.info("broker %d did not accept transaction markers: %s", leader, error)
            return [ErrorCode.network_exception] * len(items)
        codes = {
            (result.producer_id, topic.name, partition.partition_index): partition.error_code
            for result in answer.markers
            for topic in result.topics
            for partition in topic.partitions
        }
        return [
            codes.get((item.due.markers.producer.producer_id, *item.place), ErrorCode.unknown_server_error)
            for item in items
        ]

    def _answered(self, item: _Item, code: ErrorCode, leader: int) -> None:
        if code is ErrorCode.none:
            self._service.marker_written(item.due, item.place)
            return
        if code is ErrorCode.invalid_producer_epoch:
            logger.warning(
                "%s-%d has a newer epoch of producer %d: the transaction of %s was already completed there",
                *item.place,
                item.due.markers.producer.producer_id,
                item.due.markers.transactional_id,
            )
            self._service.marker_written(item.due, item.place)
            return
        if code is ErrorCode.not_leader_or_follower:
            self._peers.drop(leader)  # the error may mean that our connection is older than its leadership
        self._retry(item)

    def _retry(self, item: _Item, after_s: float = RETRY_S) -> None:
        if self._is_closed or item in self._retries:
            return

        def again() -> None:
            del self._retries[item]
            self._route(item)

        self._retries[item] = asyncio.get_running_loop().call_later(after_s, again)

    def _spawn(self, coroutine: Any) -> None:
        task = self._broker.supervisor.work(coroutine, "markers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bodies(items: Iterable[_Item]) -> list[dict[str, Any]]:
    topics: dict[EndMarker, dict[str, list[int]]] = {}
    for item in items:
        topic, partition = item.place
        topics.setdefault(item.marker, {}).setdefault(topic, []).append(partition)
    return [
        {
            "producer_id": marker.owner.producer_id,
            "producer_epoch": marker.owner.epoch,
            "transaction_result": marker.is_commit,
            "coordinator_epoch": marker.coordinator_epoch,
            "transaction_version": marker.transaction_version,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in by_name.items()],
        }
        for marker, by_name in topics.items()
    ]
