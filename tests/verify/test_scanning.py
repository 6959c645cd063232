"""One replica of a log, read through the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sexton.checker.reference import judge
from sexton.harness.brokers import SextonCluster
from sexton.history.op import Ext, F, Log, Op, Poll, Record, Run, Send, Span, Type
from sexton.verify import probes
from sexton.verify.clients.confluent import Producer
from sexton.verify.generator import NTH_REPLICA, Ask
from sexton.verify.reading import ID_HEADER, encoded
from sexton.verify.scanning import Scanned, Wanted, scan
from sexton.verify.session import Options, Session, Topics

BROKERS = 3
PLACES = {0: ("t", 0), 1: ("t", 1)}
WRITTEN = [Record(0, 1, 7), Record(2, 3, 7, True), Record(3, 4, 8)]
"""Of log 0: the record at 1 is in an aborted transaction; markers follow."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SextonCluster]:
    with SextonCluster(nodes=BROKERS) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=BROKERS)
        write(cluster.bootstrap)
        yield cluster


def write(bootstrap: str) -> None:
    plain = Producer(bootstrap, "", 10_000, {})
    plain.send("t", 0, [encoded(1)], encoded(7))
    plain.flush()
    aborting = Producer(bootstrap, "aborts", 10_000, {})
    aborting.init()
    aborting.begin()
    aborting.send("t", 0, [encoded(2)], encoded(7))
    aborting.flush()
    plain.send("t", 0, [None], encoded(7), [(ID_HEADER, encoded(3))])
    plain.send("t", 0, [encoded(4)], encoded(8))
    plain.flush()
    aborting.abort()
    for producer in (plain, aborting):
        producer.close()


@pytest.mark.cluster
@pytest.mark.parametrize("broker", range(1, BROKERS + 1))
def test_every_replica_gives_what_was_committed_and_nothing_else(cluster: SextonCluster, broker: int) -> None:
    found = scan(cluster.bootstrap, Wanted(PLACES, replica=broker, ends={0: 5}), "read_committed", 30)
    assert found.error == ""
    assert found.replica == broker
    assert found.records[0] == WRITTEN
    assert found.spans == {0: Span(0, 5), 1: Span(0, 0)}


@pytest.mark.cluster
def test_replicas_are_counted_round_and_round(cluster: SextonCluster) -> None:
    nodes = [scan(cluster.bootstrap, Wanted(PLACES, nth=nth), "read_committed", 30).replica for nth in range(4)]
    assert nodes[3] == nodes[0]
    assert set(nodes) == set(probes.partitions(cluster.bootstrap, ["t"])["t", 0].replicas)


@pytest.mark.cluster
def test_what_is_known_to_be_written_is_waited_for(cluster: SextonCluster) -> None:
    found = scan(cluster.bootstrap, Wanted({0: ("t", 0)}, nth=1, ends={0: 99}), "read_committed", 0.5)
    assert found.error == "not at the end in time"
    assert found.records[0] == WRITTEN, "it tells what it has read"


def test_replicas_that_differ_are_found_by_what_a_session_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has a value where the other has none: from the answers of two scans to the judge's finding."""

    def found(bootstrap: str, wanted: Wanted, *_: object) -> Scanned:
        records = {1: [Record(0, 1, 7)], 2: [Record(1, 2, 8)]}[wanted.nth + 1]
        return Scanned(wanted.nth + 1, {0: records}, {0: Span(0, 2)}, "")

    monkeypatch.setattr("sexton.verify.scanning.scan", found)
    session = Session(Options(driver="confluent", bootstrap="", transactional_id="", group=""))
    monkeypatch.setattr(session, "create_topics", lambda: None)
    ops = [
        Op(0, 1, 0, Type.INVOKE, F.SEND, (Send(0, 1, key=7),)),
        Op(1, 2, 0, Type.OK, F.SEND, (Send(0, 1, 0, key=7),)),
        Op(2, 3, 0, Type.INVOKE, F.SEND, (Send(0, 2, key=8),)),
        Op(3, 4, 0, Type.OK, F.SEND, (Send(0, 2, 1, key=8),)),
    ]
    for nth in (0, 1):
        ask = Ask(F.SCAN, (Poll(),), (0,), ext={NTH_REPLICA: nth})
        done = session.do(ask, PLACES, {"t": Topics(2, 3)})
        assert done.ext == {Ext.REPLICA: nth + 1}
        number = len(ops)
        ops.append(Op(number, number, 1, Type.INVOKE, ask.f, ask.micro_ops))
        ops.append(Op(number + 1, number + 1, 1, done.type, ask.f, done.micro_ops, spans=done.spans, ext=done.ext))
    logs = {0: Log("t", 0, is_compacted=True)}
    assert "replicas-disagree" in judge(ops, Run(workload="table", logs=logs)).wrong()
