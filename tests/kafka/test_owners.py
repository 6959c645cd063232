"""`sexton compact` by one user on the directory of another user's broker, which then starts on it.

Run as root, the broker is nobody's. Run as anybody else it is their own, and modes are what can go wrong: the broker's
umask is one that neither the command nor the directory has by chance.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from sexton.harness import jars
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_node import KafkaNode
from sexton.harness.properties import Settings
from tests.kafka.command import sexton_json
from tests.kafka.workload import NO_CLEANING, QUIET, consume_committed, delivered, flush, fold_rows

USER: Final = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
BROKERS_UMASK: Final = 0o027
OUR_UMASK: Final = 0o077
COMPACTED: Final[Settings] = {"cleanup.policy": "compact", "internal.segment.bytes": 8 * 1024}
"""So small that of most segments nothing is left: librdkafka complains of ten fetches in which there is no record."""


class OthersKafka(KafkaCluster):
    """Its broker runs as USER."""

    def _prepare(self) -> None:
        super()._prepare()
        for path in [self.base_dir, *self.base_dir.rglob("*")]:
            os.chown(path, USER.pw_uid, USER.pw_gid)

    def _command(self, node: KafkaNode, name: str, settings: Settings) -> list[str]:
        become = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups"]
        with_umask = ["/bin/sh", "-c", f'umask {BROKERS_UMASK:03o}; exec "$@"', "broker"]
        return [*(become if os.geteuid() == 0 else []), *with_umask, *super()._command(node, name, settings)]


@pytest.fixture
def open_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that USER can reach, with Kafka's jars in it if those are where only their owner can look. A JVM that
    runs a copy cannot start from the archive of its classes."""
    place = Path(tempfile.mkdtemp(prefix="sexton-owners-"))
    place.chmod(0o755)
    if not is_open(jars.jar_dir()):
        shutil.copytree(jars.jar_dir(), place / "jars" / jars.jar_dir().name)
        monkeypatch.setenv(jars.CACHE_VARIABLE, str(place / "jars"))
    yield place
    shutil.rmtree(place)


def is_open(directory: Path) -> bool:
    real = directory.resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (real, *real.parents, *directory.absolute().parents))


def write(kafka: KafkaCluster) -> dict[bytes, bytes]:
    """Each key's latest value."""
    kafka.create_topic("orders", config=COMPACTED)
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for number in range(3_000):
        value = f"state {number} ".encode() * 3
        producer.produce("orders", key=f"{number % 100}", value=value, on_delivery=delivered)
        if number % 100 == 99:
            flush(producer)
    return {f"{number % 100}".encode(): f"state {number} ".encode() * 3 for number in range(2_900, 3_000)}


def owners(log_dir: Path) -> dict[str, tuple[int, int, int]]:
    """Of files that are made while a broker runs; formatting made the others."""
    found = {str(path.relative_to(log_dir)): path.stat() for path in log_dir.rglob("*") if path.is_file()}
    return {
        name: (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        for name, status in found.items()
        if name not in ("meta.properties", "bootstrap.checkpoint") and "__cluster_metadata" not in name
    }


def strangers(log_dir: Path) -> dict[str, tuple[int, int, int]]:
    theirs = (USER.pw_uid, USER.pw_gid, 0o666 & ~BROKERS_UMASK)
    return {name: found for name, found in owners(log_dir).items() if found != theirs}


@pytest.mark.kafka
@pytest.mark.spark
def test_a_broker_of_another_user_starts_on_what_was_compacted(open_place: Path) -> None:
    base_dir = open_place / "kafka"
    with OthersKafka(base_dir=base_dir, settings=NO_CLEANING) as kafka:
        latest = write(kafka)
        kafka.stop_node(1)
        log_dir = kafka.log_dir(1)
        assert strangers(log_dir) == {}

        umask = os.umask(OUR_UMASK)
        try:
            sexton_json("compact", log_dir / "orders-0", "--dry-run")
            assert strangers(log_dir) == {}, "after a dry run"
            (report,) = sexton_json("compact", log_dir / "orders-0")["partitions"]
        finally:
            os.umask(umask)
        assert report["changed"]
        assert {".lock", "cleaner-offset-checkpoint"} <= set(owners(log_dir))
        assert strangers(log_dir) == {}

        kafka.start_node(1)
        assert kafka.warnings(1) == []
        assert kafka.recoveries(1) == []
        (rows,) = consume_committed(kafka.bootstrap, [("orders", 0)]).values()
        assert {key: value for key, (_, value) in fold_rows(rows).items()} == latest
        kafka.stop_node(1)
