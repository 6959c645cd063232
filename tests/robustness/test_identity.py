"""Who may be which broker, where: a second claim to an id, a folder or a metastore is refused with what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sexton.harness.brokers import ENVIRONMENT, SextonCluster
from tests.robustness.conftest import Watched

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60
IN_USE = 75
BAD_CONFIG = 78


def start_another(folder: Path, **settings: object) -> tuple[int, str]:
    """A broker that is expected to end by itself: its exit code and what it said."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "node_id": 1,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log_dirs": folder / "data",
        "metastore_url": f"sqlite:///{folder}/metastore.db",
        **settings,
    }
    config = folder / "broker.properties"
    config.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in told.items()))
    command = [sys.executable, "-m", "sexton.cli.main", "broker", "--config", str(config)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_second_broker_with_the_same_id_is_refused(broker: Watched, tmp_path: Path) -> None:
    code, told = start_another(tmp_path, metastore_url=broker.cluster.metastore_url)
    assert code == BAD_CONFIG
    assert f"broker 1 is already running at {broker.address}" in told
    assert "what to do: Give this broker another node.id, or stop the other one first" in told
    assert broker.serves()


def test_a_second_broker_on_the_same_folder_is_refused(broker: Watched, tmp_path: Path) -> None:
    """Whichever cluster it says it belongs to: the lock comes first."""
    code, told = start_another(tmp_path, log_dirs=broker.cluster.log_dir(1))
    assert code == IN_USE
    assert str(broker.cluster.log_dir(1)) in told
    assert "what to do" in told
    assert broker.serves()


@pytest.fixture
def stopped(tmp_path: Path) -> SextonCluster:
    """Another cluster, which ran once."""
    with SextonCluster(1, tmp_path / "stopped", keep=True) as cluster:
        cluster.stop()
    return cluster


def test_folders_and_metastores_of_two_clusters_cannot_be_mixed(
    broker: Watched, stopped: SextonCluster, tmp_path: Path
) -> None:
    """Its folder with our metastore, and its metastore with our folder."""
    before = sorted(path.name for path in stopped.log_dir(1).iterdir())
    code, told = start_another(tmp_path, log_dirs=stopped.log_dir(1), metastore_url=broker.cluster.metastore_url)
    assert code == BAD_CONFIG
    assert "this folder belongs to cluster" in told
    assert "what to do: Point log.dirs or metastore.url to the right place. Nothing was changed" in told
    assert sorted(path.name for path in stopped.log_dir(1).iterdir()) == before
    assert broker.serves()
    stopped.start()
    assert Watched(stopped).serves()
    stopped.close()


def test_a_folder_of_another_broker_of_the_same_cluster_is_refused(stopped: SextonCluster, tmp_path: Path) -> None:
    code, told = start_another(tmp_path, log_dirs=stopped.log_dir(1), metastore_url=stopped.metastore_url, node_id=7)
    assert code == BAD_CONFIG
    assert "this folder belongs to broker 1, not to broker 7" in told
    assert "what to do: Give each broker its own log.dirs, or correct node.id. Nothing was changed" in told
