"""`sexton up`: what it remembers, how it supervises, and a whole cluster from start to stop."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sexton.adapters.metastore import InProcessMetastore
from sexton.cli.cluster_folder import ClusterFolder, Wishes
from sexton.cli.compactor_process import CompactorProcess
from sexton.cli.compactor_process import command as compactor_command
from sexton.cli.processes import exclusively
from sexton.cli.supervisor import BACKOFF_S, STEADY_S, Child, Restarts, State, Supervisor
from sexton.errors import EnvironmentFailure, LogInUseError
from sexton.harness.brokers import ENVIRONMENT
from sexton.harness.processes import HOST, Port
from sexton.ports.metastore import BrokerRow, BrokerStatus
from tests.cli.up import TIMEOUT_S, Up


@pytest.fixture
def first_port() -> Iterator[int]:
    taken = Port()
    yield taken.number
    taken.release()


# What is remembered


def resolved(folder: ClusterFolder, wishes: Wishes) -> dict[str, int]:
    folder.make()
    cluster = folder.resolve(wishes)
    folder.remember(cluster)
    return cluster.ports


def test_ports_are_chosen_once_and_kept(tmp_path: Path, first_port: int) -> None:
    folder = ClusterFolder(tmp_path)
    ports = resolved(folder, Wishes(brokers=3, port=first_port))
    assert len(set(ports.values())) == 3
    assert resolved(folder, Wishes()) == ports
    assert resolved(folder, Wishes(brokers=4)).items() >= ports.items()


def test_a_port_that_somebody_has_is_passed_over_at_first_and_an_error_later(tmp_path: Path, first_port: int) -> None:
    folder = ClusterFolder(tmp_path)
    with socket.create_server((HOST, first_port)):
        ports = resolved(folder, Wishes(brokers=2, port=first_port))
        assert first_port not in ports.values()
    with socket.create_server((HOST, ports["1"])), pytest.raises(EnvironmentFailure) as refused:
        folder.resolve(Wishes())
    assert "--port" in refused.value.remedy


def test_only_its_owner_may_read_where_the_metastore_is(tmp_path: Path, first_port: int) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    cluster = folder.resolve(Wishes(1, first_port, metastore_url="postgresql://me:secret@host/db"))
    folder.remember(cluster)
    written = folder.write_config(cluster, 1, {})
    for path in (tmp_path / "cluster.json", written):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert folder.resolve(Wishes()).metastore_url == "postgresql://me:secret@host/db"


def test_where_cloud_topics_are_stored_is_remembered(tmp_path: Path, first_port: int) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    assert "cloud.store" not in folder.write_config(folder.resolve(Wishes(1, first_port)), 1, {}).read_text()
    cluster = folder.resolve(Wishes(1, first_port, store_url="folder"))
    folder.remember(cluster)
    assert cluster.store_url == f"file://{tmp_path}/objects"
    text = folder.write_config(folder.resolve(Wishes()), 1, {}).read_text()
    assert f"cloud.store.url=file://{tmp_path}/objects\n" in text
    assert "cloud.linger.ms=5\n" in text
    remote = folder.resolve(Wishes(store_url="s3://bucket/x"))
    assert "cloud.linger.ms" not in folder.write_config(remote, 1, {}).read_text()


def test_settings_come_from_the_folders_file_and_then_from_the_command_line(tmp_path: Path, first_port: int) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    (tmp_path / "broker.properties").write_text("num.partitions=5\nmin.insync.replicas=1\nnode.id=77\n")
    cluster = folder.resolve(Wishes(3, first_port))
    text = folder.write_config(cluster, 2, {"num.partitions": "6"}).read_text()
    assert "num.partitions=6\n" in text
    assert "min.insync.replicas=1\n" in text
    assert "default.replication.factor=3\n" in text
    assert "node.id=2\n" in text


def test_a_folder_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "up.lock"
    with (
        exclusively(lock, "stop it"),
        pytest.raises(LogInUseError, match=str(os.getpid())),
        exclusively(lock, "stop it"),
    ):
        pass
    with exclusively(lock, "stop it"):
        pass


# How children are kept


def child(script: Path) -> Child:
    return Child(1, script, script.with_suffix(".log"))


def supervise(program: str, tmp_path: Path, until: State, metastore: InProcessMetastore | None = None) -> list[State]:
    """The states that a child goes through, up to the first (or third, for WAITING) of a kind, then a stop."""
    script = tmp_path / "child.py"
    script.write_text(program)
    states: list[State] = []

    async def main() -> None:
        def report(changed: Child) -> None:
            states.append(changed.state)
            if changed.state is until and states.count(until) >= (3 if until is State.WAITING else 1):
                supervisor.stop()

        kept = metastore or InProcessMetastore()
        supervisor = Supervisor([child(script)], kept, report, lambda each: [sys.executable, str(each.config_path)])
        async with asyncio.timeout(TIMEOUT_S):
            await supervisor.run()

    asyncio.run(main())
    return states


def test_a_broker_that_is_ready_is_told_to_stop(tmp_path: Path) -> None:
    program = "import time; print('ready: here', flush=True); time.sleep(600)"
    states = supervise(program, tmp_path, State.READY)
    assert states == [State.STARTING, State.READY, State.STOPPING, State.STOPPED]


def test_a_mistake_in_the_settings_is_not_tried_again(tmp_path: Path) -> None:
    assert supervise("import sys; sys.exit(78)", tmp_path, State.FAILED) == [State.STARTING, State.FAILED]


def test_a_crash_is_followed_by_a_restart(tmp_path: Path) -> None:
    states = supervise("import os; os.abort()", tmp_path, State.WAITING)
    assert states == [State.STARTING, State.WAITING] * 3 + [State.STOPPED]


def test_restarts_become_rarer_until_a_child_has_run_for_long() -> None:
    restarts = Restarts()
    delays = [restarts.crashed(ran_s=1) for _ in range(10)]
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[-1] == BACKOFF_S[-1]
    assert restarts.crashed(ran_s=STEADY_S + 1) == 0


def test_a_compactor_is_started_again_like_a_broker() -> None:
    """The first time at once."""

    async def first_crash() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        compactor = CompactorProcess([sys.executable, "-c", "raise SystemExit(1)"], lambda line: _first(told, line))
        running = asyncio.ensure_future(compactor.run())
        line = await asyncio.wait_for(told, 60)
        compactor.stop()
        await running
        return line

    assert asyncio.run(first_crash()) == "ended with exit code 1; it is started again at once"


def _first(told: asyncio.Future[str], line: str) -> None:
    if not told.done():
        told.set_result(line)


def test_a_broker_that_was_seen_to_die_is_fenced_at_once(tmp_path: Path) -> None:
    metastore = InProcessMetastore()
    row = BrokerRow(1, 0, HOST, 1, None, uuid.UUID(int=1), 5000, 0, BrokerStatus.STARTING)

    async def register() -> None:
        await metastore.open_cluster(uuid.UUID(int=2))
        registered = await metastore.register_broker(row, None)
        await metastore.set_broker_status(1, registered.epoch, BrokerStatus.ACTIVE)
        await metastore.renew_lease(1, registered.epoch)

    async def status() -> BrokerStatus:
        return (await metastore.read_changes(0)).brokers[0].status

    asyncio.run(register())
    supervise("import os; os.abort()", tmp_path, State.WAITING, metastore)
    assert asyncio.run(status()) is BrokerStatus.FENCED


def test_children_do_not_outlive_the_supervisor(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys, time\nfrom sexton.cli.processes import die_with\n"
        "die_with(int(sys.argv[1])); print('up', flush=True); time.sleep(600)\n"
    )
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, {str(worker)!r}, str(os.getpid())], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, **ENVIRONMENT}
    started = subprocess.Popen([sys.executable, str(parent)], env=environment, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    orphan = psutil.Process(int(started.stdout.readline()))
    started.kill()
    started.communicate(timeout=TIMEOUT_S)
    psutil.wait_procs([orphan], timeout=TIMEOUT_S)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("is_own", [True, False])
def test_who_steps_back_does_so_with_all_of_its_own_session(is_own: bool) -> None:
    """Niceness alone counts only within a session, and each of our processes has its own."""
    script = """
