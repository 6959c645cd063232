"""Clients' own integration suites, where they can be pointed at brokers that run (`suites` says what is left out).

What is neither passed nor on the list of what is left out is a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

import pytest

from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.errors import HarnessError
from sexton.harness.properties import Settings
from tests.interop import golang, librdkafka
from tests.interop.archives import unpack
from tests.interop.clients import CODEC_LIBRARIES, ENVIRONMENTS_DIR, environment
from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.suites import FRANZ_GO, FRANZ_GO_LEFT_OUT, KAFKA_PYTHON_LEFT_OUT

pytestmark = pytest.mark.cluster

SUITE_TIMEOUT_S: Final = 600
RECORDS: Final = "2000"
"""In each of franz-go's chained groups; its own default is 500,000."""

KAFKA_PYTHON: Final = installed_version("kafka-python")
KAFKA_PYTHON_TIMEOUT_S: Final = 60
KAFKA_PYTHON_BROKER: Final[Settings] = {
    "auto.create.topics.enable": True,
    "group.min.session.timeout.ms": 500,
    "num.partitions": 4,
}
"""What its own brokers are started with, as far as its tests depend on it."""

LIBRDKAFKA_TIMEOUT_S: Final = 3_600
LIBRDKAFKA_BROKERS: Final[Settings] = {
    "num.partitions": 4,
    "default.replication.factor": 3,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": 3000,
}
LIBRDKAFKA_RACKS: Final[dict[int, Settings]] = {number: {"broker.rack": f"RACK{number}"} for number in (1, 2, 3)}
"""As librdkafka's own scripts set up brokers. The delay is Kafka's default, which clusters of tests do without."""

KAFKA_PYTHON_SERVICE: Final = '''\
"""Stands in for a file of kafka-python's tests that its source package lacks: a broker that somebody else runs."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
'''


def run(command: list[str], directory: Path, environment_variables: dict[str, str], timeout_s: int) -> tuple[int, str]:
    """Exit code and all that it printed."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment_variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def franz_go() -> Path:
    """franz-go's tests as a program."""
    return golang.built("test", f"franz-go-{FRANZ_GO}.test", "-c", package="github.com/twmb/franz-go/pkg/kgo")


