"""The judge of cloud topics: what it finds, on a cluster whose store and metastore the test changes by hand."""

from __future__ import annotations

import random
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.ports.cloud import CLOUD, STORAGE_MODE, Outcome, Owner
from sexton.ports.cloud import Level as Leveled
from sexton.ports.metastore import Storage
from sexton.ports.object_names import MARKER_KEY, ObjectName
from sexton.records.objects import Level
from sexton.simulate.cloud_checks import CloudJudge
from sexton.simulate.cluster import StorePlan
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.loop import new_loop
from sexton.simulate.metastore import MetastoreService, run_at_once
from sexton.simulate.network import Fabric
from sexton.simulate.objects import ObjectService
from sexton.simulate.observe import Agreement
from sexton.simulate.trace import Trace
from sexton.simulate.transaction_checks import TransactionJudge
from sexton.types import LeaderEpoch, PartitionId
from tests.adapters.metastore.cloud.world import gather, run
from tests.adapters.metastore.rows import broker, partitions, topic
from tests.log.helpers import plain

TOPIC = topic("orders", 7)
KEY: PartitionId = (TOPIC.topic_id, 0)
CLUSTER = uuid.UUID(int=77)
WHO = "broker-1.1"


class Scene:
    def __init__(self) -> None:
        loop = new_loop(random.Random(1))
        fabric = Fabric(loop, random.Random(1))
        self.metastore = MetastoreService(loop, random.Random(1), fabric, InProcessMetastore())
        self.objects = ObjectService(loop, random.Random(1), fabric)
        self.history = History()
        trace = Trace(loop)
        agreement = Agreement(trace)
        store = StorePlan.draw(random.Random(1))
        cluster: Any = SimpleNamespace(metastore=self.metastore, objects=self.objects, store=store, nodes={}, loop=loop)
        self.judge = CloudJudge(cluster, agreement, self.history, trace, TransactionJudge(self.history), {})
        self._agreement = agreement
        self.do("open_cluster", CLUSTER)
        row = self.do("register_broker", broker(1), None)
        self.owner = Owner.broker(1, row.epoch)
        self.do("create_topic", TOPIC, partitions(TOPIC, 1, storage=Storage.CLOUD), {STORAGE_MODE: CLOUD})
        self.do("claim_partitions", 1, row.epoch, [(KEY, LeaderEpoch(1))])

    def do(self, operation: str, *arguments: Any) -> Any:
        result = run_at_once(getattr(self.metastore.inner, operation)(*arguments))
        self._agreement.carried_out(WHO, operation, arguments, result)
        self.judge.carried_out(WHO, operation, arguments, result)
        return result

    def registered(self, number: int = 1) -> uuid.UUID:
        object_id = uuid.UUID(int=number)
        self.do("register_objects", self.owner, Leveled.L0, [object_id])
        return object_id

    def put(self, object_id: uuid.UUID, data: bytes) -> None:
        key = ObjectName(CLUSTER, Level.L0, object_id).key
        self.objects.objects[key] = data
        self.judge.stored(WHO, "put", (key, data), None)

    def delete(self, object_id: uuid.UUID) -> None:
        self.judge.stored(WHO, "delete", (ObjectName(CLUSTER, Level.L0, object_id).key,), None)

    def commit(self, object_id: uuid.UUID, data: bytes, base: int = 0, end: int = 1) -> None:
        one = gather(object_id, run(KEY, base, end, size_bytes=len(data)))
        one = type(one)(object_id=object_id, size_bytes=len(data), runs=one.runs)
        assert self.do("commit_l0", self.owner, [one], 1) == [[Outcome.ACCEPTED]]

    def write(self, number: int = 1) -> uuid.UUID:
        object_id = self.registered(number)
        self.put(object_id, plain(b"v"))
        self.commit(object_id, plain(b"v"))
        return object_id


def found(rule: str) -> Any:
    return pytest.raises(SimulationFailure, match=rule)


def test_what_is_registered_put_and_committed_is_right() -> None:
    scene = Scene()
    scene.write()
    assert scene.judge.commits_count == 1


def test_a_copy_of_a_log_that_does_not_start_at_zero_is_right() -> None:
    """What lies below it counts as leveled, and nothing of it was ever there."""
    scene = Scene()
    local = topic("local", 8)
    (row,) = partitions(local, 1)
    scene.do("create_topic", local, [row], {})
    assert scene.do("begin_move", 1, scene.owner.epoch, row, 5) is not None
    copied = (local.topic_id, 0)
    assert scene.judge.leveled[copied].truth.gaps_below == 5


def test_bytes_that_nobody_registered_break_c1() -> None:
    with found("C1.*not registered"):
        Scene().put(uuid.UUID(int=9), b"x")


def test_two_contents_of_one_key_break_c1() -> None:
    scene = Scene()
    object_id = scene.registered()
    scene.put(object_id, b"one")
    scene.put(object_id, b"one")
    with found("C1.*other bytes"):
        scene.put(object_id, b"two")


def test_a_commit_of_what_was_not_put_breaks_c2() -> None:
    scene = Scene()
    with found("C2.*not in the store"):
        scene.commit(scene.registered(), plain(b"v"))


def test_deleting_what_is_pending_or_live_or_within_its_grace_breaks_c4() -> None:
    scene = Scene()
    with found("C4"):
        scene.delete(scene.registered(5))
    live = scene.write()
    with found("C4"):
        scene.delete(live)
    released = scene.registered(6)
    scene.do("release_objects", scene.owner, [released])
    with found("C4"):
        scene.delete(released)
    for round_ in range(10):
        scene.do("advance_round", round_)
    scene.delete(released)


def test_an_extent_that_says_something_else_than_its_bytes_breaks_c5() -> None:
    scene = Scene()
    object_id = scene.registered()
    data = plain(b"a", b"b")
    scene.put(object_id, data)
    with found("C5"):
        scene.commit(object_id, data, 0, 1)


def test_bytes_that_are_no_batches_break_c5() -> None:
    scene = Scene()
    object_id = scene.registered()
    scene.put(object_id, b"x" * 100)
    with found("C5.*no batches"):
        scene.commit(object_id, b"x" * 100)


def test_a_start_that_nobody_asked_for_breaks_rule_1() -> None:
    scene = Scene()
    scene.write()
    with found("rule 1.*nobody asked"):
        scene.do("advance_start", KEY, LeaderEpoch(1), 1)
    other = Scene()
    other.write()
    other.history.deleting_records(("orders", 0), 1)
    other.do("advance_start", KEY, LeaderEpoch(1), 1)


def test_a_wipe_takes_what_nobody_may_rely_on_and_nothing_else() -> None:
    scene = Scene()
    live, pending, released = scene.write(1), scene.registered(2), scene.registered(3)
    for object_id in (pending, released):
        scene.put(object_id, b"x")
    scene.do("release_objects", scene.owner, [released])
    scene.objects.objects[MARKER_KEY] = b"marker"
    scene.judge.wipe()
    kept = {key.rpartition("/")[2] for key in scene.objects.objects}
    assert kept == {str(live), str(pending), MARKER_KEY}
