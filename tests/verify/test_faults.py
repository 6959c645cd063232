"""Each fault on real brokers: it is there while it is in force, and all is whole again after it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sexton.errors import SextonError
from sexton.harness.cloud_store import CloudStore
from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.harness.store_proxy import StoreFaults
from sexton.harness.systems import UnknownSystemError, cluster_of
from sexton.verify import probes
from sexton.verify.clients.confluent import Producer
from sexton.verify.faults.base import NodeFault, Scene
from sexton.verify.faults.damage import CorruptFile
from sexton.verify.faults.disks import FailingDisk, FailingRenames, FailingWrites, NoSpace, SlowDisk
from sexton.verify.faults.images import LostDisk, OldImage
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.moving import Leadership, Membership
from sexton.verify.faults.processes import RollingRestart
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.faults.services import STORE_FAULTS, Metastore, Store
from sexton.verify.systems import CLOUD, LOCAL, check_storage

TOPIC = "t"
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def sexton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from started(cluster_of("sexton", tmp_path_factory.mktemp("sexton"), {}, keep=False))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from started(cluster_of("kafka-4.3.0", tmp_path_factory.mktemp("kafka"), {}, keep=False))


def started(cluster: Cluster[Any]) -> Iterator[Scene]:
    with cluster:
        cluster.create_topic(TOPIC, 2, 3)
        scene = Scene(cluster, lambda: [(TOPIC, 0), (TOPIC, 1)])
        wait_until(lambda: is_whole(scene))
        yield scene


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def is_whole(scene: Scene) -> bool:
    return probes.is_whole(scene.bootstrap, [TOPIC])


def act(fault: str, target: Target = Target.ONE, choice: int = 1) -> Act:
    return Act(0, fault, True, target, choice)


def leaders(scene: Scene) -> set[int]:
    return {each.leader for each in probes.partitions(scene.bootstrap, [TOPIC]).values()}


def write(scene: Scene, count: int = 20) -> None:
    # An idempotent one asks any broker for its id, the broken one, too, and asks it for as long as it answers.
    producer = Producer(scene.bootstrap, "", 1_000, {"enable.idempotence": False})
    producer.init()
    for _ in range(count):
        producer.send(TOPIC, 0, [b"value"])
        producer.flush()
    producer.close()


def leads(scene: Scene) -> None:
    fault = Leadership(scene)
    (led,) = fault.begin(act("leadership")).hit
    wait_until(lambda: leaders(scene) == {led})
    fault.end()
    wait_until(lambda: is_whole(scene))
    assert fault.end().hit == ()


def leaves_and_joins(scene: Scene) -> None:
    fault = Membership(scene)
    (gone,) = fault.begin(act("membership")).hit
    assert all(gone not in each.replicas for each in probes.partitions(scene.bootstrap, [TOPIC]).values())
    assert fault.end().hit == [gone]
    wait_until(lambda: is_whole(scene))
    assert all(gone in each.replicas for each in probes.partitions(scene.bootstrap, [TOPIC]).values())


def wait_until_all_is_there(scene: Scene) -> None:
    """Faults of a broker's files hit nobody while another broker is away, or lags."""
    scene.cluster.wait_ready()
    wait_until(lambda: is_whole(scene))


def loses_its_disk(scene: Scene) -> None:
    write(scene)
    wait_until_all_is_there(scene)
    fault = LostDisk(scene)
    (node_id,) = fault.begin(act("lost-disk", Target.LEADER)).hit
    assert isinstance(node_id, int)
    folder = scene.cluster.partition_dir(node_id, TOPIC, 0)
    assert not folder.exists()
    fault.end()
    wait_until(lambda: is_whole(scene))
    assert folder.exists()


