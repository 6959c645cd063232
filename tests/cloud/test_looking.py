"""`sexton cloud`, on a real folder and a real database: what is there, what an object is for, and what is lost."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sexton.adapters.metastore import open_metastore
from sexton.adapters.metastore.store import SqlMetastore
from sexton.adapters.objects import open_store
from sexton.cli.cloud import DataLostError
from sexton.cli.main import app
from sexton.ports.cloud import Level
from sexton.ports.metastore import ConfigScope
from sexton.ports.object_names import claim_store, new_object_id
from tests.adapters.metastore.cloud.world import TOPIC, World
from tests.adapters.metastore.rows import partitions, topic
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER
from tests.log.helpers import plain

OBJECTS_COUNT = 3


class Place:
    """A cluster that has written a few objects, and does not run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metastore_url = f"sqlite:///{path}/metastore.sqlite"
        self.store_url = f"file://{path}/objects"

    async def make(self) -> None:
        metastore = open_metastore(self.metastore_url)
        assert isinstance(metastore, SqlMetastore)
        await metastore.open_cluster(CLUSTER)
        world = await World(metastore).start()
        store = open_store(self.store_url)
        await claim_store(store, CLUSTER)
        broker = Broker(world, 1, store)  # type: ignore[arg-type]
        await broker.lead()
        for number in range(OBJECTS_COUNT):
            await broker.append(plain(b"%d" % number * 100))
        await broker.stop()
        await store.close()
        await metastore.close()

    def change(self, operation: str, *arguments: Any) -> Any:
        async def go() -> Any:
            metastore = open_metastore(self.metastore_url)
            try:
                return await getattr(metastore, operation)(*arguments)
            finally:
                await metastore.close()

        return asyncio.run(go())

    def run(self, *words: str) -> Result:
        where = ["--metastore", self.metastore_url, "--store", self.store_url]
        return CliRunner().invoke(app, ["cloud", *words, *where], env={"COLUMNS": "200"})

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def files(self) -> list[Path]:
        return sorted(path for path in (self.path / "objects").rglob("*-*-*") if path.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    asyncio.run(made.make())
    return made


def test_status_tells_objects_by_state_and_what_each_partition_has(place: Place) -> None:
    told = place.json("status")
    by_state = {one["state"]: one for one in told["objects"]}
    assert by_state["live"]["objects_count"] == OBJECTS_COUNT
    assert by_state["live"]["size_bytes"] == sum(path.stat().st_size for path in place.files())
    first = told["partitions"][0]
    assert (first["topic"], first["end_offset"], first["l0_extents_count"]) == (TOPIC.name, 3, 3)
    assert TOPIC.name in place.run("status").output


def test_objects_are_listed_by_state(place: Place) -> None:
    live = place.json("objects", "--state", "live")
    assert {one["object_id"] for one in live} == {path.name for path in place.files()}
    assert all(one["refs_count"] == 1 for one in live)
    assert len(place.json("objects", "--limit", "2")) == 2
    assert place.run("objects", "--state", "dead").exit_code != 0


def test_why_is_told_in_each_state(place: Place) -> None:
    told = [place.json("why", one["object_id"]) for one in place.json("objects", "--state", "live")]
    assert all("1 extents refer to it" in one["why"] for one in told)
    references = [each for one in told for each in one["references"]]
    found = sorted((one["topic"], one["base_offset"], one["end_offset"]) for one in references)
    assert found == [("orders", 0, 1), ("orders", 1, 2), ("orders", 2, 3)]
    live = told[0]["object"]
    assert "orders" in place.run("why", f"{CLUSTER}/l0/{live[-2:]}/{live}").output
    garbage = place.json("objects", "--state", "garbage")[0]["object_id"]
    why = place.json("why", garbage)["why"]
    assert "nothing refers to it since round 0" in why
    assert "in 15 rounds of cloud.gc.round.ms, about 15.0 minutes" in why
    assert "unknown" in place.json("why", str(uuid.UUID(int=5)))["why"]
    asyncio.run(_register(place))
    pending = place.json("objects", "--state", "pending")[0]["object_id"]
    assert "registered by broker 1" in place.json("why", pending)["why"]
    assert place.run("why", "no-object").exit_code != 0


def test_when_garbage_goes_is_told_and_what_holds_it_back(place: Place) -> None:
    garbage = place.json("objects", "--state", "garbage")[0]["object_id"]
    place.change("change_settings", ConfigScope.BROKER, "", {"cloud.delete.delay.ms": "180000"})
    place.change("advance_round", 0)
    assert "in 2 rounds of cloud.gc.round.ms, about 2.0 minutes" in place.json("why", garbage)["why"]
    place.change("pin", uuid.UUID(int=1), "kafkalog", "a query of later", 60)
    for round_ in (1, 2):
        place.change("advance_round", round_)
    assert "the controller deletes it with its next step" in place.json("why", garbage)["why"], (
        "it is older than the pin"
    )
    assert [one["owner"] for one in place.json("status")["pins"]] == ["kafkalog"]
    assert "kafkalog (a query of later) holds deletions back, until round 61" in place.run("status").output


def test_an_object_that_a_query_may_use_stays_for_it(place: Place) -> None:
    garbage = place.json("objects", "--state", "garbage")[0]["object_id"]
    place.change("pin", uuid.UUID(int=1), "kafkalog", "a query of orders", 60)
    for round_ in range(20):
        place.change("advance_round", round_)
    assert "it stays for kafkalog (a query of orders), until round 60" in place.json("why", garbage)["why"]
    for round_ in range(20, 61):
        place.change("advance_round", round_)
    assert "the controller deletes it" in place.json("why", garbage)["why"], "the pin has ended"
    assert place.json("status")["pins"] == []


def test_status_tells_how_far_leveling_has_come(place: Place) -> None:
    told = " ".join(place.run("status").output.split())
    for column in ("leveled", "cleaned", "L0 waits"):
        assert column in told
    assert "3 for " in told


async def _register(place: Place) -> None:
    from random import Random

    metastore = open_metastore(place.metastore_url)
    assert isinstance(metastore, SqlMetastore)
    world = World(metastore)
    owner = await world.register(1)
    await metastore.register_objects(owner, Level.L0, [new_object_id(1_700_000_000_000, Random(1))])
    await metastore.close()


@pytest.mark.parametrize("words", [["check"], ["check", "--deep"]])
def test_a_check_of_what_is_whole_says_so(place: Place, words: list[str]) -> None:
    told = place.json(*words)
    assert (told["is_right"], told["objects_count"], told["lost"]) == (True, OBJECTS_COUNT, [])
    assert "0 of them lost" in place.run(*words).output


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words", "what"),
    [
        (_remove, ["check"], "it is not there"),
        (_cut, ["check"], "bytes, not"),
        (_flip, ["check", "--deep"], ""),
    ],
)
def test_what_is_lost_or_damaged_is_named_and_the_exit_code_says_so(
    place: Place, damage: Callable[[Path], None], words: list[str], what: str
) -> None:
    path = place.files()[1]
    path.chmod(0o600)
    damage(path)
    done = place.run(*words)
    assert isinstance(done.exception, DataLostError)
    assert done.exception.exit_code == 1
    assert path.name in done.output
    assert what in done.output


