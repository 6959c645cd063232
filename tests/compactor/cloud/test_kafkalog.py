"""SQL on cloud topics: the rows of a consumer, from L0 and L1 alike, chosen by partition, offset and time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, InputPartition

from sexton.compactor.cloud import kafkalog
from sexton.compactor.cloud.kafkalog import CloudKafkaLogDataSource, CloudReader, CloudSource, Place, plan_objects
from sexton.ports.object_names import ObjectName
from sexton.records.batch import ControlType
from sexton.records.objects import Level
from sexton.spark.datasource import SCHEMA, BadOptionError, Wanted
from tests.adapters.metastore.cloud.world import TOPIC
from tests.cloud.leveler import Leveler
from tests.cloud.test_leveled import records, with_leveler, write_transactions
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER, NOW_MS
from tests.log.helpers import plain, sequenced

Row = dict[str, Any]


class Queries:
    """The store of a broker as files, and readers on it."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder

    def files(self) -> None:
        for key, data in self._broker.host.objects.objects.items():
            path = self._folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def reader(self, **wanted: Any) -> CloudReader:
        place = Place("unused", f"file://{self._folder}")
        return CloudReader(place, replace(Wanted((f"cloud:{TOPIC.name}",)), **wanted), SCHEMA)

    async def plan(self, reader: CloudReader) -> list[CloudSource]:
        self.files()
        return await reader.plan(self._broker.host.world.store)

    async def rows(self, reader: CloudReader) -> list[Row]:
        return read(reader, await self.plan(reader))


def read(reader: CloudReader, sources: list[CloudSource]) -> list[Row]:
    return [row for batch in reader.read(InputPartition(sources)) for row in batch.to_pylist()]


def with_queries(tmp_path: Path, work: Callable[[Broker, Leveler, Queries], Coroutine[Any, Any, None]]) -> None:
    async def go(one: Broker, leveler: Leveler) -> None:
        await work(one, leveler, Queries(one, tmp_path))

    with_leveler(go)


def plain_rows(rows: list[Row]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row["offset"], row["key"], row["value"]) for row in rows]


@pytest.mark.parametrize("is_leveled", [False, True])
def test_rows_are_those_of_a_read_committed_consumer(tmp_path: Path, is_leveled: bool) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        await write_transactions(one)
        if is_leveled:
            await leveler.level()
        await one.append(plain(b"more"))
        rows = await queries.rows(queries.reader(read_committed=True))
        assert [row["offset"] for row in rows] == [0, 1, 2, 3], "5 was aborted, and at 7 a transaction is open"
        expected = [each for each in records(await one.read_all(committed_only=True)) if each[0] != 5]
        assert plain_rows(rows) == expected
        assert {row["transactionOutcome"] for row in rows} == ({None} if is_leveled else {None, "committed"})

    with_queries(tmp_path, work)


def test_without_read_committed_all_is_there_with_its_outcome(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        await write_transactions(one)
        rows = await queries.rows(queries.reader(includes_control=True))
        told = {row["offset"]: row["controlType"] or row["transactionOutcome"] for row in rows}
        assert told == {
            **{0: None, 1: None, 2: "committed", 3: "committed", 4: "commit"},
            **{5: "aborted", 6: "abort", 7: "open", 8: None},
        }

    with_queries(tmp_path, work)


def test_what_was_aborted_by_a_marker_above_the_stable_offset_is_aborted(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        await one.append(sequenced(0, pid=3, is_open=True))  # aborted by a marker at 2
        await one.append(sequenced(0, pid=4, is_open=True))  # open: the stable offset
        await one.end(ControlType.ABORT, pid=3)
        assert await queries.rows(queries.reader(read_committed=True)) == []

    with_queries(tmp_path, work)


def test_filters_choose_what_is_read(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        for number in range(6):
            await one.append(plain(b"%d" % number, time_ms=NOW_MS + 1000 * number))
            if number < 4:
                await leveler.level()
        reader = queries.reader()
        assert list(reader.pushFilters([GreaterThanOrEqual(("offset",), 2), EqualTo(("partition",), 0)])) == []
        assert [one.source.previous_offset + 1 for one in await queries.plan(reader)] == [2, 3, 4, 5]
        late = queries.reader()
        since = GreaterThan(("timestamp",), datetime.fromtimestamp((NOW_MS + 3000) / 1000, UTC))
        assert list(late.pushFilters([since])) == [since], "Spark compares each record"
        assert [one.source.previous_offset + 1 for one in await queries.plan(late)] == [3, 4, 5]
        elsewhere = queries.reader()
        elsewhere.pushFilters([EqualTo(("partition",), 7)])
        assert await queries.plan(elsewhere) == []

    with_queries(tmp_path, work)


def test_a_pin_keeps_what_a_query_was_planned_on(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        await one.append(plain(b"a"), plain(b"b"))
        reader = queries.reader()
        planned = await queries.plan(reader)
        before = read(reader, planned)
        await leveler.level()  # what was planned on is garbage now
        store = one.host.world.store
        for _ in range(20):
            await store.advance_round((await store.read_collection()).round)
        assert await store.collect(2, 100) == []
        assert read(reader, planned) == before
        for _ in range(kafkalog.PIN_ROUNDS):
            await store.advance_round((await store.read_collection()).round)
        assert await store.collect(2, 100) != [], "a pin ends"

    with_queries(tmp_path, work)


def test_one_object_or_a_prefix_is_read_without_a_metastore(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        await one.append(plain(b"a"), plain(b"b"))
        await leveler.level()
        (extent,) = await one.host.world.l1_of((TOPIC.topic_id, 0))
        queries.files()
        assert extent.object_id is not None
        key = ObjectName(CLUSTER, Level.L1, extent.object_id).key
        reader = queries.reader(read_committed=True)
        for path in (key, f"{CLUSTER}/l1", f"{CLUSTER}/l1/"):
            found = list(plan_objects(f"file://{tmp_path}/{path}", reader.wanted))
            rows = read(reader, found)
            assert [(row["topic"], row["offset"]) for row in rows] == [
                (str(TOPIC.topic_id), 0),
                (str(TOPIC.topic_id), 1),
            ]
        with pytest.raises(BadOptionError, match="aborted"):
            list(plan_objects(f"file://{tmp_path}/{CLUSTER}/l0", reader.wanted))
        assert len(list(plan_objects(f"file://{tmp_path}/{CLUSTER}/l0", queries.reader().wanted))) > 0

    with_queries(tmp_path, work)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"path": "cloud:orders"}, "metastore and store"),
        ({"path": "cloud:orders", "metastore": "sqlite:///x", "store": "file:///y", "pinRounds": "0"}, "pinRounds"),
        ({"paths": '["cloud:orders", "/data/orders-0"]', "metastore": "m", "store": "s"}, "different kinds"),
        ({"path": "cloud:orders", "metastore": "m", "store": "s", "colour": "red"}, "colour"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, str], match: str) -> None:
    with pytest.raises(BadOptionError, match=match):
        CloudKafkaLogDataSource(options).schema()


def test_a_topic_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def work(one: Broker, leveler: Leveler, queries: Queries) -> None:
        with pytest.raises(BadOptionError, match="no cloud topic"):
            await queries.plan(queries.reader(paths=("cloud:nothing",)))

    with_queries(tmp_path, work)