def is_restarted_one_by_one(scene: Scene) -> None:
    wait_until_all_is_there(scene)
    pids = {node_id: scene.cluster.pid(node_id) for node_id in scene.cluster.node_ids}
    told = RollingRestart(scene).begin(act("rolling-restart", Target.ALL))
    assert told.hit == list(scene.cluster.node_ids)
    assert told.ext == {}
    assert all(scene.cluster.pid(node_id) != pid for node_id, pid in pids.items())
    wait_until(lambda: is_whole(scene))


def comes_back_with_an_old_image(scene: Scene) -> None:
    wait_until_all_is_there(scene)
    fault = OldImage(scene)
    (node_id,) = fault.begin(act("old-image")).hit
    assert isinstance(node_id, int)
    scene.cluster.wait_ready()
    wait_until(lambda: is_whole(scene))
    write(scene)
    assert fault.end().hit == [node_id]
    wait_until(lambda: is_whole(scene))
    assert not (scene.cluster.node_dir(node_id) / "image").exists()


def comes_back_with_damaged_files(scene: Scene) -> None:
    write(scene)
    wait_until_all_is_there(scene)
    fault = CorruptFile(scene)
    told = fault.begin(act("corrupt-file", Target.LEADER))
    (node_id,) = told.hit
    assert isinstance(node_id, int)
    assert told.ext["damaged"]
    assert not scene.cluster.is_running(node_id)
    assert fault.end().hit == [node_id]
    wait_until(lambda: is_whole(scene))
    assert fault.end().hit == ()


@pytest.mark.cluster
def test_all_logs_are_led_by_one(sexton: Scene) -> None:
    leads(sexton)


@pytest.mark.cluster
def test_a_broker_leaves_and_joins_again(sexton: Scene) -> None:
    leaves_and_joins(sexton)


@pytest.mark.cluster
def test_a_broker_loses_its_disk(sexton: Scene) -> None:
    loses_its_disk(sexton)


@pytest.mark.cluster
def test_brokers_are_restarted_one_by_one(sexton: Scene) -> None:
    is_restarted_one_by_one(sexton)


@pytest.mark.cluster
def test_a_broker_comes_back_with_an_old_image(sexton: Scene) -> None:
    comes_back_with_an_old_image(sexton)


@pytest.mark.cluster
def test_a_broker_comes_back_with_damaged_files(sexton: Scene) -> None:
    comes_back_with_damaged_files(sexton)


class Sleeper:
    """A cluster of one broker, which does nothing."""

    node_ids = (1,)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process = subprocess.Popen(["sleep", "600"])

    def pid(self, node_id: int) -> int:
        return self.process.pid

    def node_dir(self, node_id: int) -> Path:
        return self.directory

    def is_running(self, node_id: int) -> bool:
        return True

    is_serving = is_running


def test_a_disk_that_one_fault_has_in_hand_is_not_said_to_be_hit_by_another(tmp_path: Path) -> None:
    sleeper: Any = Sleeper(tmp_path)
    slow, full = SlowDisk(Scene(sleeper)), NoSpace(Scene(sleeper))
    try:
        assert slow.begin(act("slow-disk")).hit == [1]
        assert full.begin(act("no-space")).hit == []
        assert full.end().hit == []
        assert slow.end().hit == [1]
        assert full.begin(act("no-space")).hit == [1], "it is free again"
        full.end()
    finally:
        sleeper.process.kill()
        sleeper.process.wait()


def cannot_rename(scene: Scene) -> None:
    """Not the logs of a topic that is deleted, among others."""
    scene.cluster.create_topic("doomed", 1, 3)
    wait_until_all_is_there(scene)
    fault = FailingRenames(scene)
    (node_id,) = fault.begin(act("failing-renames", Target.LEADER)).hit
    assert isinstance(node_id, int)
    probes.delete_topics(scene.bootstrap, "doomed")
    wait_until(lambda: "(INJECTED)" in (scene.cluster.node_dir(node_id) / "strace.out").read_text())
    assert fault.end().hit == [node_id]
    wait_until_all_is_there(scene)
    write(scene, 1)