def test_a_store_that_was_emptied_is_shouted_about(place: Place) -> None:
    for path in (place.path / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.unlink()
    done = place.run("check")
    assert isinstance(done.exception, DataLostError)
    assert "no marker" in done.exception.what
    assert "accept-loss" not in str(done.exception), "it may be another store"
    assert f"{OBJECTS_COUNT} objects are lost" in done.exception.what


def test_a_check_holds_deletions_back_and_lets_go(place: Place) -> None:
    place.json("check")
    for round_ in range(5):
        place.change("advance_round", round_)
    assert place.change("collect", 2, 10), "no pin is left"


def test_where_there_is_no_cluster_it_is_said_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["cloud", "status", "--dir", str(tmp_path)])
    assert done.exception is not None
    assert "there is no cluster here" in str(done.exception)


def test_a_metastore_that_is_not_there_is_not_made(place: Place) -> None:
    wrong = place.path / "wrong.sqlite"
    words = ["cloud", "status", "--metastore", f"sqlite:///{wrong}", "--store", place.store_url]
    done = CliRunner().invoke(app, words)
    assert "there is no such file" in str(done.exception)
    assert not wrong.exists()


def test_status_tells_which_partitions_are_not_in_the_store_yet(place: Place) -> None:
    async def make() -> None:
        metastore = open_metastore(place.metastore_url)
        made = topic("next", 9)
        await metastore.create_topic(made, partitions(made, 12), {"storage.mode": "cloud"})
        await metastore.close()

    asyncio.run(make())
    assert place.json("status")["local"] == [{"topic": "next", "partition": number} for number in range(12)]
    told = " ".join(place.run("status").output.split())
    assert "Local until their leaders copy them: next-0, next-1," in told
    assert "next-9 and 2 more" in told
