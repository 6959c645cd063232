"""`sexton broker`: one process, from its settings to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.metastore.schema import SCHEMA_VERSION
from sexton.cli.broker import READY, UsageError, read_config
from sexton.errors import UnsupportedFormatError
from sexton.harness.brokers import ENVIRONMENT
from sexton.harness.processes import HOST, Port
from sexton.settings.schema import BadSettingError

TIMEOUT_S = 60


@pytest.fixture
def port() -> Iterator[int]:
    taken = Port()
    yield taken.number
    taken.release()


def write_config(folder: Path, port: int, **settings: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = {
        "node.id": 1,
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": folder / "data",
        "metastore.url": f"sqlite:///{folder}/metastore.sqlite",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    path = folder / "broker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


class Running:
    def __init__(self, config: Path, *options: str) -> None:
        command = [sys.executable, "-m", "sexton.cli.main", "broker", "--config", str(config), *options]
        self.process = subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, stderr


def test_settings_of_the_command_line_go_before_those_of_the_file(tmp_path: Path) -> None:
    path = write_config(tmp_path, 9092)
    config = read_config(path, ["num.partitions=7"])
    assert config.num_partitions == 7
    assert config.listener.port == 9092
    with pytest.raises(BadSettingError, match="NAME=VALUE"):
        read_config(path, ["num.partitions"])
    with pytest.raises(BadSettingError, match=r"num\.partitions"):
        read_config(path, ["num.partitions=some"])
    with pytest.raises(UsageError, match="No such file"):
        read_config(tmp_path / "nowhere", [])


@pytest.mark.cluster
def test_a_metastore_of_a_newer_build_is_refused_with_a_code_of_its_own(tmp_path: Path, port: int) -> None:
    config = write_config(tmp_path, port)
    newer = SCHEMA_VERSION + 1
    asyncio.run(_make_cluster(tmp_path, newer))
    code, log = Running(config).end()
    assert code == UnsupportedFormatError.exit_code == 76
    assert f"the metastore has schema {newer}" in log
    assert "run that one" in log


async def _make_cluster(folder: Path, schema_version: int) -> None:
    store = open_metastore(f"sqlite:///{folder}/metastore.sqlite")
    await store.open_cluster(uuid.uuid4())
    await store.close()
    with sqlite3.connect(folder / "metastore.sqlite") as database:
        database.execute("UPDATE sexton_cluster SET schema_version = ?", (schema_version,))
    database.close()


@pytest.mark.cluster
def test_it_says_when_it_is_ready_and_stops_cleanly(tmp_path: Path, port: int) -> None:
    broker = Running(write_config(tmp_path, port))
    assert broker.wait_ready() == f"{READY}: broker 1 serves at {HOST}:{port}"
    broker.process.send_signal(signal.SIGTERM)
    code, log = broker.end()
    assert code == 0, log
    assert "stopped" in log.splitlines()[-1]
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.cluster
def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path, port: int) -> None:
    first = Running(write_config(tmp_path / "first", port))
    first.wait_ready()
    try:
        code, log = Running(write_config(tmp_path / "second", port)).end()
        assert code == 74
        assert "another process listens there" in log
        assert "what to do" in log
        assert "Traceback" not in log
    finally:
        first.process.terminate()
        first.end()


@pytest.mark.cluster
def test_two_brokers_on_one_folder_are_refused(tmp_path: Path, port: int) -> None:
    config = write_config(tmp_path, port)
    first = Running(config)
    first.wait_ready()
    try:
        code, log = Running(config, "--set", f"listeners=PLAINTEXT://{HOST}:0").end()
        assert code == 75, log
        assert "Traceback" not in log
    finally:
        first.process.terminate()
        first.end()


@pytest.mark.cluster
def test_a_folder_of_another_broker_or_cluster_is_refused(tmp_path: Path, port: int) -> None:
    config = write_config(tmp_path, port)
    first = Running(config)
    first.wait_ready()
    first.process.terminate()
    first.end()
    code, log = Running(config, "--set", "node.id=2").end()
    assert code == 78, log
    assert "belongs to broker 1" in log
    code, log = Running(config, "--set", f"metastore.url=sqlite:///{tmp_path}/other.sqlite").end()
    assert code == 78, log
    assert "cluster" in log


@pytest.mark.cluster
def test_its_log_goes_to_a_file_if_asked(tmp_path: Path, port: int) -> None:
    log = tmp_path / "logs" / "broker.log"
    broker = Running(write_config(tmp_path, port), "--log-file", str(log))
    broker.wait_ready()
    broker.process.send_signal(signal.SIGINT)
    code, stderr = broker.end()
    assert (code, stderr) == (0, "")
    lines = log.read_text().splitlines()
    assert any(" INFO " in line and line.endswith(f"ready at {HOST}:{port}") for line in lines)
