"""PostgreSQL as the metastore of a run: away in three ways, cut off from one broker, and gone with who started it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sexton.errors import SextonError
from sexton.harness import postgres
from sexton.harness.errors import HarnessError
from sexton.harness.fittings import Fitting
from sexton.harness.network import Network
from sexton.harness.postgres import Postgres
from sexton.harness.systems import UnknownSystemError
from sexton.verify import probes, systems
from sexton.verify.faults.base import Scene
from sexton.verify.faults.partition import Partition, shapes
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.faults.services import Metastore

TIMEOUT_S = 60
TOPIC = "t"
WAYS = ("killed", "paused", "stopped")


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """With a network for each, where this machine can have that."""
    try:
        Postgres.check()
    except HarnessError as error:
        pytest.skip(str(error))
    needs = [Fitting.NETWORK] if os.geteuid() == 0 else []
    directory = tmp_path_factory.mktemp("server")
    with systems.running("sexton", directory, {}, is_compacting=False, needs=needs, metastore="postgres") as system:
        assert system.cluster is not None
        system.cluster.create_topic(TOPIC, 1, 3)
        scene = Scene(system.cluster, lambda: [(TOPIC, 0)], metastore=system.metastore)
        wait_until(lambda: probes.is_whole(scene.bootstrap, [TOPIC]))
        yield scene


def choice_of(name: str, names: list[str]) -> int:
    return next(each for each in range(1000) if random.Random(each).choice(names) == name)


@pytest.mark.cluster
@pytest.mark.postgres
@pytest.mark.parametrize("how", WAYS)
def test_nobody_reaches_it_and_then_everybody_does(scene: Scene, how: str) -> None:
    fault = Metastore(scene)
    told = fault.begin(Act(0, "metastore", True, Target.ALL, choice_of(how, sorted(WAYS))))
    assert (told.hit, told.ext["how"]) == (["metastore"], how)
    with pytest.raises(SextonError):
        scene.cluster.create_topic(f"not-now-{how}", 1, 3)
    assert fault.end().hit == ["metastore"]
    assert fault.end().hit == ()
    wait_until(lambda: probes.is_whole(scene.bootstrap, [TOPIC]))
    scene.cluster.create_topic(f"now-{how}", 1, 3)


@pytest.mark.cluster
@pytest.mark.postgres
def test_a_broker_that_is_cut_off_from_it_loses_its_leaderships_and_comes_back(scene: Scene) -> None:
    try:
        Network.check()
    except HarnessError as error:
        pytest.skip(str(error))
    fault = Partition(scene)
    choice = choice_of("metastore", sorted(shapes(3, has_server=True)))
    told = fault.begin(Act(0, "partition", True, Target.LEADER, choice))
    (hit,) = told.hit
    assert told.ext["shape"] == "metastore"
    wait_until(lambda: probes.leader_of(scene.bootstrap, (TOPIC, 0)) not in (hit, -1))
    fault.end()
    wait_until(lambda: probes.is_whole(scene.bootstrap, [TOPIC]))


def test_kafka_has_none_and_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    systems.check_metastore("kafka-4.3.0", "sqlite")
    with pytest.raises(UnknownSystemError, match="has no metastore"):
        systems.check_metastore("kafka-4.3.0", "postgres")
    monkeypatch.setattr(postgres, "BINARIES", "/nowhere")
    with pytest.raises(HarnessError, match="not installed"):
        systems.check_metastore("sexton", "postgres")


HOLDER = """
import time
from sexton.harness import postgres
with postgres.running() as server:
    server.pause()
    print(server._process.pid, server._folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.postgres
def test_a_server_goes_with_who_started_it_even_if_that_is_killed_and_it_is_paused() -> None:
    try:
        Postgres.check()
    except HarnessError as error:
        pytest.skip(str(error))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid, folder = holder.stdout.readline().split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert children
    holder.kill()
    holder.communicate()
    wait_until(lambda: not any(Path(f"/proc/{each}/cwd").exists() for each in (pid, *children)))
    wait_until(lambda: not Path(folder).exists())
