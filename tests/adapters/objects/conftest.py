"""Stores of every kind, each empty: a folder on a real disk and on a simulated one, the simulator's, and a real S3."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sexton.adapters.objects import open_store
from sexton.adapters.objects.folder import FolderStore
from sexton.harness.versitygw import VersityGateway
from sexton.ports.objects import ObjectStore
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.loop import Process, SimulatedLoop, new_loop
from sexton.simulate.network import Fabric
from sexton.simulate.objects import ObjectService

Scenario = Callable[[ObjectStore], Awaitable[None]]
Runner = Callable[[Scenario], None]
KINDS = ("folder", "folder on a simulated disk", "simulated", "s3")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersityGateway]:
    with VersityGateway(tmp_path_factory.mktemp("versitygw")) as gateway:
        yield gateway


@pytest.fixture
def bucket(s3: VersityGateway, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty one, for which credentials are in the environment."""
    for name, value in s3.credentials.items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4().hex}"
    s3.make_bucket(name)
    return name


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    """Runs a scenario on a store of that kind."""
    if request.param == "folder":
        return on_url(f"file://{tmp_path}")
    if request.param == "s3":
        name: str = request.getfixturevalue("bucket")
        gateway: VersityGateway = request.getfixturevalue("s3")
        return on_url(gateway.url(name, "some/prefix"))
    return simulated_folder if request.param == "folder on a simulated disk" else simulated


def on_url(url: str) -> Runner:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            store = open_store(url)
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(main())

    return run


def simulated(scenario: Scenario) -> None:
    rng = random.Random(1)
    loop: SimulatedLoop = new_loop(rng)
    store = ObjectService(loop, rng, Fabric(loop, rng)).of(Process("broker-1"), "broker-1")
    loop.run_until_complete(scenario(store))
    loop.close()


def simulated_folder(scenario: Scenario) -> None:
    rng = random.Random(1)
    loop: SimulatedLoop = new_loop(rng)
    disk = VirtualDisk(rng).of(loop.world, loop)
    disk.make_directory("/objects")
    loop.run_until_complete(scenario(FolderStore(disk, "/objects")))
    loop.close()