@pytest.mark.cluster
def test_a_broker_that_cannot_rename_its_files_comes_back(sexton: Scene) -> None:
    cannot_rename(sexton)


@pytest.mark.cluster
@pytest.mark.soak
@pytest.mark.parametrize(
    "shows",
    [
        cannot_rename,
        leads,
        leaves_and_joins,
        is_restarted_one_by_one,
        loses_its_disk,
        comes_back_with_an_old_image,
        comes_back_with_damaged_files,
    ],
)
def test_the_same_of_kafka(kafka: Scene, shows: Callable[[Scene], None]) -> None:
    shows(kafka)


@pytest.mark.cluster
def test_nobody_reaches_the_metastore_and_then_everybody_does(sexton: Scene) -> None:
    fault = Metastore(sexton)
    assert fault.begin(act("metastore", Target.ALL)).hit == ["metastore"]
    with pytest.raises(SextonError):
        sexton.cluster.create_topic("not-now", 1, 3)
    fault.end()
    wait_until(lambda: is_whole(sexton))
    sexton.cluster.create_topic("now", 1, 3)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", [FailingDisk, FailingWrites, NoSpace])
def test_a_broker_whose_flushes_or_writes_fail_ends_or_is_left_and_comes_back(
    sexton: Scene, kind: type[NodeFault]
) -> None:
    fault = kind(sexton)
    (node_id,) = fault.begin(act(kind.name, Target.LEADER)).hit
    write(sexton, 1)
    assert fault.end().hit == [node_id]
    sexton.cluster.wait_ready()
    wait_until(lambda: is_whole(sexton))


@pytest.mark.cluster
def test_slow_flushes_are_slow_and_then_as_before(sexton: Scene) -> None:
    fault = SlowDisk(sexton)
    (node_id,) = fault.begin(act("slow-disk", Target.LEADER)).hit
    assert isinstance(node_id, int)
    write(sexton, 2)
    calls = (sexton.cluster.node_dir(node_id) / "strace.out").read_text()
    assert "(DELAYED)" in calls
    fault.end()
    assert sexton.cluster.is_running(node_id)
    wait_until(lambda: is_whole(sexton))


def test_what_a_system_does_not_have_is_told() -> None:
    for name in ("metastore", "compactor"):
        with pytest.raises(HarnessError, match="there is no fault"):
            FAULTS[name].check("kafka-4.3.0")
        FAULTS[name].check("sexton")


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HarnessError, match="needs strace"):
        FailingDisk.check("sexton")


def test_every_fault_says_what_it_does() -> None:
    for name, fault in FAULTS.items():
        assert fault.__doc__, name
        assert "\n" not in fault.__doc__, name


def test_the_store_of_cloud_topics_is_broken_in_some_way_and_then_as_before(tmp_path: Path) -> None:
    with CloudStore(tmp_path) as store:
        fault = Store(Scene(None, store=store))
        seen = set()
        for choice in range(40):
            told = fault.begin(Act(0, "store", True, Target.ALL, choice))
            assert told.hit == ["store"]
            assert store.proxy.faults == STORE_FAULTS[told.ext["how"]] != StoreFaults()
            seen.add(told.ext["how"])
            assert fault.end().hit == ["store"]
            assert store.proxy.faults == StoreFaults()
        assert seen == STORE_FAULTS.keys()
        assert fault.end().hit == ()


def test_a_store_can_be_broken_only_where_there_is_one() -> None:
    check_storage("sexton", CLOUD, ["store"])
    check_storage("kafka-4.3.0", LOCAL, ["kill"])
    for system, storage, faults, said in (
        ("sexton", LOCAL, ["store"], "--storage cloud"),
        ("kafka-4.3.0", CLOUD, [], "Drop --storage cloud"),
    ):
        with pytest.raises(UnknownSystemError) as refused:
            check_storage(system, storage, faults)
        assert said in refused.value.remedy