import os
from pathlib import Path
from sexton.cli.processes import step_back

path = Path("/proc/self/autogroup")

def told():
    words = path.read_text().split() if path.exists() else []
    return os.nice(0), int(words[-1]) if words else None

before = told()
step_back(3)
print(before, told())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **ENVIRONMENT},
        start_new_session=is_own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (niceness, groups), (niceness_after, groups_after) = ast.literal_eval(f"[{done.stdout.replace(') (', '), (')}]")
    assert niceness_after == min(19, niceness + 3)
    if groups is not None:  # a kernel without has nothing to say
        assert groups_after == (niceness_after if is_own else groups)


# A whole cluster


def shell(command: str) -> str:
    words = command.replace("sexton ", f"{shlex.quote(sys.executable)} -m sexton.cli.main ", 1)
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hinted(said: str) -> list[str]:
    """The commands that it printed for people to copy."""
    return [line.strip() for line in said.splitlines() if re.match(r"  .*(sexton|kcat) ", line) and "log:" not in line]


@pytest.mark.cluster
def test_a_cluster_starts_serves_survives_a_crash_stops_and_goes_on(tmp_path: Path, first_port: int) -> None:
    folder = tmp_path / "cluster"
    up = Up(folder, "--port", first_port)
    try:
        create, produce, consume, _kcat = hinted(up.wait_for("Ctrl-C stops"))
        shell(create)
        shell(produce)
        assert shell(f"{consume} --exit-at-end") == "hello, world\n"

        refused = Up(folder.with_name("second"), "--dir", folder)
        assert refused.process.wait(TIMEOUT_S) == 75
        assert "in use" in refused.said

        up.broker(2).kill()
        up.wait_for(r"broker 2 +was killed \(SIGKILL\); it is started again")
        up.wait_for(r"(?s)was killed.*broker 2 .*ready")
        assert shell(f"{consume} --exit-at-end") == "hello, world\n"
        said = up.stop()
        assert said.count("  stopped") == 3
        assert "The data stays" in said
    finally:
        up.end()

    again = Up(folder)
    try:
        assert hinted(again.wait_for("Ctrl-C stops")) == [create, produce, consume, _kcat]
        assert shell(f"{consume} --exit-at-end") == "hello, world\n"
        again.stop()
    finally:
        again.end()