@pytest.mark.timeout(2 * SUITE_TIMEOUT_S)
def test_franz_go_passes_its_own_suite(franz_go: Path, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """Groups chained into each other, with every assignor, static and not, in both protocols, while members come and
    go; and a test for each bug that franz-go ever had with a broker."""
    code, printed = run(
        [str(franz_go), "-test.v", "-test.skip", "|".join(FRANZ_GO_LEFT_OUT)],
        tmp_path,
        {
            "KGO_SEEDS": cluster.bootstrap,
            "KGO_TEST_RF": str(cluster.brokers),
            "KGO_TEST_RECORDS": RECORDS,
            "KGO_LOG_LEVEL": "none",
        },
        SUITE_TIMEOUT_S,
    )
    outcomes: dict[str, set[str]] = {"PASS": set(), "FAIL": set(), "SKIP": set()}
    for how, name in re.findall(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", printed, re.MULTILINE):
        outcomes[how].add(name)
    assert outcomes["FAIL"] == set(), printed[-8000:]
    assert code == 0, printed[-8000:]
    assert outcomes["SKIP"] == set()
    assert {"TestGroupETL/sticky/848/static", "TestClient_Produce", "TestIssue523/sticky"} <= outcomes["PASS"]


@pytest.fixture
def kafka_python_tests(tmp_path: Path) -> Path:
    """The tests of the version that the project uses, from its source package."""
    python = environment(KAFKA_PYTHON_REQUIREMENTS) / "bin" / "python"
    package = ("--no-deps", "--no-binary", "kafka-python", f"kafka-python=={KAFKA_PYTHON}")
    sources = ENVIRONMENTS_DIR / "sources"
    archive = sources / f"kafka_python-{KAFKA_PYTHON}.tar.gz"
    if not archive.exists():
        command = [str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *package]
        code, printed = run([*command, "--dest", str(sources)], tmp_path, {}, SUITE_TIMEOUT_S)
        if code != 0:
            raise HarnessError(f"kafka-python's source package could not be fetched:\n{printed}")
    unpack(archive, tmp_path)
    tests = tmp_path / f"kafka_python-{KAFKA_PYTHON}" / "test"
    (tests / "__init__.py").touch()
    (tests / "service.py").write_text(KAFKA_PYTHON_SERVICE)
    (tests.parent / "kafka").rename(tests.parent / "kafka-sources")  # the installed one is what is tested
    (tests.parent / "servers" / "4.3" / "kafka-bin").mkdir(parents=True)  # it looks for a Kafka that it does not start
    return tests


KAFKA_PYTHON_REQUIREMENTS: Final = (
    f"kafka-python=={KAFKA_PYTHON}",
    *CODEC_LIBRARIES,
    "crc32c",
    "pytest",
    "pytest-timeout",
)


@pytest.fixture
def lone_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    with start_cluster(request, tmp_path / "broker", 1, KAFKA_PYTHON_BROKER) as started:
        yield started


@pytest.mark.timeout(2 * SUITE_TIMEOUT_S)
def test_kafka_python_passes_its_own_suite(kafka_python_tests: Path, lone_broker: ClusterUnderTest) -> None:
    python = environment(KAFKA_PYTHON_REQUIREMENTS) / "bin" / "python"
    left_out = " or ".join(name.removesuffix(".py") for name in KAFKA_PYTHON_LEFT_OUT)
    quiet = ("-q", "-rs", "--tb=short", "--show-capture=no", "-W", "ignore", "-p", "no:cacheprovider", "-o", "addopts=")
    chosen = ("--timeout", str(KAFKA_PYTHON_TIMEOUT_S), "-k", f"not ({left_out})")
    code, printed = run(
        [str(python), "-m", "pytest", *quiet, *chosen, str(kafka_python_tests / "integration")],
        kafka_python_tests.parent,
        {"KAFKA_VERSION": "4.3", "KAFKA_URI": f"kafka://{lone_broker.bootstrap}", "PYTHONPATH": ""},
        SUITE_TIMEOUT_S,
    )
    assert code == 0, printed[-8000:]
    passed = re.search(r"(\d+) passed", printed)
    assert passed is not None
    assert int(passed[1]) > 40, printed[-2000:]


@pytest.mark.timeout(LIBRDKAFKA_TIMEOUT_S)
@pytest.mark.parametrize("scenario", librdkafka.SCENARIOS)
def test_librdkafka_passes_its_own_suite(scenario: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every test that its authors run and that needs a broker, with groups of both protocols."""
    tests = librdkafka.built()
    settings = {**LIBRDKAFKA_BROKERS, "auto.create.topics.enable": scenario == librdkafka.DEFAULT_SCENARIO}
    with start_cluster(request, tmp_path / "brokers", 3, settings, LIBRDKAFKA_RACKS) as cluster:
        running = cluster.running
        # Its test of compaction waits for 20 s, whatever else the machine does.
        compacting = (
            CompactorProcess(running.metastore_url, tmp_path, "--nice", "0")
            if isinstance(running, SextonCluster)
            else nullcontext()
        )
        with compacting:
            if running is not None:
                running.create_topic("compacted", config={"cleanup.policy": "compact"})  # keeps Spark warm, as in life
            runner = librdkafka.Runner(tests, cluster.bootstrap, scenario, tmp_path)
            outcomes = runner.run(librdkafka.cases(tests, scenario))
        print("\n".join(f"{each.duration_s:6.1f} s {each.name}" for each in outcomes))
        failed = [f"===== {each.name}\n{each.failure}" for each in outcomes if each.failure]
        assert outcomes
        assert not failed, f"{len(failed)} of {len(outcomes)} failed:\n" + "\n".join(failed)


def test_what_is_left_out_of_librdkafkas_suite_is_in_it() -> None:
    assert librdkafka.unknown_names(librdkafka.built()) == []
