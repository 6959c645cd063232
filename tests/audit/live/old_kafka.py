"""Apache Kafka from before KRaft on this machine: three brokers, and the ZooKeeper that they need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sexton.harness.jars import LOG4J1_CONFIG, fetched_jars, java
from sexton.harness.processes import HOST, Port, ServerProcess
from sexton.harness.properties import Settings, write_properties

POM: Final = Path(__file__).with_name("old-kafka-pom.xml")
BROKERS: Final = (1, 2, 3)
TIMEOUT_S: Final = 90
OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx256m",
    "-Dzookeeper.sasl.client=false",
    "-Dzookeeper.admin.enableServer=false",
)


@contextmanager
def old_kafka(version: str, directory: Path) -> Iterator[str]:
    """Yields the brokers' addresses."""
    jars = fetched_jars(POM, "old-kafka", f"old-kafka-{version}", (f"-Dkafka.version={version}",))
    with ExitStack() as stack:
        zookeeper, *ports = [Port() for _ in range(1 + len(BROKERS))]
        for port in (zookeeper, *ports):
            stack.callback(port.release)

        def start(name: str, main_class: str, settings: Settings) -> None:
            logging, config = directory / f"{name}.log4j", directory / f"{name}.properties"
            log = LOG4J1_CONFIG.format(path=directory / f"{name}.log", pattern="%d %p %m%n")
            logging.write_text(log)
            write_properties(config, settings)
            options = (*OPTIONS, f"-Dlog4j.configuration=file:{logging}", "-cp", f"{jars}/*")
            process = ServerProcess([java(), *options, main_class, str(config)], directory / f"{name}.console")
            stack.callback(process.kill)

        own: Settings = {
            "dataDir": str(directory / "zookeeper"),
            "clientPort": zookeeper.number,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
        }
        start("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", own)
        for broker, port in zip(BROKERS, ports, strict=True):
            settings: Settings = {
                "broker.id": broker,
                "listeners": f"PLAINTEXT://{HOST}:{port.number}",
                "log.dirs": str(directory / f"data-{broker}"),
                "zookeeper.connect": f"{HOST}:{zookeeper.number}",
                "zookeeper.connection.timeout.ms": 60_000,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.num.partitions": 1,
                "group.initial.rebalance.delay.ms": 0,
            }
            start(f"broker-{broker}", "kafka.Kafka", settings)
        bootstrap = ",".join(f"{HOST}:{port.number}" for port in ports)
        _wait_for_all(bootstrap)
        yield bootstrap


def _wait_for_all(bootstrap: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            if len(admin.list_topics(timeout=5).brokers) == len(BROKERS):
                return
        except KafkaException:
            time.sleep(0.2)
        assert time.monotonic() < deadline_s
