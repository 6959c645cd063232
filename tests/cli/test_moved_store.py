"""`sexton up --cloud ELSEWHERE`: a store in which the cluster's topics are not is refused before anything starts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sexton.cli.cluster_folder import Cluster, ClusterFolderError
from sexton.cli.moved_store import check_store
from sexton.ports.objects import StoreRefusedError
from tests.cloud.test_looking import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    asyncio.run(made.make())
    return made


def cluster(place: Place, store_url: str, metastore_url: str = "") -> Cluster:
    return Cluster(metastore_url=metastore_url or place.metastore_url, store_url=store_url)


def test_a_store_that_has_not_the_clusters_topics_is_refused(place: Place) -> None:
    (place.path / "other").mkdir()
    with pytest.raises(ClusterFolderError, match="not their store") as refused:
        check_store(cluster(place, place.store_url), cluster(place, f"file://{place.path}/other"))
    assert place.store_url in str(refused.value)
    with pytest.raises((ClusterFolderError, StoreRefusedError)):
        check_store(cluster(place, place.store_url), cluster(place, f"file://{place.path}/nowhere"))


def test_a_store_to_which_everything_was_copied_is_taken(place: Place) -> None:
    shutil.copytree(place.path / "objects", place.path / "copy")
    check_store(cluster(place, place.store_url), cluster(place, f"file://{place.path}/copy"))


def test_where_no_topic_is_in_the_store_yet_any_will_do(place: Place) -> None:
    empty = f"sqlite:///{place.path}/empty.sqlite"
    elsewhere = f"file://{place.path}/other"
    check_store(cluster(place, place.store_url, empty), cluster(place, elsewhere, empty))
    check_store(None, cluster(place, elsewhere))
    check_store(cluster(place, ""), cluster(place, elsewhere))