@pytest.mark.cluster
def test_one_broker_is_a_cluster_too(tmp_path: Path, first_port: int) -> None:
    up = Up(tmp_path / "one", "--brokers", 1, "--port", first_port)
    try:
        create, produce, consume, _ = hinted(up.wait_for("Ctrl-C stops"))
        shell(create)
        shell(produce)
        assert shell(f"{consume} --group g --max 1") == "hello, world\n"
        up.stop()
    finally:
        up.end()


@pytest.mark.cluster
def test_a_mistake_in_the_settings_ends_it_with_the_brokers_own_words(tmp_path: Path, first_port: int) -> None:
    up = Up(tmp_path / "wrong", "--port", first_port, "--set", "num.partitions=many")
    try:
        assert up.process.wait(TIMEOUT_S) == 64
        assert "num.partitions" in up.said
        assert "started again" not in up.said
    finally:
        up.end()


@pytest.mark.parametrize("store_url", ["", "file:///objects"])
def test_the_compactor_of_a_cluster_with_a_store_is_told_where_it_is(store_url: str, tmp_path: Path) -> None:
    told = list(compactor_command("sqlite:///m", tmp_path / "c.log", store_url))
    assert ("--store" in told) is bool(store_url)
    assert not store_url or told[told.index("--store") + 1] == store_url
